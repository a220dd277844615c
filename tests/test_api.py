"""The public names: each has a docstring with an example, and every example does what it says.

Those of ``headrace.spark`` need a Spark session: ``tests/spark/test_api.py`` has them.
"""

from __future__ import annotations

import doctest
from importlib import import_module
from inspect import isclass, isroutine
from typing import Any

import pytest

import headrace
from headrace import tube
from headrace.client.link.client import LinkClient
from headrace.client.publisher.client import PublisherClient
from headrace.client.sdk.client import SdkClient
from headrace.client.spp.client import SppClient
from headrace.client.sync import Sync
from headrace.testing import Hub

CLIENTS = (headrace.Backbone, LinkClient, SppClient, SdkClient, PublisherClient, Sync)
"""What ``connect`` and ``connect_sync`` give."""

NAMES: list[Any] = [getattr(headrace, name) for name in headrace.__all__ if name != "__version__"]
TUBES: list[Any] = [each for each in map(vars(tube).get, tube.__all__) if isroutine(each) or isclass(each)]
PUBLIC: list[Any] = list(dict.fromkeys([*NAMES, *CLIENTS, *TUBES, Hub]))
MODULES = sorted({each.__module__ for each in PUBLIC})


@pytest.mark.parametrize("public", PUBLIC, ids=lambda each: each.__name__)
def test_every_public_name_has_an_example(public: Any) -> None:
    assert ">>> " in (public.__doc__ or "")


@pytest.mark.parametrize("module", MODULES)
def test_examples_do_what_they_say(module: str) -> None:
    result = doctest.testmod(import_module(module))
    assert result.attempted
    assert not result.failed
