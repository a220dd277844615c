"""Trace four walks through the running code and write them into ``docs/architecture.md``.

    python tools/walks.py                 # trace, and rewrite the page and its pictures
    python tools/walks.py --check         # trace, change nothing, exit 1 if the page tells another story
    python tools/walks.py push link       # only these walks (push, attribute, link, spark)
    python tools/walks.py --figures       # also the "after" column of docs/adr/0013-rooms.md

The page names each walk between two comments, ``<!-- walk: push -->`` and ``<!-- /walk -->``; what stands between them
is replaced. The hubs are real, in this process and over real sockets, with only the doors that the walk needs; Spark is
real, too. What is traced is the second of two equal messages, so that connections and caches are as they are at work.
Numba's kernels run as plain Python here, because compiled code cannot be traced.

What counts: the *way* is the chain of calls that carries the message from its entrance to its end
(:mod:`tools.tracing`); what the way *asks* is every function of another module that it calls directly. The functions
that those call in turn are not counted, nor are the shared words (:data:`SHARED`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

# The path above is for these.
import argparse  # noqa: E402
import contextlib  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import socket  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterable, Iterator  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from typing import Any  # noqa: E402

from tests.ports import lasting_port  # noqa: E402
from tools.pictures import Picture  # noqa: E402
from tools.tracing import SOURCE, Connection, Function, HandOver, LoopThread, Trace, function_of  # noqa: E402

PAGE = ROOT / "docs" / "architecture.md"
FIGURES = ROOT / "docs" / "adr" / "0013-rooms.md"
SHARED = ("message", "errors", "config", "protocols")
SECONDS = 60.0

MARKER = re.compile(
    r"(?P<open>^<!-- walk: (?P<name>\w+) -->$).*?(?P<close>^<!-- /walk -->$)", re.DOTALL | re.MULTILINE
)


@dataclass
class Walk:
    """Functions in the order in which a walk first enters them, and whether each is on the way or only asked."""

    title: str
    functions: dict[Function, bool] = field(default_factory=dict)

    def enter(self, function: Function, *, on_the_way: bool) -> None:
        """Add a function, unless it is there or one of the shared words."""
        if function.module.split(".")[0] not in SHARED:
            self.functions[function] = self.functions.get(function, False) or on_the_way

    @property
    def modules(self) -> list[str]:
        """The modules, in the order in which the walk first comes to them."""
        return list(dict.fromkeys(function.module for function in self.functions))

    @property
    def way(self) -> list[Function]:
        """The functions on the way."""
        return [function for function, on_the_way in self.functions.items() if on_the_way]

    def stays(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """The way from room to room: each room, its modules on the way, and the modules asked from there."""
        stays: list[tuple[str, list[str], list[str]]] = []
        asked: list[str] = []
        for function, on_the_way in self.functions.items():
            room = room_of(function.module)
            if not on_the_way:
                (stays[-1][2] if stays else asked).append(function.module)
            elif stays and stays[-1][0] == room:
                stays[-1][1].append(function.module)
            else:
                stays.append((room, [function.module], asked))
                asked = []
        for room, passed, others in stays:
            here = list(dict.fromkeys(passed))
            yield room, here, [module for module in dict.fromkeys(others) if module not in here]

    def counts(self) -> tuple[int, int, int]:
        """Modules, functions and changes of room: of the way with all that it asks."""
        return _counts(list(self.functions))

    def counts_of_way(self) -> tuple[int, int, int]:
        """The same of the way alone."""
        return _counts(self.way)


def _counts(functions: list[Function]) -> tuple[int, int, int]:
    rooms = [room_of(function.module) for function in functions]
    changes = sum(before != after for before, after in itertools.pairwise(rooms))
    return len({function.module for function in functions}), len(functions), changes


def room_of(module: str) -> str:
    """The room of a module: its top-level package, or the package inside ``net`` or ``hub``."""
    parts = module.split(".")
    if parts[0] in ("net", "hub") and len(parts) > 1 and (SOURCE / parts[0] / parts[1]).is_dir():
        return "/".join(parts[:2])
    return parts[0]


# The walks


def push(loop: LoopThread, directory: Path) -> Walk:
    """A PUSH comes in over TCP and goes out as a DELIVER."""
    with serving(loop, directory, "fyrehose") as server:
        publisher, subscriber = dial(server, "fyrehose"), dial(server, "fyrehose")
        subscriber.sendall(b"\x10" + bytes(6))  # KEEPALIVE; ACK is the answer
        expect(subscriber.recv(64)[:1] == b"\x20", "the subscriber has its ACK")

        def once() -> None:
            publisher.sendall(b"\x02\x00\x05hello")
            expect(subscriber.recv(64).endswith(b"hello"), "the subscriber has the message")

        return traced(loop, once, from_peer(publisher), from_peer(subscriber), "PUSH to DELIVER over TCP")


def attribute(loop: LoopThread, directory: Path) -> Walk:
    """A publisher's message reaches an SDK client that subscribed to what it says."""
    with serving(loop, directory, "publisher", "sdk") as server:
        publisher, client = dial(server, "publisher"), dial(server, "sdk")
        claim = {"client_id": "a1" * 12, "timestamp": "1700000000", "token": "00"}
        client.sendall(_command(b"auth", json.dumps(claim).encode()))
        expect(client.recv(64) == b"+authsuccess\r\n", "the client is let in")
        client.sendall(_command(b"sub", b"city", b'{"use": 1, "strval": "Praha"}'))
        attributes, payload = b'{"city": "Praha"}', b"hello"
        items = b"".join(
            bytes([kind]) + len(content).to_bytes(2) + content
            for kind, content in ((1, attributes), (2, payload))
        )
        message = b"\x01" + len(items).to_bytes(2) + b"\x00" + items

        def once() -> None:
            publisher.sendall(message)
            expect(b"hello" in client.recv(256), "the client has the message")

        # What is published before the subscription is in place goes past the client.
        client.settimeout(0.2)
        for _ in range(50):
            with contextlib.suppress(TimeoutError):
                once()
                break
        client.settimeout(SECONDS)

        title = "An attribute publish to an SDK client"
        return traced(loop, once, from_peer(publisher), from_peer(client), title)


