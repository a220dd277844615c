"""Three nodes of a cluster as processes, and wires between them that can be cut.

    with Trio.start(tmp_path) as trio:
        trio.working()
        trio.wires.cut(0, 1)   # nothing from node 0 reaches node 1 any more; the other way it does
        trio.wires.mend()

Each node reaches each other node through a proxy of its own in this process, so that traffic can be held back in one
direction alone, as a broken network does: connections stay open, and nothing arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from tests.hubprocess import HubProcess
from tests.ports import lasting_port
from tests.system.observing import eventually, status

from headrace.config import DOORS

End: TypeAlias = Hashable
"""An end of a wire: a node's number, or any name that a test has for its clients and what they dial."""

Pair: TypeAlias = tuple[End, End]

SERVED = ("fyrehose", "spp", "sdk", "publisher", "tube_tcp", "parcel", "http")


class Wires:
    """The proxies: ``wires.port(i, j)`` is where node ``i`` finds node ``j``."""

    def __init__(self, nodes: int) -> None:
        self.targets: dict[End, tuple[str, int]] = {}
        """Where each node's door is."""
        self._cut: set[Pair] = set()
        self._slow: dict[Pair, float] = {}
        self._carrying: dict[Pair, set[asyncio.Task[None]]] = {}
        self._ports: dict[Pair, int] = {}
        self._changed: asyncio.Condition
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._open(nodes))

    def port(self, source: End, target: End) -> int:
        """Where ``source`` dials to reach ``target``."""
        return self._ports[source, target]

    def add(self, source: End, target: End, address: tuple[str, int]) -> str:
        """Add a wire to an address; return where ``source`` dials."""
        self.targets[target] = address
        self._do(self._listen((source, target)))
        return f"127.0.0.1:{self.port(source, target)}"

    def cut(self, source: End, target: End) -> None:
        """Hold back everything from one end to another."""
        self._do(self._set({*self._cut, (source, target)}))

    def slow(self, source: End, target: End, seconds: float) -> None:
        """Let everything from one end to another wait, 64 KiB at a time."""
        self._slow[source, target] = seconds

    def drop(self, source: End, target: End) -> None:
        """Close the connections that are open; new ones are taken."""
        self._do(self._drop((source, target)))

    def cut_off(self, node: int) -> None:
        """Hold back everything to and from a node."""
        others = {each for pair in self._ports for each in pair} - {node}
        pairs = {(node, each) for each in others} | {(each, node) for each in others}
        self._do(self._set(self._cut | pairs))

    def mend(self) -> None:
        """Let everything pass at once, including what was held back."""
        self._slow.clear()
        self._do(self._set(set()))

    def close(self) -> None:
        """Close all proxies."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self, nodes: int) -> None:
        self._changed = asyncio.Condition()
        self._servers: list[asyncio.Server] = []
        for source in range(nodes):
            for target in range(nodes):
                if source != target:
                    await self._listen((source, target))

    async def _listen(self, pair: Pair) -> None:
        server = await asyncio.start_server(self._serving(pair), "127.0.0.1", lasting_port())
        self._servers.append(server)
        self._ports[pair] = server.sockets[0].getsockname()[1]

    async def _drop(self, pair: Pair) -> None:
        for task in self._carrying.get(pair, set()):
            task.cancel()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _set(self, cut: set[Pair]) -> None:
        async with self._changed:
            self._cut = cut
            self._changed.notify_all()

    def _serving(
        self, pair: Pair
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            source, target = pair
            # asyncio's streams report a cancelled handler as failed; here it is an ordinary end.
            with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
                await self._passable(source, target)
                try:
                    onward = await asyncio.open_connection(*self.targets[target])
                except (OSError, KeyError):
                    return
                with contextlib.closing(onward[1]):
                    ways = {
                        asyncio.ensure_future(self._carry(reader, onward[1], source, target)),
                        asyncio.ensure_future(self._carry(onward[0], writer, target, source)),
                    }
                    carrying = self._carrying.setdefault(pair, set())
                    carrying |= ways
                    try:
                        # When one end closes, both do.
                        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        carrying -= ways
                        for way in ways:
                            way.cancel()
                        await asyncio.gather(*ways, return_exceptions=True)

        return serve

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: End, target: End
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._passable(source, target)
                if late := self._slow.get((source, target), 0):
                    await asyncio.sleep(late)
                writer.write(data)
                await writer.drain()
        # The end of a connection is held back, too.
        await self._passable(source, target)

    async def _passable(self, source: End, target: End) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: (source, target) not in self._cut)


class Trio:
    """Three nodes; make them with :meth:`start`."""

    process: ClassVar[type[HubProcess]] = HubProcess

    def __init__(self, directory: Path, sets: tuple[str, ...]) -> None:
        self.wires = Wires(3)
        self._sets = sets
        self._directory = directory
        self.nodes: list[HubProcess] = []

    @classmethod
    def start(cls, directory: Path, *sets: str) -> Self:
        """Start three nodes and wait until all their doors accept."""
        trio = cls(directory, sets)
        with ThreadPoolExecutor(3) as threads:
            starting = [threads.submit(trio._started, number) for number in range(3)]
        # If one fails, the others must not live on and dial ports that later tests use.
        trio.nodes = [each.result() for each in starting if each.exception() is None]
        for each in starting:
            if (error := each.exception()) is not None:
                trio.close()
                raise error
        return trio

    def replace(self, number: int) -> HubProcess:
        """Start a new node with the name and addresses of one that has ended, and nothing of its data."""
        lost = self.nodes[number]
        assert not lost.running
        self.nodes[number] = self._started(number, lost)
        return self.nodes[number]

    def _started(self, number: int, lost: HubProcess | None = None) -> HubProcess:
        others = [each for each in range(3) if each != number]
        if lost is None:
            directory = self._directory / f"node{number}"
            doors = [f"listen.{door}=127.0.0.1:{lasting_port()}" for door in DOORS if door in SERVED]
        else:
            directory = lost.directory.with_name(f"{lost.directory.name}-new")
            doors = [f"listen.{door}={address}" for door, address in lost.doors.items()]
        shut = [f"listen.{door}=off" for door in DOORS if door not in SERVED]
        peers = ",".join(f"127.0.0.1:{self.wires.port(number, each)}" for each in others)
        node = self.process.start(
            directory,
            f"node.name=node{number}",
            "cluster.name=trio",
            f"cluster.peers={peers}",
            *doors,
            *shut,
            *self._sets,
        )
        self.wires.targets[number] = node.address("parcel")
        return node

    def hosts(self, door: str) -> str:
        """A door's addresses on all nodes, in the form that clients take."""
        return ",".join(node.doors[door] for node in self.nodes if door in node.doors)

    def running(self) -> Iterator[HubProcess]:
        """The nodes that run."""
        return (node for node in self.nodes if node.running)

    def primary(self) -> HubProcess:
        """Wait until all running nodes agree on a primary, and return it."""
        found: set[str] = set()

        def agreed() -> bool:
            found.clear()
            for node in self.running():
                facts = status(node)
                works = facts["mode"] == "WRK" and facts["cluster"]["primary"] is not None
                found.add(facts["cluster"]["primary"] if works else "")
            return len(found) == 1 and found != {""}

        try:
            eventually("the nodes agree on a primary", agreed)
        except BaseException as error:
            for node in self.running():
                facts = status(node)
                error.add_note(
                    f"{node.directory.name}: {facts['mode']}, {facts['cluster']}\n{node.stderr[-2000:]}"
                )
            raise
        return self.nodes[int(found.pop().removeprefix("node"))]

    def working(self) -> HubProcess:
        """Wait until all running nodes work and have the same head; return the primary."""
        primary = self.primary()
        eventually(
            "all have the same head", lambda: len({status(node)["head"] for node in self.running()}) == 1
        )
        return primary

    def close(self) -> None:
        """End all nodes and close the proxies."""
        for node in self.nodes:
            node.__exit__(None, None, None)
        self.wires.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for node in self.nodes:
                node.__exit__(kind, error, trace)
        finally:
            self.wires.close()
