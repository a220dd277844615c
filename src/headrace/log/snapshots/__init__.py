"""Snapshots of the hub's state: written in pieces, read back, and the start of a log that copies another."""
