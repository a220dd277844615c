"""How doors accept: binding, a proxy's header, TLS, admission, and the common part of all connections."""
