"""Challenges: bytes that a hub gives a connection to sign, so that the answer is valid there and nowhere else."""

from __future__ import annotations

import secrets
from typing import Final

from headrace.log import Log

_RANDOM_BYTES: Final = 16


def new_challenge(log: Log) -> str:
    """Make a challenge: the hub's log, so that a person sees whose it is, and a number never used before."""
    return f"{log.uuid}/{secrets.token_hex(_RANDOM_BYTES)}"
