"""A hub's machine: room on the disk, memory, threads, and a clock that does not jump."""
