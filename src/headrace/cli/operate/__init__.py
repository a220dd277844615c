"""Commands for who operates a hub: its log, its cluster, its keys, Spark."""
