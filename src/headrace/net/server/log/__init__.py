"""The log at work: its maintenance, what feeds its readers, and repeats compared with it."""
