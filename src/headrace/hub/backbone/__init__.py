"""The backbone: rules of the fyrehose door, and what each UDP subscriber is still to be sent."""
