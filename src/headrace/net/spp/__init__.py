"""The SPP door: services over TCP."""
