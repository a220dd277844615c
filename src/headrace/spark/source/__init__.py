"""The source: the sequence as rows of Spark."""
