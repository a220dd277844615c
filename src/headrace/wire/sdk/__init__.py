"""The SDK's text protocol: its commands, its auth and its predicates."""
