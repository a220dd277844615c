"""Cases for SPP.

The document gives a client no way to make or change a service. So the cases subscribe to a service of the kit's own,
which they create by Headrace's PUBLISH; a server without that message is tested with the first service it offers, and
the cases that need a change are not run. The kit's service is the only one it changes.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Final

from headrace.conform.case import Cases, MismatchError, NotRunError, shown
from headrace.conform.probe import Probe, Stream
from headrace.wire.vectors import golden

CASES: Final = Cases()
GOLDEN: Final = golden("spp")

OFFER: Final = 1
INFO: Final = 16
SERVICE: Final = "headrace-conform"
"""The kit's own service: always the same, so that running the kit often leaves one service behind, not many."""

OUR_SECONDS: Final = 0.5
"""How long a server that knows PUBLISH may take to offer what it was sent; others are not waited for longer."""

MAX_LENGTH: Final = 8 << 20
LONG: Final = 1 << 20
"""An ignored packet of this length is longer than most buffers, and still little traffic."""


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet that came."""

    msgtype: int
    data: bytes

    @property
    def strings(self) -> list[bytes]:
        """The STRINGs that fill the packet."""
        found, at = [], 0
        while at < len(self.data):
            length = int.from_bytes(self.data[at : at + 4])
            if at + 4 + length > len(self.data):
                raise MismatchError(f"STRINGs that fill a packet of type {self.msgtype}", shown(self.data))
            found.append(self.data[at + 4 : at + 4 + length])
            at += 4 + length
        return found


def packet(msgtype: int, data: bytes) -> bytes:
    """Return a packet."""
    return msgtype.to_bytes(4) + len(data).to_bytes(4) + data


def string(text: bytes) -> bytes:
    """Return a STRING."""
    return len(text).to_bytes(4) + text


def about(title: str, service: str) -> bytes:
    """Return a golden packet for another service than ``load``."""
    wire = GOLDEN[title]
    return packet(int.from_bytes(wire[:4]), wire[8:].replace(string(b"load"), string(service.encode()), 1))


def publish(change: dict[str, object]) -> bytes:
    """Return the golden PUBLISH with another change, for the kit's own service."""
    msgtype = int.from_bytes(GOLDEN["Publish load"][:4])
    return packet(msgtype, string(SERVICE.encode()) + string(json.dumps(change).encode()))


class Client:
    """A connection that reads packets, and knows which service to subscribe to."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.stream: Stream = probe.stream()

    def packet(self, expected: str) -> Packet:
        """Return the next packet; no server sends one that a client could not hold."""
        head = self.stream.take(8, expected)
        length = int.from_bytes(head[4:])
        if length > MAX_LENGTH:
            raise MismatchError(expected, f"a packet of {length} bytes: {shown(head)}")
        return Packet(int.from_bytes(head[:4]), self.stream.take(length, expected))

    def packet_in_time(self, expected: str) -> Packet:
        """Return the next packet; raise :class:`TimeoutError` if none comes."""
        try:
            return self.packet(expected)
        except MismatchError:
            self.probe.seconds_left()
            raise

    def info(self, service: str, expected: str) -> bytes:
        """Return the message of the next subscription info, which must be about ``service``, past offers."""
        while True:
            came = self.packet(expected)
            if came.msgtype == INFO:
                fields = came.strings
                if len(fields) != 2 or fields[0] != service.encode():
                    raise MismatchError(expected, shown(came.data))
                return fields[1]

    def subscribe(self, service: str) -> bytes:
        """Subscribe; return the whole object."""
        self.stream.send(about("Subscribe load", service))
        return self.info(service, f"a subscription info (16) of {service!r} with the whole object")


def own_service(probe: Probe) -> str:
    """Make sure that the kit's own service is offered; return its id."""
    if not _created(probe):
        raise NotRunError("the server has no PUBLISH (0x48520002), so the kit cannot change a service")
    return SERVICE


def any_service(probe: Probe) -> str:
    """Return the kit's own service, or else the first that the server offers."""
    if _created(probe):
        return SERVICE
    client = Client(probe)
    with probe.at_most(OUR_SECONDS), contextlib.suppress(MismatchError):
        while (came := client.packet("an offer")).msgtype != OFFER:
            pass
        return came.strings[0].decode()
    raise NotRunError("the server offers no service, and has no PUBLISH (0x48520002) to create one")


def _created(probe: Probe) -> bool:
    """Return whether the kit's own service is offered, once it was published to."""
    client = Client(probe)
    with probe.at_most(min(OUR_SECONDS, probe.target.patience / 2)), contextlib.suppress(MismatchError):
        client.stream.send(publish({"by": "headrace conform"}))
        while True:
            came = client.packet("offers")
            if came.msgtype == OFFER and came.strings == [SERVICE.encode()]:
                return True
    return False


