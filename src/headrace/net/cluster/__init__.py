"""A node of a cluster: the parcel door, connections to peers, replication at work."""
