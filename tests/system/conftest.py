"""Chance in tests that need it: drawn anew in every run, told when a test fails, repeated by ``HEADRACE_SEED``."""

from __future__ import annotations

import os
import secrets
from random import Random

import pytest

# Read here, once: tests run without the shell's settings.
_SEED = int(os.environ.get("HEADRACE_SEED") or secrets.randbelow(1 << 32))


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """This test's own chance; the same for a seed whichever other tests run."""
    print(f"HEADRACE_SEED={_SEED} makes the same choices again")
    return Random(f"{_SEED} {request.node.name}")