def link(loop: LoopThread, directory: Path) -> Walk:
    """A publish over the link at a node that is not the primary, until it is acknowledged.

    The third node is stopped first: then the majority is always the same two, and the order of events with it.
    """
    import headrace

    addresses = [f"127.0.0.1:{lasting_port()}" for _ in range(3)]
    with contextlib.ExitStack() as stack:
        servers = {}
        for number, address in enumerate(addresses):
            servers[f"node{number}"] = stack.enter_context(
                serving(
                    loop,
                    directory / str(number),
                    "tube_tcp",
                    f"node.name=node{number}",
                    f"listen.parcel={address}",
                    f"cluster.peers={','.join(addresses)}",
                    "limits.drain_seconds=2",
                )
            )

        def primary() -> str | None:
            told = [server.status() for server in servers.values()]
            names = {status["cluster"]["primary"] for status in told}
            # A new node serves clients once it has the cluster's first entry.
            ready = all(status["mode"] == "WRK" for status in told) and all(
                server.hub.log.head_op for server in servers.values()
            )
            return names.pop() if ready and len(names) == 1 else None

        leader = wait_until(loop, primary)
        here, stopped = (server for name, server in servers.items() if name != leader)
        loop.run(stopped.drain())
        with headrace.connect_sync(f"tube://{here.doors['tube_tcp']}") as client:
            door = at_door(here, "tube_tcp")
            return traced(
                loop,
                lambda: client.publish(b"hello", topic="greetings"),
                door,
                door,
                "A link publish at a node that is not the primary, until it is acknowledged",
            )


