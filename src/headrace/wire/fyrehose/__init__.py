"""fyrehose: packets, streams of them, datagrams."""
