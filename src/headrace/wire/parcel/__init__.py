"""Parcels: what the nodes of a cluster say to one another."""
