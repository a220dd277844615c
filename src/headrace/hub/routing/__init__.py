"""Content routing: subscriptions, the matchers that share them, the dispatcher, the connector and its clients."""
