"""The client of the publisher door."""
