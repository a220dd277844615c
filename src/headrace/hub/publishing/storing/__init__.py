"""Store and forward: a frontend keeps messages while its upstream hub is away."""