@CASES.document('from the server: "1: service offer. A new service is offered"')
def offers(probe: Probe) -> None:
    """Every new connection is offered the services there are, each offer exactly one STRING."""
    service = any_service(probe)
    client = Client(probe)
    while True:
        came = client.packet(f"an offer (1) of {service!r}")
        if came.msgtype == OFFER:
            if len(came.strings) != 1:
                raise MismatchError("an offer with one STRING", shown(came.data))
            if came.strings[0] == service.encode():
                break


@CASES.document('"When a client subscribes, it receives a serialized version of the service (object)"')
def subscribing(probe: Probe) -> None:
    """A subscriber gets the whole object at once, as two STRINGs: the service id and the message."""
    service = any_service(probe)
    Client(probe).subscribe(service)


@CASES.document(
    '"and each time the server-side object is updated, it sends to it(s) clients serialized info about what changed'
    ' in it."'
)
def changes(probe: Probe) -> None:
    """Each change of the object reaches its subscribers, in order."""
    service = own_service(probe)
    one, two = Client(probe), Client(probe)
    for client in (one, two):
        client.subscribe(service)
    for count in range(3):
        one.stream.send(publish({"run": probe.token, "count": count}))
    for client in (one, two):
        for count in range(3):
            expected = f'the change {{"run": "{probe.token}", "count": {count}}}'
            message = client.info(service, expected)
            if json.loads(message) != {"run": probe.token, "count": count}:
                raise MismatchError(expected, message.decode(errors="replace"))


@CASES.reading("all patches merged")
def snapshot(probe: Probe) -> None:
    """A new subscriber of a json service gets the object with all changes merged in."""
    service = own_service(probe)
    writer = Client(probe)
    writer.subscribe(service)
    writer.stream.send(publish({"run": probe.token}))
    writer.stream.send(publish({"merged": probe.token}))
    for _ in range(2):
        writer.info(service, "its own changes")
    whole = Client(probe).subscribe(service)
    if not {"run": probe.token, "merged": probe.token}.items() <= json.loads(whole).items():
        raise MismatchError(f'both members, "run" and "merged", with {probe.token!r}', whole.decode())


@CASES.document('"A client can unsubscribe at any time."')
def unsubscribing(probe: Probe) -> None:
    """After an unsubscribe, changes no longer come."""
    service = own_service(probe)
    leaver, stayer = Client(probe), Client(probe)
    for client in (leaver, stayer):
        client.subscribe(service)
    leaver.stream.send(about("Unsubscribe load", service))
    # What the same connection sends after it is handled after it.
    leaver.stream.send(publish({"gone": probe.token}))
    stayer.info(service, "the change, where nobody unsubscribed")
    whole = leaver.subscribe(service)
    if "by" not in json.loads(whole):
        raise MismatchError(
            "no change between unsubscribe and subscribe, then the whole object", whole.decode()
        )


@CASES.reading("subscribing twice sends the object afresh")
def subscribing_twice(probe: Probe) -> None:
    """A second subscribe brings the whole object again, and later changes come once."""
    service = own_service(probe)
    client = Client(probe)
    for _ in range(2):
        client.subscribe(service)
    for label in ("first", "second"):
        client.stream.send(publish({"run": label + probe.token}))
    for label in ("first", "second"):
        expected = f"the {label} change, once"
        message = client.info(service, expected)
        if json.loads(message) != {"run": label + probe.token}:
            raise MismatchError(expected, message.decode(errors="replace"))


@CASES.reading("an id that is not offered is counted and ignored")
def unknown_service(probe: Probe) -> None:
    """Subscribing to a service that was never offered brings nothing and does no harm."""
    service = any_service(probe)
    client = Client(probe)
    client.stream.send(about("Subscribe load", f"no such service {probe.token}"))
    client.subscribe(service)


@CASES.document(
    'from the server and the client: "0: Test value. messages of this type should be ignored and not used in real'
    ' cases."'
)
def test_values(probe: Probe) -> None:
    """Test values, empty or not, are ignored, and the next packet is served."""
    service = any_service(probe)
    client = Client(probe)
    client.stream.send(GOLDEN["test value"] + GOLDEN["empty test value"])
    client.subscribe(service)


@CASES.document('from the client: "3-31: reserved"')
def reserved_types(probe: Probe) -> None:
    """Packets of the reserved types 3 to 31 are ignored, and the next packet is served."""
    service = any_service(probe)
    client = Client(probe)
    for msgtype in range(3, 32):
        client.stream.send(packet(msgtype, b"\xff"))
    client.stream.send(GOLDEN["16 from a client"] + GOLDEN["reserved 17 from a server"] + GOLDEN["Info load"])
    client.subscribe(service)


