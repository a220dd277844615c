"""Store and forward: what a frontend keeps while its upstream hub is away."""
