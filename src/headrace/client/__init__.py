"""The clients, a package per protocol: rules without sockets or clocks, and the clients built on them."""

from headrace.client.connect import connect, connect_sync

__all__ = ["connect", "connect_sync"]
