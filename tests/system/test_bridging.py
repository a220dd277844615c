"""Every door joined: what comes in by one is seen through each of the others as the conversion table says.

One hub, with a client at every door it has. Messages go in by each way of the table, one after the other, and each is
waited for; then what the log has, and what every client got, is compared with what the table says, field by field.
Which ways are tried is up to the hub: whatever door stands in its ready file must do as the table says.
"""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tests.hub.conversion_table import WAYS_IN, WAYS_OUT, By, WayIn, WayOut, enters, sees, text_of
from tests.hubprocess import HubProcess
from tests.net.spp_peer import publish as spp_publish
from tests.net.spp_peer import subscribe
from tests.system.observing import counter, eventually, head, status
from tests.system.rawclient import Publisher, Subscriber, UdpPublisher, UdpSubscriber

from headrace import connect_sync
from headrace.message import Message, messages
from headrace.wire.attribute import publish as attribute_publish
from headrace.wire.fyrehose.stream import DeliverRun
from headrace.wire.sdk import commands as sdk
from headrace.wire.sdk.predicate import Exists
from headrace.wire.sdk.subscribe import Subscribe

JSON, LAST = "bridge/json", "bridge/last"
"""Services of either kind, which every SPP client here subscribes."""

Said = Mapping[str, Any]

