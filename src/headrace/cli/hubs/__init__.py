"""Which hub a command talks to: saved contexts, hubs that run here, addresses and credentials."""
