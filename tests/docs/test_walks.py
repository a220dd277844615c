"""The walks that docs/architecture.md draws are the ones that the code takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.tracing import CausalLoop, Connection, Function, LoopThread, Trace

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def check(*walks: str) -> None:
    """Trace walks in a process of their own, in which Numba's kernels are plain Python."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "tools/walks.py", "--check", *walks],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-4000:]}"


@pytest.mark.parametrize("walk", ["push", "attribute", "link"])
def test_the_page_draws_the_walk_that_the_hub_takes(walk: str) -> None:
    check(walk)


@pytest.mark.slow
@pytest.mark.spark
def test_the_page_draws_the_walk_of_a_micro_batch() -> None:
    check("spark")


def test_the_page_has_every_walk() -> None:
    text = PAGE.read_text()
    for walk in ("push", "attribute", "link", "spark"):
        assert f"<!-- walk: {walk} -->" in text
        assert f"](img/walk-{walk}.svg)" in text


def test_an_untrue_page_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tools import walks

    (tmp_path / "docs" / "img").mkdir(parents=True)
    page = tmp_path / "docs" / "architecture.md"
    page.write_text("<!-- walk: push -->\nanother way\n<!-- /walk -->\n")
    walk = walks.Walk("A walk")
    walk.enter(Function("net.fyrehose.door", "open"), on_the_way=True)
    walk.enter(Function("wire.spp", "parse"), on_the_way=False)
    walk.enter(Function("message", "Batch.size"), on_the_way=False)
    walk.enter(Function("hub.sequence", "Hub.turn"), on_the_way=True)
    for name, value in {"ROOT": tmp_path, "PAGE": page, "trace_all": lambda _: {"push": walk}}.items():
        monkeypatch.setattr(walks, name, value)
    assert walks.main(["--check", "push"]) == 1
    assert "another way" in page.read_text()
    assert walks.main(["push"]) == 0
    assert walks.main(["--check", "push"]) == 0
    assert "On the way: 2 modules, 2 functions, 1 changes of room." in page.read_text()
    assert "| `net/fyrehose` | `door` | `wire/spp` |" in page.read_text()


class TestCauseAndEffect:
    def test_a_walk_is_followed_over_callbacks_and_sockets_and_not_into_timers(self) -> None:
        import asyncio

        class Echo(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = transport

            def data_received(self, data: bytes) -> None:
                loop = asyncio.get_running_loop()
                loop.call_later(0, seen.append, "timer")
                loop.call_soon(self.later, data)

            def later(self, data: bytes) -> None:
                assert isinstance(loop.loop, CausalLoop)
                trace = loop.loop.trace
                seen.append(trace is not None and trace.leg is not None)
                assert isinstance(self.transport, asyncio.Transport)
                self.transport.write(data)

        async def talk(port: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x")
            await reader.readexactly(1)
            writer.close()
            await writer.wait_closed()

        seen: list[object] = []

        async def serve() -> asyncio.Server:
            return await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)

        with LoopThread() as loop:
            server = loop.run(serve())
            port = server.sockets[0].getsockname()[1]

            def at_server(connection: Connection) -> bool:
                return connection.own[1] == port

            with loop.tracing(Trace(at_server, at_server)) as trace:
                loop.run(talk(port))
            loop.loop.call_soon_threadsafe(server.close)
        assert seen[0] is True
        assert [len(hand_over.way()) for hand_over in trace.ended] == [2]
