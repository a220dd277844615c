"""The client of the backbone, over TCP or UDP, with repair."""
