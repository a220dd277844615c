"""The link: its messages, its requests and its rows."""
