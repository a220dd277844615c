"""How doors accept: binding, a proxy's header, TLS, admission, and what connections of all doors share."""