CASES: dict[str, Said] = {
    "text": {"payload": b"hello"},
    "nothing": {"payload": b""},
    "no UTF-8": {"payload": b"\xff\x00\xfe", "topic": LAST},
    "a merge patch": {"payload": b'{"speed": 61, "gear": null}', "topic": JSON},
    "text for a service": {"payload": "größe".encode(), "topic": LAST},
    "a topic that is no service": {"payload": b'{"a":1}', "topic": "bridge/nobody"},
    "no object for a json service": {"payload": b"[1]", "topic": JSON},
    "attributes": {
        "payload": b"x",
        "attributes": {"city": "Praha", "digits": "5"},
        "numbers": {"degrees": 21.5, "five": 5.0},
    },
    "all that DELIVER carries by UDP": {"payload": b"u" * 65_498},
    "one more": {"payload": b"v" * 65_499},
    "all that PUSH carries by UDP": {"payload": b"w" * 65_504},
    "all that fyrehose carries": {"payload": b"x" * 65_526},
    "one more than that": {"payload": b"y" * 65_527, "topic": LAST},
    "nearly 8 MiB": {"payload": bytes(range(256)) * (8_200_000 // 256), "topic": LAST},
}


@dataclass
class Sent:
    """A message that went in."""

    way: WayIn
    case: str
    said: Said
    peer: str

    def __str__(self) -> str:
        return f"{self.case!r} by {self.way.name}"


# Ways in


class Sender:
    """A publisher at one door; sends what its protocol can say, and tells what that was."""

    def __init__(self, hub: HubProcess, stack: ExitStack) -> None:
        raise NotImplementedError

    peer = ""
    constants: ClassVar[Said] = {}
    """What it always says."""

    def send(self, said: Said) -> None:
        raise NotImplementedError


def _name(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"{host}:{port}"


class Tcp(Sender):
    def __init__(self, hub: HubProcess, stack: ExitStack) -> None:
        self._publisher = stack.enter_context(Publisher(hub.address("fyrehose")))
        self.peer = _name(self._publisher.sock)

    def send(self, said: Said) -> None:
        self._publisher.push([said["payload"]])


class Udp(Tcp):
    def __init__(self, hub: HubProcess, stack: ExitStack) -> None:
        self._publisher = stack.enter_context(UdpPublisher(hub.address("fyrehose")))
        self._publisher.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.peer = _name(self._publisher.sock)


class Spp(Sender):
    def __init__(self, hub: HubProcess, stack: ExitStack) -> None:
        self._sock = stack.enter_context(socket.create_connection(hub.address("spp"), 30))
        self.peer = _name(self._sock)

    def send(self, said: Said) -> None:
        self._sock.sendall(spp_publish(said["topic"], said["payload"]))


class Attribute(Sender):
    def __init__(self, hub: HubProcess, stack: ExitStack) -> None:
        self._sock = stack.enter_context(socket.create_connection(hub.address("publisher"), 30))
        self.peer = _name(self._sock)

    def send(self, said: Said) -> None:
        attributes = {**said.get("attributes", {}), **said.get("numbers", {})}
        message = attribute_publish.Publish(attributes, said["payload"])
        self._sock.sendall(attribute_publish.serialize(message))


class Link(Sender):
    def __init__(self, hub: HubProcess, stack: ExitStack) -> None:
        link = stack.enter_context(connect_sync(f"tube://{hub.doors['tube_tcp']}"))
        self._publisher = link.publisher("bridge")
        self._numbers = count()

    @property
    def constants(self) -> Said:  # type: ignore[override]
        return {"publisher": "bridge", "number": next(self._numbers)}

    def send(self, said: Said) -> None:
        self._publisher.publish([_row(said)])


class Spark(Sender):
    constants: ClassVar[Said] = {"publisher": "query"}

    def __init__(self, hub: HubProcess, stack: ExitStack) -> None:
        self._link = stack.enter_context(connect_sync(f"tube://{hub.doors['tube_tcp']}"))
        self._batches = count()

    def send(self, said: Said) -> None:
        batch = next(self._batches)
        self._link.commit("query", batch, [self._link.stage("query", batch, [_row(said)])])


def _row(said: Said) -> dict[str, Any]:
    return {name: said[name] for name in ("payload", "topic", "attributes", "numbers") if name in said}


SENDERS: dict[str, type[Sender]] = {
    "fyrehose PUSH, UDP": Udp,
    "fyrehose PUSH, TCP": Tcp,
    "SPP PUBLISH": Spp,
    "attribute publish": Attribute,
    "link `publish`": Link,
    "Spark sink (`stage`, `commit`)": Spark,
}


# Ways out


@dataclass
class Seen:
    """What clients at one door saw, each message as its fields, in order."""

    way: WayOut
    got: list[dict[str, Any]] = field(default_factory=list)


def deliver(seen: Seen) -> Callable[[DeliverRun], None]:
    def took(run: DeliverRun) -> None:
        payloads = list(run.run)
        seen.got += [
            {"seq": seq, "payload": payload} for seq, payload in zip(run.seqs.tolist(), payloads, strict=True)
        ]

    return took


class Reader(threading.Thread):
    """Reads a socket until it is closed."""

    def __init__(self, sock: socket.socket, take: Callable[[bytes], None]) -> None:
        super().__init__(daemon=True)
        self._sock = sock
        self._take = take
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while data := self._sock.recv(1 << 20):
                self._take(data)
        except OSError:
            pass  # the test is over
        except BaseException as failure:
            self.failure = failure
            raise


def watch_services(hub: HubProcess, stack: ExitStack, seen: Seen) -> Reader:
    sock = stack.enter_context(socket.create_connection(hub.address("spp")))
    sock.sendall(subscribe(JSON) + subscribe(LAST))
    came = bytearray()

    def take(data: bytes) -> None:
        came.extend(data)
        while len(came) >= 8 and len(came) >= 8 + int.from_bytes(came[4:8]):
            kind, length = int.from_bytes(came[:4]), int.from_bytes(came[4:8])
            body = bytes(came[8 : 8 + length])
            del came[: 8 + length]
            if kind == 16:
                end = 4 + int.from_bytes(body[:4])
                seen.got.append({"topic": body[4:end].decode(), "payload": body[end + 4 :]})

    return Reader(sock, take)


def watch_matches(hub: HubProcess, stack: ExitStack, seen: Seen, types: dict[int, int]) -> Reader:
    """An SDK client to whom every message matters: each has an origin."""
    sock = stack.enter_context(socket.create_connection(hub.address("sdk")))
    sock.sendall(sdk.serialize(Subscribe({"origin": Exists(True)})))
    came = bytearray()

    def take(data: bytes) -> None:
        came.extend(data)
        while (end := came.find(b"\r\n")) >= 0:
            assert came[:1] == b"#", bytes(came[:80])
            length = int(came[1:end])
            if len(came) < end + 2 + length:
                return
            content = json.loads(came[end + 2 : end + 2 + length])
            del came[: end + 2 + length]
            types[content["seq"]] = content["type"]
            seen.got.append({"seq": content["seq"], "payload": content["payload"]})

    return Reader(sock, take)


def plain(message: Message) -> dict[str, Any]:
    # The subscriptions that a message satisfies, and the fences' events, are a client's, not the envelope's.
    own = ("subs", "events")
    fields = {name: getattr(message, name) for name in message.__struct_fields__ if name not in own}
    return fields | {"attributes": dict(message.attributes), "numbers": dict(message.numbers)}


# The whole


@dataclass
class Bridge:
    """What went in, and what came out of every door."""

    hub: HubProcess
    sent: list[Sent]
    log: list[Message]
    seen: list[Seen]
    types: dict[int, int]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    with HubProcess.start(tmp_path_factory.mktemp("hub")) as hub, ExitStack() as stack:
        link = stack.enter_context(connect_sync(f"tube://{hub.doors['tube_tcp']}"))
        link.create_service(JSON, "json")
        link.create_service(LAST, "last")
        begin = head(hub) + 1
        follow = stack.enter_context(link.follow())
        assert follow.begun() == begin
        seen = [Seen(way) for way in WAYS_OUT if not way.door or way.door in hub.doors]
        by_name = {each.way.name: each for each in seen}
        udp, tcp = by_name["fyrehose DELIVER, UDP"], by_name["fyrehose DELIVER, TCP"]
        subscribers = [
            stack.enter_context(UdpSubscriber(hub.address("fyrehose"), on_run=deliver(udp))),
            stack.enter_context(Subscriber(hub.address("fyrehose"), on_run=deliver(tcp))),
        ]
        for subscriber in subscribers:
            assert subscriber.subscribed.wait(30)
        services = by_name["SPP update"]
        readers = [watch_services(hub, stack, services)]
        eventually("snapshots have come", lambda: len(services.got) == 2)
        services.got.clear()
        types: dict[int, int] = {}
        if (matches := by_name.get("SDK push")) is not None:
            readers.append(watch_matches(hub, stack, matches, types))
            eventually("the subscription is there", lambda: status(hub)["subscribers"]["subscriptions"] == 1)
        sent = list(send_all(hub, stack))
        last = head(hub)
        for message in follow:
            by_name["link `read`, `follow`"].got.append(plain(message))
            if message.seq == last:
                break
        log = [message for rows in link.read(begin) for message in messages(rows)]
        seen.append(Seen(by_name["link `read`, `follow`"].way, [plain(message) for message in log]))
        by_name["sealed segment, Spark source"].got += sealed(hub, begin)
        for each in seen:
            wanted = len([1 for message in log if expected(each.way, message) is not None])
            eventually(f"all have come by {each.way.name}", lambda e=each, w=wanted: len(e.got) >= w)  # type: ignore[misc]
        for reader in readers:
            assert reader.failure is None
        yield Bridge(hub, sent, log, seen, types)


def send_all(hub: HubProcess, stack: ExitStack) -> Iterator[Sent]:
    """Send each case by each way that is open and can carry it; one at a time, so that the log's order is known."""
    for way in WAYS_IN:
        if way.door not in hub.doors:
            continue
        sender = SENDERS[way.name](hub, stack)
        for case, said in CASES.items():
            sayable = {name: said[name] for name in said if way.fields[name].by is By.PUBLISHER}
            if way.name == "SPP PUBLISH":
                if case == "no object for a json service":
                    continue  # refused there and then, and not in the log
                sayable.setdefault("topic", LAST)
            if len(said["payload"]) > way.most - (100 if way.door == "publisher" else 0):
                continue
            before = head(hub)
            sender.send(sayable)
            eventually(f"{case!r} by {way.name} is in the log", lambda before=before: head(hub) > before)  # type: ignore[misc]
            yield Sent(way, case, {**sayable, **sender.constants}, sender.peer)


def sealed(hub: HubProcess, begin: int) -> list[dict[str, Any]]:
    """What any Arrow reader finds in the sealed files."""
    ask = urllib.request.Request(f"http://{hub.doors['http']}/api/log/seal", b"", {"X-Headrace": "1"})
    urllib.request.urlopen(ask, timeout=60).close()
    rows = []
    for path in sorted(Path(hub.data, "log").glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        rows += [plain(message) for batch in table.to_batches() for message in messages(batch)]
    return [row for row in rows if row["seq"] >= begin]


def expected(way: WayOut, message: Message) -> dict[str, Any] | None:
    """What is seen of a message, if it is seen: what the table says, and which messages are a door's at all."""
    if way.door == "spp":
        if message.topic not in (JSON, LAST):
            return None
        if message.topic == JSON and not isinstance(json.loads(message.payload), dict):
            return None
    return sees(way, message)


def test_the_ways_that_are_always_there_were_tried(bridge: Bridge) -> None:
    tried = {sent.way.name for sent in bridge.sent}
    assert tried >= set(SENDERS) - {"attribute publish"}
    assert ("attribute publish" in tried) == ("publisher" in bridge.hub.doors)
    assert {way.name for way in WAYS_IN} == set(SENDERS)
    missing = {way.name for way in WAYS_OUT} - {each.way.name for each in bridge.seen}
    assert missing == (set() if "sdk" in bridge.hub.doors else {"SDK push"})


def test_what_enters_is_what_the_table_says(bridge: Bridge) -> None:
    assert len(bridge.log) == len(bridge.sent)
    node = status(bridge.hub)["node"]["id"]
    for sent, message in zip(bridge.sent, bridge.log, strict=True):
        fields = plain(message)
        assert message.node == node
        for name, value in enters(sent.way, sent.said, sent.peer).items():
            assert fields[name] == value, f"{name} of {sent}"
    times = [message.time for message in bridge.log]
    assert times == sorted(times)
    # The services and the subscription, which are log entries, have taken no numbers.
    assert [message.seq for message in bridge.log] == list(range(1, len(bridge.sent) + 1))


@pytest.mark.parametrize("name", [way.name for way in WAYS_OUT])
def test_what_is_seen_is_what_the_table_says(bridge: Bridge, name: str) -> None:
    by_seq = {message.seq: str(sent) for sent, message in zip(bridge.sent, bridge.log, strict=True)}
    for each in bridge.seen:
        if each.way.name != name:
            continue
        wanted = [(m.seq, fields) for m in bridge.log if (fields := expected(each.way, m)) is not None]
        for (seq, fields), got in zip(wanted, each.got, strict=False):
            what = by_seq[seq]
            assert set(got) == set(fields), f"{what} through {name}"
            for field_name, value in fields.items():
                assert got[field_name] == value, f"{field_name} of {what} through {name}"
        assert len(each.got) == len(wanted)


def test_payloads_that_are_no_text_are_marked(bridge: Bridge) -> None:
    for message in bridge.log:
        if bridge.types:
            assert bridge.types[message.seq] == text_of(message.payload)[1]


def test_services_took_what_was_theirs(bridge: Bridge) -> None:
    with connect_sync(f"tube://{bridge.hub.doors['tube_tcp']}") as link:
        assert json.loads(link.service(JSON)) == {"speed": 61}
        newest = [message for message in bridge.log if message.topic == LAST][-1]
        assert link.service(LAST) == newest.payload
        # An unknown topic became a service when it came by SPP, and by no other door.
        assert [each["id"] for each in link.services()] == [JSON, LAST, "bridge/nobody"]
    refused = sum(
        sent.case == "no object for a json service" and "topic" in sent.said for sent in bridge.sent
    )
    assert counter(bridge.hub, "refused", "services/malformed") == refused


def test_hollow_messages_are_counted(bridge: Bridge) -> None:
    for transport, most in (("udp", 65_498), ("tcp", 65_526)):
        long = sum(len(message.payload) > most for message in bridge.log)
        assert counter(bridge.hub, "hollow", f"fyrehose/{transport}") == long > 0


def test_numbers_and_strings_are_told_apart(bridge: Bridge) -> None:
    """``digits`` is a string that looks like a number: a range does not find it, and equality finds no number."""
    with connect_sync(f"tube://{bridge.hub.doors['tube_tcp']}") as link:

        def found(**where: Any) -> int:
            return sum(rows.num_rows for rows in link.read(1, where=where))

        with_attributes = sum("attributes" in sent.said for sent in bridge.sent)
        assert with_attributes >= 2
        assert found(digits={"use": 1, "strval": "5"}) == with_attributes
        assert found(digits={"use": 2, "low": 0, "high": 10}) == 0
        assert found(five={"use": 2, "low": 5, "high": 5}) == with_attributes
        assert found(five={"use": 1, "strval": "5"}) == 0
