"""The client of content routing."""
