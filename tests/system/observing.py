"""Observe a running hub from outside: its status, counters and memory; wait for conditions; set system limits."""

from __future__ import annotations

import asyncio
import json
import resource
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from tests.hubprocess import HubProcess

PATIENCE_SECONDS = 30.0
"""Far longer than any wait here takes, so that no test fails on a busy machine."""

FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Environment in which the C library returns freed memory, so that a process's size is what it uses now."""

_POLL_SECONDS = 0.01


def eventually(what: str, holds: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until ``holds()`` is true; after ``seconds``, fail and name ``what`` was awaited."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s in vain: {what}")
        time.sleep(_POLL_SECONDS)


async def until(what: str, holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait as :func:`eventually` does, while the event loop runs."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 -- what is waited for is in other processes
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        pytest.fail(f"waited {seconds:g} s in vain: {what}")


def status(hub: HubProcess) -> dict[str, Any]:
    """The hub's ``/api/status``."""
    with urllib.request.urlopen(f"http://{hub.doors['http']}/api/status", timeout=PATIENCE_SECONDS) as answer:
        decoded: dict[str, Any] = json.load(answer)
    return decoded


def head(hub: HubProcess) -> int:
    """The newest sequence number committed."""
    newest: int = status(hub)["head"]
    return newest


def counter(hub: HubProcess, name: str, labels: str = "") -> int:
    """A counter, or with ``labels`` (``value/value``) one of its series; 0 if nothing was counted."""
    found = status(hub)["counters"].get(name, 0)
    if isinstance(found, dict):
        return int(found.get(labels, 0)) if labels else sum(found.values())
    return int(found)


def memory(hub: HubProcess) -> int:
    """Bytes of private memory of the hub's process; mapped files are not counted."""
    used = psutil.Process(hub.pid).memory_info()
    private: int = used.rss - used.shared
    return private


@contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    """Lower a system limit for processes started meanwhile."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
