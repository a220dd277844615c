"""The client of the link."""
