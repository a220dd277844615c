"""The client of services."""
