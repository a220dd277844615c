"""The streams of the link: messages, operations and large answers, sent as the client grants credit."""
