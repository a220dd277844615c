"""A frontend's connection to the hub that numbers its messages."""
