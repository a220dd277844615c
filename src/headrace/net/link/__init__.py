"""The link: the operations that a tube carries, over TCP and over WebSocket."""
