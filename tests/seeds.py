"""Which seeds a seeded test runs, as the environment says.

``HEADRACE_SEED=7`` runs one, ``HEADRACE_SEEDS=100`` the first hundred, and ``HEADRACE_SEEDS=200-300`` those from 200 on
that are less than 300.
"""

from __future__ import annotations

import os


def chosen_seeds(first: int, count: int) -> range:
    """Return the seeds to run: ``count`` of them from ``first`` on, unless the environment says otherwise.

    To be called on import: tests run without the shell's settings.
    """
    if one := os.environ.get("HEADRACE_SEED"):
        return range(int(one), int(one) + 1)
    begin, dash, end = os.environ.get("HEADRACE_SEEDS", "").partition("-")
    if dash:
        return range(int(begin), int(end))
    return range(first, first + int(begin or count))
