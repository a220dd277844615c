"""Content routing with each role in a process of its own, each killed in turn.

A hub numbers messages; a matcher with a dispatcher follows it and pushes to two connectors, which follow it as well;
clients in processes of their own come back whenever their connection is lost. In the end each has got exactly what was
for it, in order, none twice, whatever was killed while messages flowed.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from tests.hubprocess import HubProcess
from tests.ports import lasting_port
from tests.system.observing import counter, eventually, status

import headrace
from headrace.log import Log

CLIENT = Path(__file__).with_name("sdk_client.py")


def publish(x: int, payload: bytes) -> bytes:
    attributes = b'{"x": %d}' % x
    body = b"\x01" + len(attributes).to_bytes(2) + attributes + b"\x02" + len(payload).to_bytes(2) + payload
    return b"\x01" + len(body).to_bytes(2) + b"\x00" + body


class Client:
    """An SDK client in a process of its own, at one connector."""

    def __init__(self, connector: HubProcess, number: int, low: int, high: int, directory: Path) -> None:
        self.low, self.high = low, high
        self.path = directory / f"client-{number}.txt"
        host, port = connector.address("sdk")
        arguments = [host, str(port), f"{number:024x}", str(low), str(high)]
        with self.path.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-S", str(CLIENT), *arguments], stdin=subprocess.PIPE, stdout=out
            )

    @property
    def got(self) -> list[tuple[int, str]]:
        lines = self.path.read_text().split("\n")[:-1]
        return [(int(seq), payload) for seq, payload in (line.split(" ", 1) for line in lines)]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


class Load:
    """Publishes numbered messages for as long as it is told to, through whatever happens to the hub."""

    def __init__(self, hub: HubProcess, random: Random) -> None:
        self._hub, self._random = hub, random
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(self._hub.address("publisher"), 5) as sock,
            ):
                while not self._over.is_set():
                    wire = b""
                    for _ in range(self._random.randrange(1, 40)):
                        self.sent += 1
                        wire += publish(self._random.randrange(100), b"m%d" % self.sent)
                    sock.sendall(wire)
                    self._over.wait(0.01)
            self._over.wait(0.05)


def send(hub: HubProcess, *wire: bytes) -> None:
    with socket.create_connection(hub.address("publisher"), 5) as sock:
        sock.sendall(b"".join(wire))


def logged(hub: HubProcess) -> Iterator[tuple[int, int, str]]:
    """Each published message of a hub's log: its number, its x and its payload."""
    log = Log.open(hub.data / "log", read_only=True)
    for batch in log.scan(log.first):
        for message in batch:
            if message.origin == "attribute":
                yield message.seq, int(message.numbers["x"]), message.payload.decode()
    log.close()


@pytest.mark.slow
def test_each_role_is_killed_in_turn_and_every_client_gets_its_messages_once(
    tmp_path: Path, random: Random
) -> None:
    with ExitStack() as stack:

        def run(name: str, roles: str, *sets: str) -> HubProcess:
            hub = HubProcess.start(tmp_path / name, f"node.name={name}", f"node.roles={roles}", *sets)
            return stack.enter_context(hub)

        hub = run("hub", "sequence,publisher,tube")
        up = f"node.upstream={hub.url('tube_tcp').replace('tube_tcp', 'tube')}"
        connectors = [run(name, "connector", up) for name in ("east", "west")]
        routers = ",".join(connector.doors["router"] for connector in connectors)
        matcher = run("matcher", "matcher,dispatcher", up, f"dispatcher.connectors={routers}")
        assert "publisher" not in matcher.doors
        assert "sdk" not in matcher.doors

        clients = []
        for number in range(6):
            low = random.randrange(60)
            client = Client(connectors[number % 2], number, low, low + 30, tmp_path)
            stack.callback(client.end)
            clients.append(client)
        everyone = len(clients)
        eventually("all subscribe", lambda: status(hub)["subscribers"]["subscriptions"] == everyone)

        def all_live() -> bool:
            """Whether every client is here, and pushed to by the matcher instead of fed from the connector's log."""
            found = [status(connector)["subscribers"] for connector in connectors]
            return sum(f["sdk"] for f in found) == everyone and not any(f["sdk_behind"] for f in found)

        eventually("the matcher's pushes reach all", all_live)
        with Load(hub, random) as load:
            for process in [*random.sample([matcher, *connectors, hub], 4), matcher]:
                enough = load.sent + 500
                eventually("messages flow", lambda enough=enough: load.sent > enough)
                process.kill9()
                time.sleep(random.uniform(0, 0.5))
                process.restart()
                eventually("the matcher's pushes reach all again", all_live)
        send(hub, *(publish(x, b"the end") for x in range(0, 100, 10)))
        eventually("the end is logged", lambda: [text for *_, text in logged(hub)][-10:] == ["the end"] * 10)

        messages = list(logged(hub))
        for client in clients:
            expected = [(seq, text) for seq, x, text in messages if client.low <= x <= client.high]
            eventually("it gets all", lambda c=client, most=expected: len(c.got) >= len(most))
            assert client.got == expected
        assert all(counter(connector, "delivered", "sdk") for connector in connectors)
        assert counter(matcher, "dispatched")