@CASES.document('from the server and the client: "32- : Other messages, should be ignored by the protocol"')
def other_messages(probe: Probe) -> None:
    """Messages of other applications, 32 and up, are ignored whatever they hold, and the next packet is served."""
    service = any_service(probe)
    client = Client(probe)
    for title in (
        "32 from a client",
        "32 from a server",
        "33 with a user name and a password",
        "type 4294967295",
    ):
        client.stream.send(GOLDEN[title])
    client.stream.send(packet(34, b"") + packet(0x7FFFFFFF, b"\xff" * 100))
    client.subscribe(service)


@CASES.document('from the server and the client: "32- : Other messages, should be ignored by the protocol"')
def passwords(probe: Probe) -> None:
    """A user name and a password in message 33 are shown to nobody."""
    service = any_service(probe)
    watcher, client = Client(probe), Client(probe)
    watcher.subscribe(service)
    user, secret = f"user-{probe.token}".encode(), f"secret-{probe.token}".encode()
    client.stream.send(packet(33, string(user) + string(secret)))
    # A change that is made after it is seen after it; where there are no changes, what comes in a moment counts.
    client.stream.send(publish({"after": probe.token}))
    expected = "nothing about message 33"
    with probe.at_most(OUR_SECONDS), contextlib.suppress(TimeoutError):
        while True:
            came = watcher.packet_in_time(expected)
            if secret in came.data or user in came.data:
                raise MismatchError(expected, f"type {came.msgtype}: {shown(came.data)}")
            if came.msgtype == INFO and probe.token.encode() in came.data:
                break
    client.stream.send(about("Subscribe load", user.decode()) + about("Subscribe load", service))
    client.info(service, f"no object for the user name, then a subscription info of {service!r}")


@CASES.reading("length of a packet that is [ignored](#what-is-ignored)")
def long_message(probe: Probe) -> None:
    """An ignored message of 1 MiB is skipped, not refused."""
    service = any_service(probe)
    client = Client(probe)
    client.stream.send(packet(40, bytes(LONG)))
    client.subscribe(service)


@CASES.document(
    '"Data sent between server and client is sent on a TCP channel (server port 3002), and separated in packages."'
)
def bytewise(probe: Probe) -> None:
    """A subscribe that arrives byte by byte is served."""
    service = any_service(probe)
    client = Client(probe)
    client.stream.send_bytewise(about("Subscribe load", service))
    client.info(service, f"a subscription info (16) of {service!r}")


@CASES.document('"There is a single server that can support multiple clients."')
def many_clients(probe: Probe) -> None:
    """Eight clients are subscribed at once."""
    service = any_service(probe)
    clients = [Client(probe) for _ in range(8)]
    for client in clients:
        client.stream.send(about("Subscribe load", service))
    for client in clients:
        client.info(service, f"a subscription info (16) of {service!r}")


def _refused(probe: Probe, wire: bytes, why: str) -> None:
    client = Client(probe)
    client.stream.send(wire)
    client.stream.expect_end(why)


@CASES.reading("exactly one STRING; anything else is refused")
def left_over(probe: Probe) -> None:
    """A subscribe or unsubscribe with bytes after its STRING closes the connection."""
    for msgtype in (1, 2):
        _refused(probe, packet(msgtype, string(b"x") + b"\x00"), "a byte is left over")


@CASES.reading("a STRING that runs past its packet")
def overrun(probe: Probe) -> None:
    """A STRING that runs past its packet closes the connection."""
    for msgtype in (1, 2):
        _refused(probe, packet(msgtype, b"\x00\x00\x00\x09load"), "the STRING has 9 bytes, the packet 4")


@CASES.reading("a length over the limit, in a packet that is read;")
def too_long(probe: Probe) -> None:
    """A subscribe whose length is 4 GiB closes the connection at once."""
    _refused(probe, b"\x00\x00\x00\x01\xff\xff\xff\xff", "a subscribe of 4 GiB")


@CASES.reading("a service id over 1,024 bytes or not in UTF-8;")
def not_text(probe: Probe) -> None:
    """A service id that is not UTF-8 closes the connection."""
    _refused(probe, packet(1, string(b"\xff\xfe")), "the id is not UTF-8")


@CASES.reading("It refuses an AUTH whose text is not the SDK's JSON object.")
def bad_auth(probe: Probe) -> None:
    """The golden AUTH, which lacks a client id, is answered with the golden refusal, and the connection is closed."""
    client = Client(probe)
    client.stream.send(GOLDEN["Auth"])
    answer = GOLDEN["Authenticated refused"]
    msgtype = int.from_bytes(answer[:4])
    while (came := client.packet(f"the refusal {shown(answer)}")).msgtype != msgtype:
        pass
    if came.data != answer[8:]:
        raise MismatchError(f"the refusal {shown(answer)}", shown(came.data))
    client.stream.expect_end("AUTH was refused")
