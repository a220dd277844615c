"""Streams over HTTP: what the hub remembers of topics that were created as streams."""
