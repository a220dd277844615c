"""One hub process: the accept path that doors are built on, which doors open, and log maintenance."""
