"""What a hub needs of its machine: room on the disk, memory, threads, and a clock that does not jump."""