def spark(loop: LoopThread, directory: Path) -> Walk:
    """A micro-batch from the source to the sink's commit.

    Spark's Python processes are traced by a ``sitecustomize`` of their own; the hub is traced request by request.
    """
    import headrace
    from headrace.spark import session

    walk = Walk("A Spark micro-batch from the source to the sink's commit")
    calls, site = directory / "calls", directory / "site"
    calls.mkdir(parents=True)
    site.mkdir()
    (site / "sitecustomize.py").write_text(_IN_SPARK)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), str(ROOT / "src"), str(ROOT)])
    os.environ["HEADRACE_WALK"] = str(calls)
    spark = session("local[1]", "headrace walks", memory="1g")
    try:
        with serving(loop, directory, "tube_tcp") as server:
            where = {"servers": server.doors["tube_tcp"]}
            with headrace.connect_sync(f"tube://{where['servers']}") as client:
                client.publish(b"hello", topic="in")
                ours = set(loop.loop.connections.values())
                door = at_door(server, "tube_tcp")
                by_spark = lambda connection: door(connection) and connection not in ours  # noqa: E731
                rows = spark.readStream.format("headrace").options(**where, startingOffsets="earliest").load()
                copies = rows.where("origin <> 'spark'").selectExpr("payload", "'out' as topic")
                writer = copies.writeStream.format("headrace").options(**where)
                writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
                query = writer.trigger(processingTime="500 milliseconds").start()
                head = lambda: server.status()["head"]  # noqa: E731
                wait_until(loop, lambda: head() >= 2)
                query.processAllAvailable()
                before, begin = wait_until(loop, head), time.monotonic_ns()
                with loop.tracing(Trace(by_spark, by_spark)) as trace:
                    client.publish(b"hello", topic="in")
                    wait_until(loop, lambda: head() >= before + 2)
                    query.processAllAvailable()
                end = time.monotonic_ns()
                query.stop()
            _spark_calls(walk, calls, begin, end)
            for hand_over in trace.ended:
                _follow(walk, hand_over)
    finally:
        spark.stop()
    return walk


WALKS: dict[str, Callable[[LoopThread, Path], Walk]] = {
    "push": push,
    "attribute": attribute,
    "link": link,
    "spark": spark,
}


# What they share


@contextlib.contextmanager
def serving(loop: LoopThread, data: Path, *given: str) -> Iterator[Any]:
    """A hub in the tracing loop: doors are named alone, settings as ``section.key=value``."""
    from headrace.config import DOORS, load
    from headrace.net.server.machine import log_disk
    from headrace.net.server.process import Server

    # Traced code is slow. An append that seems to hang would go on in another leg of the walk.
    log_disk.PATIENCE = SECONDS  # type: ignore[misc]

    doors = [word for word in given if "=" not in word]
    listen = [f"listen.{door}={'127.0.0.1:0' if door in doors else 'off'}" for door in DOORS]
    sets = [word for word in given if "=" in word]

    async def start() -> Any:
        server = Server(load(environ={}, sets=[*listen, f"node.data={data}", *sets]))
        await server.start()
        return server

    server = loop.run(start())
    try:
        yield server
    finally:
        if server.ready:
            loop.run(server.drain())


def traced(
    loop: LoopThread,
    once: Callable[[], object],
    begins: Callable[[Connection], bool],
    ends: Callable[[Connection], bool],
    title: str,
) -> Walk:
    """Send a message twice, and trace the second time."""
    once()
    with loop.tracing(Trace(begins, ends)) as trace:
        once()
        expect(trace.over.wait(SECONDS), f"{title}: the walk comes to its end")
    walk = Walk(title)
    _follow(walk, trace.ended[0])
    return walk


def _follow(walk: Walk, last: HandOver) -> None:
    """Add the way that leads to a hand-over, and what it asks."""
    for hand_over in last.way():
        for stack in hand_over.leg.calls[: hand_over.calls]:
            same = itertools.takewhile(
                lambda pair: pair[0] is pair[1], zip(stack, hand_over.stack, strict=False)
            )
            _add(walk, [function_of(code) for code in stack], sum(1 for _ in same))


def _add(walk: Walk, stack: list[Function], way: int) -> None:
    """Add the last function of a stack, whose first ``way`` functions are on the way.

    It is asked if it is in another module, and called from the way or from a helper in the same module.
    """
    if way == len(stack):
        walk.enter(stack[-1], on_the_way=True)
    elif way:
        here = stack[way - 1].module
        beside = list(itertools.dropwhile(lambda function: function.module == here, stack[way:]))
        if len(beside) == 1:
            walk.enter(stack[-1], on_the_way=False)


def expect(holds: bool, what: str) -> None:
    """Stop if the system under trace does not do what the walk needs."""
    if not holds:
        raise RuntimeError(f"expected that {what}")


