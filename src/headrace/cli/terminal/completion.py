"""Shell completion of values that the command line alone does not know.

A shell asks at each key press, so each function imports only what it needs, and none asks a hub.
"""

from __future__ import annotations

from headrace.protocols import NOT_A_MESSAGE, ORIGINS


def origins(incomplete: str) -> list[str]:
    """Complete a message's origin.

    >>> origins("s")
    ['spp', 'spark']
    """
    return [each for each in ORIGINS if each.startswith(incomplete) and each != NOT_A_MESSAGE]


def jobs(incomplete: str) -> list[str]:
    """Complete the name of a pipeline job.

    >>> jobs("me")
    ['measure']
    """
    from headrace.spark.jobs.job import JOBS

    return [each for each in JOBS if each.startswith(incomplete)]


def settings(incomplete: str) -> list[str]:
    """Complete a setting, up to the equals sign before its value.

    >>> settings("log.fs")
    ['log.fsync=', 'log.fsync_interval=']
    """
    from headrace.config import Settings

    return [f"{key}=" for key in Settings().as_dict() if key.startswith(incomplete)]
