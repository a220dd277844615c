"""What is public: these names, from this package, at little cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace

PUBLIC = {
    "Backbone",
    "Batch",
    "ClosedError",
    "ConfigError",
    "HeadraceError",
    "LimitError",
    "LostRangeError",
    "Message",
    "PeerError",
    "RefusedError",
    "Run",
    "StorageError",
    "UnexpectedError",
    "UnreachableError",
    "UsageError",
    "WireError",
    "__version__",
    "any_of",
    "at_least",
    "at_most",
    "between",
    "connect",
    "connect_sync",
    "equals",
    "exists",
    "missing",
    "not_",
    "one_of",
    "starts_with",
    "where",
}

COSTLY = ("aiohttp", "asyncio", "cbor2", "msgspec", "numba", "numpy", "pyarrow", "pyspark", "rich", "uvloop")


def test_the_public_names() -> None:
    assert set(headrace.__all__) == PUBLIC == set(dir(headrace))
    assert len(headrace.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_name_is_there(name: str) -> None:
    value = getattr(headrace, name)
    assert getattr(value, "__name__", name) == name
    assert getattr(headrace, name) is value


def test_any_other_name_is_not() -> None:
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'conect'"):
        headrace.conect  # noqa: B018


def test_importing_the_package_is_cheap() -> None:
    look = "import sys, headrace; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert not {*COSTLY} & {*loaded.stdout.split()}
    assert "headrace.errors" not in loaded.stdout.split()


def test_a_url_that_is_wrong_is_told_without_loading_a_client() -> None:
    look = (
        "import sys, headrace\n"
        "try: headrace.connect('http://example')\n"
        "except headrace.UsageError: print(*sorted(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert loaded.stdout.split()
    assert not {*COSTLY} & {*loaded.stdout.split()}