def asked(matcher: HubProcess) -> dict[int, dict[int, bytes]]:
    """What a matcher's status door says to whoever connects: the items of each command, by their numbers."""
    found: dict[int, dict[int, bytes]] = {}
    with socket.create_connection(matcher.address("status"), 5) as sock, sock.makefile("rb") as stream:
        while len(found) < 2:
            command, length = stream.read(1)[0], int.from_bytes(stream.read(2))
            assert stream.read(1) == b"\0"
            body, items = stream.read(length), dict[int, bytes]()
            while body:
                end = 3 + int.from_bytes(body[1:3])
                items[body[0]], body = body[3:end], body[end:]
            found[command] = items
    return found


@pytest.mark.slow
def test_two_of_each_pass_long_messages_on_and_a_dispatcher_may_be_killed(tmp_path: Path) -> None:
    """Two matchers on a ring, two dispatchers that know each other, a connector that both have and one that one has.

    With the hub these are seven processes. Each matcher has clients at both connectors, so what one of them pushes goes
    by both dispatchers; what it pushes is longer than one message of the protocol, so it goes as Head, Mid and Tail.
    """
    with ExitStack() as stack:

        def run(name: str, roles: str, *sets: str) -> HubProcess:
            return HubProcess.start(tmp_path / name, f"node.name={name}", f"node.roles={roles}", *sets)

        hub = stack.enter_context(run("hub", "sequence,publisher,tube"))
        up = f"node.upstream=tube://{hub.doors['tube_tcp']}"
        at = {name: f"127.0.0.1:{lasting_port()}" for name in ("east", "west", "d1", "d2", "m1", "m2")}
        parts: list[tuple[str, ...]] = [
            *((name, "connector", f"listen.router={at[name]}") for name in ("east", "west")),
            *(
                (name, "dispatcher", f"listen.dispatcher={at[name]}", f"dispatcher.connectors={own}",
                 f"dispatcher.peers={at[other]}")
                for name, own, other in (("d1", at["east"], "d2"), ("d2", f"{at['west']},{at['east']}", "d1"))
            ),
            *(
                (name, "matcher", f"listen.status={at[name]}", f"matching.dispatchers={at[first]},{at[then]}",
                 f"matching.peers={at[other]}")
                for name, first, then, other in (("m1", "d1", "d2", "m2"), ("m2", "d2", "d1", "m1"))
            ),
        ]  # fmt: skip
        with ThreadPoolExecutor(3) as starting:
            begun = [starting.submit(run, *part, up) for part in parts]
        for each in begun:
            if not each.exception():
                stack.enter_context(each.result())
        east, west, d1, d2, m1, m2 = (each.result() for each in begun)

        # The ring, as the status doors tell it.
        for matcher, name in ((m1, b"m1"), (m2, b"m2")):
            first = hashlib.sha1(name).digest()
            told = asked(matcher)
            assert (told[1][2].decode(), told[1][4].decode()) == (matcher.doors["status"], first.hex())
            assert (told[1][5], told[2][5], len(told[2][6])) == (name, name, 16 * 20)
            assert told[2][6].startswith(first)
        eventually("both are on the ring", lambda: len(status(hub)["matching"]["matchers"]) == 2)

        clients = []
        for number in range(12):
            clients.append(Client((east, west)[number % 2], number, 0, 99, tmp_path))
            stack.callback(clients[-1].end)

        def all_live() -> bool:
            found = [status(connector)["subscribers"] for connector in (east, west)]
            return sum(f["sdk"] for f in found) == len(clients) and not any(f["sdk_behind"] for f in found)

        def shares() -> list[int]:
            return [status(matcher)["subscribers"]["subscriptions_here"] for matcher in (m1, m2)]

        eventually("each has its share", lambda: sum(shares()) == len(clients))
        assert all(shares())
        eventually("the matchers' pushes reach all", all_live)

        link = stack.enter_context(headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}"))
        expected: list[tuple[int, str]] = []

        def publish_some(count: int) -> None:
            for number in range(len(expected), len(expected) + count):
                text = f"{number} " + "long " * (500 + 13 * (number % 60))
                published = link.publish(text.encode(), numbers={"x": number % 100})
                expected.append((published.first, text))

        def all_got() -> bool:
            return all(len(client.got) >= len(expected) for client in clients)

        publish_some(40)
        eventually("everybody gets them", all_got)
        # All were pushed, some of them by two dispatchers.
        assert all_live()
        pushed = [counter(dispatcher, "dispatched") for dispatcher in (d1, d2)]
        assert sum(pushed) >= 40 * 4
        assert min(pushed) >= 40
        assert all(counter(matcher, "matched", "clients") for matcher in (m1, m2))

        d1.kill9()
        publish_some(40)
        d1.restart()
        publish_some(40)
        eventually("everybody gets them, whoever was killed", all_got)
        eventually("pushes reach all again", all_live)
        publish_some(10)
        eventually("everybody gets the last", all_got)
        for client in clients:
            assert client.got == expected
