"""Publishing: idempotent publishers, staged commits, and relays to the hub that numbers messages."""
