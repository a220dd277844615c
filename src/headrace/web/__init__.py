"""The ``http`` door: dashboard, JSON API, metrics, health."""

from headrace.web.door import start

__all__ = ["start"]
