"""The sink: rows of Spark as messages or service changes."""
