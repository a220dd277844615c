"""A hub's status: its facts, its alerts, the watched event loop, and reports of programs beside it."""
