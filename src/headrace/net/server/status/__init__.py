"""How a hub tells how it is: its facts, its alerts, the watched event loop, and what programs beside it report."""
