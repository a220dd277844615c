"""Who may make which request of the http door: identification, sessions, rights, other origins."""
