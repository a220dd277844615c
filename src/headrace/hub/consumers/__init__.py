"""Durable consumers: their cursors, and which member is given which messages."""
