"""Peers in other languages, written from the protocols' documents alone.

The programs are in ``javascript`` and ``c``, and take the same arguments in both. Where a language is not on this
machine, its tests are skipped and say so.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
from tests.hubprocess import HubProcess

HERE = Path(__file__).parent
SECONDS = 60.0
PROTOCOLS = ("fyrehose", "parcel", "sdk", "spp", "tube")

LANGUAGES = ("javascript", "c")


class Peer:
    """A program that runs; its lines are read with a deadline, and it is killed if it has not ended by itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        self._stdout: IO[bytes] = process.stdout
        self._ahead = b""

    def line(self) -> str:
        """The next line of its output."""
        deadline = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while b"\n" not in self._ahead:
                assert selector.select(deadline - time.monotonic()), f"no line, only {self._ahead!r}"
                more = os.read(self._stdout.fileno(), 1 << 16)
                assert more, f"the peer ended with {self._process.wait(SECONDS)} after {self._ahead!r}"
                self._ahead += more
        line, _, self._ahead = self._ahead.partition(b"\n")
        return line.decode()

    def lines(self, count: int) -> list[str]:
        return [self.line() for _ in range(count)]

    @property
    def port(self) -> int:
        """The port that a server says it got."""
        word, port = self.line().split()
        assert word == "port"
        return int(port)

    def ends_well(self) -> None:
        """Wait until it has ended by itself, content."""
        assert self._process.wait(SECONDS) == 0


Start = Callable[..., Peer]


@contextmanager
def running(command: list[str]) -> Iterator[Peer]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield Peer(process)
    finally:
        # A server may have a process for each connection; they are in a group of their own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], list[str]]:
    """How to run a peer: the beginning of its command, by language and protocol."""
    built: dict[str, Path] = {}

    def program(language: str, protocol: str) -> list[str]:
        if language == "javascript":
            node = shutil.which("node")
            if node is None:
                pytest.skip("node is not on this machine, so no JavaScript peer is tried")
            return [node, str(HERE / "javascript" / f"{protocol}.js")]
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("cc is not on this machine, so no C peer is tried")
        if protocol not in built:
            built[protocol] = tmp_path_factory.mktemp("peers") / protocol
            flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"]
            source = str(HERE / "c" / f"{protocol}.c")
            subprocess.run(
                [compiler, *flags, "-o", str(built[protocol]), source], check=True, timeout=SECONDS
            )
        return [str(built[protocol])]

    return program


@pytest.fixture
def start(programs: Callable[[str, str], list[str]]) -> Iterator[Start]:
    """Start a peer: ``start(language, protocol, argument, …)``."""
    with ExitStack() as stack:

        def started(language: str, protocol: str, *arguments: object) -> Peer:
            command = [*programs(language, protocol), *map(str, arguments)]
            return stack.enter_context(running(command))

        yield started


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that the peers share."""
    with HubProcess.start(tmp_path_factory.mktemp("hub")) as running_hub:
        yield running_hub
