"""The log in a running hub: its maintenance, the feeds of its readers, and the comparison of repeats with it."""