def dial(server: Any, door: str) -> socket.socket:
    """Connect to a door by a plain socket."""
    host, _, port = server.doors[door].rpartition(":")
    sock = socket.create_connection((host, int(port)), SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def from_peer(sock: socket.socket) -> Callable[[Connection], bool]:
    """Whether a connection of the hub is the other end of a socket."""
    name = sock.getsockname()
    return lambda connection: connection.peer == name


def at_door(server: Any, door: str) -> Callable[[Connection], bool]:
    """Whether a connection came in by a door."""
    port = int(server.doors[door].rpartition(":")[2])
    return lambda connection: connection.own[1] == port


def wait_until(loop: LoopThread, holds: Callable[[], Any]) -> Any:
    """Wait until something is true in the loop's thread, and return it."""

    async def look() -> Any:
        return holds()

    deadline = time.monotonic() + SECONDS
    while not (found := loop.run(look())):
        expect(time.monotonic() < deadline, f"what is waited for comes true within {SECONDS:g} s")
        time.sleep(0.02)
    return found


def _command(*elements: bytes) -> bytes:
    """An SDK client's command."""
    body = b"*%d\r\n" % len(elements) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in elements)
    return b"#%d\r\n%b" % (len(body), body)


# Spark's processes

_IN_SPARK = """
import os, sys, time
from tools.tracing import _PREFIX, stack_of, function_of

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(_PREFIX):
        stack = stack_of(frame)
        if stack and stack[-1] is code:
            names = ["|".join(function_of(each)) for each in stack]
            with open(f"{os.environ['HEADRACE_WALK']}/{os.getpid()}", "a") as file:
                print(time.monotonic_ns(), *names, file=file)

sys.setprofile(note)
"""

_AROUND = "spark.runtime."
"""What runs Spark's own worker code, which calls the source and the sink."""

_STAGES = ("latestOffset", "partitions", "streamWriter", "read", "write", "commit")
"""What Spark calls in a micro-batch, in order; reading and writing run side by side."""

_BESIDE = ("name", "reportLatestOffset")
"""What it also calls, for its own reports."""


def _spark_calls(walk: Walk, directory: Path, begin: int, end: int) -> None:
    """Add what ran in Spark's processes between two moments, stage by stage."""
    stages: dict[str, list[tuple[int, list[Function]]]] = {}
    for file in directory.iterdir():
        calls = []
        for line in file.read_text().splitlines():
            when, *names = line.split(" ")
            stack = [Function(*name.split("|")) for name in names]
            stack = list(itertools.dropwhile(lambda each: each.module.startswith(_AROUND), stack))
            if stack and begin <= int(when) <= end:
                calls.append((int(when), stack))
        # A call that was under way at the beginning is not part of this batch.
        for when, stack in itertools.dropwhile(lambda call: len(call[1]) > 1, calls):
            stages.setdefault(stack[0].name.rpartition(".")[2], []).append((when, stack))
    known = [stage for stage in _STAGES if stage in stages]
    for stage in sorted(stages.keys() - {*_STAGES, *_BESIDE}) + known:
        for _, stack in sorted(stages[stage], key=lambda call: call[0]):
            _add(walk, stack, 1)


# The page


def text(walk: Walk, name: str) -> str:
    """What stands in the page for a walk: picture, counts, and the same in words."""
    modules, functions, changes = walk.counts()
    on_way = walk.counts_of_way()
    lines = [
        f"![{walk.title}](img/walk-{name}.svg)",
        "",
        f"On the way: {on_way[0]} modules, {on_way[1]} functions, {on_way[2]} changes of room. With all that it",
        f"asks: {modules} modules, {functions} functions, {changes} changes of room.",
        "",
        "| room | on the way | asks |",
        "|---|---|---|",
    ]
    for room, here, asked in walk.stays():
        inside = ", ".join(f"`{_short(module, room)}`" for module in here)
        lines.append(f"| `{room}` | {inside} | {', '.join(f'`{_path(module)}`' for module in asked)} |")
    return "\n".join(lines) + "\n"


def _path(module: str) -> str:
    return module.replace(".", "/")


def _short(module: str, room: str) -> str:
    """A module's name inside its room."""
    return _path(module).removeprefix(f"{room}/")


_LANE, _LINE, _EDGE = 136, 16, 16
_ASKED = 250


