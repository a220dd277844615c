"""Headrace: five wire protocols in, one verified sequence in the middle, Spark pipelines out."""

__version__ = "0.1.0"

__all__ = ["__version__"]
