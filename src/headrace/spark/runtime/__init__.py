"""What Spark runs on: sessions, Java, standalone clusters, Python workers."""
