"""Challenges: a hub gives each connection its own bytes to sign, so that a signature is valid nowhere else."""

from __future__ import annotations

import secrets
from typing import Final

from headrace.log import Log

_RANDOM_BYTES: Final = 16


def new_challenge(log: Log) -> str:
    """Make a challenge: the id of the hub's log, so that a person sees where it is from, and random bytes."""
    return f"{log.uuid}/{secrets.token_hex(_RANDOM_BYTES)}"
