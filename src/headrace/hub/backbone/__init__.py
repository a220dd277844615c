"""The backbone: the rules of the fyrehose door, and its UDP subscribers."""
