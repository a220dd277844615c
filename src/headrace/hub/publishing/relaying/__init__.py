"""Relaying: what is published at a hub that does not number messages goes to the hub that does."""
