"""A random source that differs from run to run; a failing test prints the ``HEADRACE_SEED`` that repeats its run."""

from __future__ import annotations

import os
import secrets
from random import Random

import pytest

# Read on import: tests run without the shell's settings.
_SEED = int(os.environ.get("HEADRACE_SEED") or secrets.randbelow(1 << 32))


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """A source for this test alone: for a given seed its choices do not depend on which other tests run."""
    print(f"HEADRACE_SEED={_SEED} makes the same choices again")
    return Random(f"{_SEED} {request.node.name}")
