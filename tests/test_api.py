"""The public names: each has a docstring with an example, and every example does what it says.

Those of ``headrace.spark`` need a Spark session: ``tests/spark/test_api.py`` has them.
"""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from inspect import isclass, isroutine
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import errors, tube
from headrace.client import sync
from headrace.testing import Hub

NAMES: list[Any] = [getattr(headrace, name) for name in headrace.__all__ if name != "__version__"]
TUBES: list[Any] = [each for each in map(vars(tube).get, tube.__all__) if isroutine(each) or isclass(each)]
PUBLIC: list[Any] = list(dict.fromkeys([*NAMES, *TUBES, Hub]))
MODULES = sorted({each.__module__ for each in PUBLIC})


@pytest.mark.parametrize("public", PUBLIC, ids=lambda each: each.__name__)
def test_every_public_name_has_an_example(public: Any) -> None:
    assert ">>> " in (public.__doc__ or "")


def test_every_error_and_client_is_exported_and_stands_in_the_reference() -> None:
    page = (Path(__file__).parents[1] / "docs/api.md").read_text()
    found = {
        name
        for name, each in vars(errors).items()
        if isclass(each) and issubclass(each, errors.HeadraceError)
    }
    assert found <= set(headrace.__all__)
    assert {name for name in sync.__all__ if name != "Begun"} <= set(headrace.__all__)
    described = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    for each in NAMES:
        home = each.__module__
        places = [place for place in described if place in (home, f"{home}.{each.__name__}")]
        assert len(places) == 1, f"{each.__name__} has {len(places)} homes in docs/api.md"


@pytest.mark.parametrize("module", MODULES)
def test_examples_do_what_they_say(module: str) -> None:
    result = doctest.testmod(import_module(module))
    assert result.attempted
    assert not result.failed
