"""Commands that use a hub: publish, read, query, subscribe."""
