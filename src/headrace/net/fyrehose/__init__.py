"""The fyrehose door: the backbone over TCP and UDP."""
