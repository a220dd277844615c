"""The client's side of each protocol: rules without sockets or clocks, and the clients over them."""

from headrace.client.connect import connect, connect_sync

__all__ = ["connect", "connect_sync"]
