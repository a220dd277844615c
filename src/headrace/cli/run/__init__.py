"""Commands that run a hub, measure it or look at it."""
