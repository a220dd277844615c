"""What a shell offers for a word that is half typed, where the command line alone does not know it.

A shell asks at each press of a key, so that each function imports what it needs, and asks no hub.
"""

from __future__ import annotations

from headrace.protocols import ORIGINS


def origins(incomplete: str) -> list[str]:
    """The ways in that a message can have come by.

    >>> origins("s")
    ['spp', 'spark']
    """
    return [each for each in ORIGINS if each.startswith(incomplete)]


def jobs(incomplete: str) -> list[str]:
    """The pipeline's jobs.

    >>> jobs("me")
    ['measure']
    """
    from headrace.spark.jobs.job import JOBS

    return [each for each in JOBS if each.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """The settings, each with the sign that its value stands behind.

    >>> settings("log.fs")
    ['log.fsync=', 'log.fsync_interval=']
    """
    from headrace.config import Settings

    return [f"{key}=" for key in Settings().as_dict() if key.startswith(incomplete)]
