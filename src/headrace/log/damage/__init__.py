"""Damaged logs: inspect, verify, plan a repair, repair."""
