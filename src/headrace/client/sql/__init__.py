"""SQL over a log, by DuckDB."""
