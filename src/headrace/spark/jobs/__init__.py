"""Jobs: what the pipeline does with the sequence. Each is a function of DataFrames, and a thin runner."""
