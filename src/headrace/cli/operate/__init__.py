"""Commands for operating a hub: its log, its cluster, its keys, Spark."""
