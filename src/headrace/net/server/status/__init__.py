"""A hub's status: its facts, its alerts, the watched event loop, and the reports of other programs."""
