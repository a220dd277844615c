"""Content routing: subscriptions, the matchers that share them, dispatcher, connector and its clients."""
