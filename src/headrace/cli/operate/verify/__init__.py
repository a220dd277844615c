"""``verify``: prove that copies of a history are equal, or that they extend a checkpoint."""
