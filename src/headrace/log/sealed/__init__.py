"""Sealed segments: how they are written, read and cached."""