def picture(walk: Walk) -> Picture:
    """The way as boxes in one lane per room, and beside each box the modules that it asks."""
    stays = list(walk.stays())
    lanes = list(dict.fromkeys(room for room, _, _ in stays))
    asked_at = _EDGE + _LANE * len(lanes) + 16
    heights = [max(len(here) * _LINE + 14, len(asked) * 14 + 4) for _, here, asked in stays]
    made = Picture(asked_at + _ASKED, 48 + sum(heights) + 18 * len(stays), walk.title)
    for at, room in enumerate(lanes):
        made.word(_EDGE + at * _LANE + _LANE // 2 - 4, 26, room)
    made.word(asked_at, 26, "asks", faint=True, anchor="start")
    y, before = 42, None
    for (room, here, asked), height in zip(stays, heights, strict=True):
        x = _EDGE + lanes.index(room) * _LANE
        middle, depth = x + _LANE // 2 - 4, len(here) * _LINE + 14
        if before is not None:
            made.arrow(before, (before[0], y - 9), (middle, y - 9), (middle, y))
        made.box(x, y, _LANE - 8, depth, "", _KINDS.get(room.split("/")[0], "plain"))
        for line, module in enumerate(here):
            made.word(
                middle, y + 20 + line * _LINE, _short(module, room), faint=len(_short(module, room)) > 17
            )
        for line, module in enumerate(asked):
            made.word(asked_at, y + 14 + line * 14, _path(module), faint=True, anchor="start")
        before = (middle, y + depth)
        y += height + 18
    return made


_KINDS = {"net": "door", "tube": "door", "hub": "core", "log": "kept", "spark": "spark"}


def trace_all(names: Iterable[str]) -> dict[str, Walk]:
    """Trace walks, each in a loop and a directory of its own.

    Numba looks at its variable when it is imported: nothing of ours is, before this.
    """
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    # Kernels wrap around on purpose; as plain Python they say so.
    warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="headrace-walk-") as directory, LoopThread() as loop:
            found[name] = WALKS[name](loop, Path(directory))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Write the walks, or with ``--check`` name what is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "walks", nargs="*", choices=[[], *WALKS], help="only these; all of them if none is named"
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if something would change"
    )
    parser.add_argument(
        "--figures", action="store_true", help="fill the tables of docs/adr/0013-rooms.md as well"
    )
    options = parser.parse_args(arguments)
    walks = trace_all(options.walks or WALKS)

    def fill(match: re.Match[str]) -> str:
        walk = walks.get(match["name"])
        return (
            match[0] if walk is None else f"{match['open']}\n\n{text(walk, match['name'])}\n{match['close']}"
        )

    wanted = {PAGE: MARKER.sub(fill, PAGE.read_text())}
    for name, walk in walks.items():
        wanted[PAGE.parent / "img" / f"walk-{name}.svg"] = str(picture(walk))
    if options.figures:
        wanted[FIGURES] = with_figures(FIGURES.read_text(), walks)
    stale = [path for path, content in wanted.items() if not path.exists() or path.read_text() != content]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if options.check else 'written'}")
        if not options.check:
            path.write_text(wanted[path])
    if options.check and stale:
        print("run: python tools/walks.py")
    return 1 if options.check and stale else 0


# The figures


def with_figures(page: str, walks: dict[str, Walk]) -> str:
    """Put today's figures into the last column: of the rows known here, and of all folders."""
    figures = {"lines in `src`, without Java": f"{lines_of_source():,}"}
    for name, walk in walks.items():
        figures[f"{name}, on the way"] = " / ".join(map(str, walk.counts_of_way()))
        figures[f"{name}, with what it asks"] = " / ".join(map(str, walk.counts()))

    def row(match: re.Match[str]) -> str:
        label = match[1].strip()
        return f"|{match[1]}|{match[2]}| {figures[label]} |" if label in figures else match[0]

    def folders(match: re.Match[str]) -> str:
        before = dict(re.findall(r"^\| `([^`]+)` \| (\S+) \|", match[2], flags=re.MULTILINE))
        after = modules_per_folder()
        rows = [
            f"| `{folder}` | {before.get(folder, '-')} | {after.get(folder, '-')} |\n"
            for folder in sorted(before.keys() | after.keys())
        ]
        return match[1] + "".join(rows)

    page = re.sub(r"^\|([^|]*)\|([^|]*)\|[^|]*\|$", row, page, flags=re.MULTILINE)
    return re.sub(r"(^\| folder \|.*\n\|[-|]+\|\n)((?:\|.*\n)*)", folders, page, flags=re.MULTILINE)


def modules_per_folder() -> dict[str, int]:
    """How many modules each folder of ``src/headrace`` lists."""
    folders = (path for path in SOURCE.rglob("*") if any(path.glob("*.py")))
    return {str(path.relative_to(SOURCE)): len(list(path.glob("*.py"))) for path in folders}


def lines_of_source() -> int:
    """Lines of Python under ``src``."""
    return sum(path.read_bytes().count(b"\n") for path in SOURCE.parent.rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main())
