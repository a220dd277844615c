"""Streams over HTTP: what the hub knows of a topic that was made a stream."""
