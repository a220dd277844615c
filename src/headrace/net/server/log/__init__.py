"""The log at work: its maintenance, the feeds of its readers, and the comparison of repeats with it."""
