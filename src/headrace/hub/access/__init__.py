"""Who may do what: proving who a client is, and which addresses a door serves."""
