"""Cases for fyrehose, over UDP as the document has it and over TCP as our page adds it.

Messages of the kit carry a token, so that a server with other traffic can be tested. What a case pushes is delivered to
every subscriber of the server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.conform.case import Cases, MismatchError, NotRunError, shown
from headrace.conform.probe import Datagrams, Probe, Stream
from headrace.wire.vectors import golden

CASES: Final = Cases()
GOLDEN: Final = golden("fyrehose")

DELIVER: Final = 0x01
PUSH: Final = 0x02
REQUEST: Final = 0x04
KEEPALIVE_ACK: Final = 0x20
CHALLENGE: Final = 0x40
FIXED: Final = {KEEPALIVE_ACK: 7, 0x08: 19}
"""Whole lengths of the packets of a fixed length that a backbone sends: KEEPALIVE-ACK and FORWARD."""

MAX_DATA: Final = 65_526
MAX_DATAGRAM_DATA: Final = 65_498

Address = tuple[str, int]

NOWHERE: Final = ("0.0.0.0", 0)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A DELIVER that came."""

    sequence: int
    data: bytes


def keepalive(address: Address, title: str = "KEEPALIVE") -> bytes:
    """Return the golden KEEPALIVE with another ADDR and PORT."""
    return _addressed(title, address)


def request(address: Address, first: int, last: int) -> bytes:
    """Return the golden REQUEST for other numbers."""
    return _addressed("REQUEST 7 to 9", address)[:7] + first.to_bytes(6) + last.to_bytes(6)


def push(data: bytes) -> bytes:
    """Return a PUSH."""
    return bytes([PUSH]) + len(data).to_bytes(2) + data


def _addressed(title: str, address: Address) -> bytes:
    wire = GOLDEN[title]
    return wire[:1] + socket.inet_aton(address[0]) + address[1].to_bytes(2) + wire[7:]


# Over UDP.


class Line:
    """A UDP socket toward the backbone. From another machine, a hub of Headrace wants proof that it receives."""

    def __init__(self, probe: Probe) -> None:
        self._datagrams: Datagrams = probe.datagrams()
        self.local: Address = self._datagrams.local
        self.send = self._datagrams.send

    def take(self, expected: str) -> bytes:
        """Return the next datagram that is no CHALLENGE; those are answered."""
        while (came := self._datagrams.take(expected))[:1] == bytes([CHALLENGE]) and len(came) == 9:
            self.send(GOLDEN["PROOF"][:1] + came[1:])
        return came


class Subscriber:
    """A UDP client that has sent a KEEPALIVE and got its ACK."""

    def __init__(self, probe: Probe) -> None:
        self.line = Line(probe)
        self.address: Address = self.line.local
        self.acknowledged(keepalive(self.address))

    def acknowledged(self, sent: bytes) -> None:
        """Send a KEEPALIVE and wait for its ACK, past whatever is delivered meanwhile."""
        self.line.send(sent)
        ack = bytes([KEEPALIVE_ACK]) + sent[1:]
        expected = f"a KEEPALIVE-ACK with the same ADDR and PORT: {shown(ack)}"
        while (came := self.line.take(expected)) != ack:
            if came[:1] != bytes([DELIVER]):
                raise MismatchError(expected, shown(came))

    def deliveries(self, expected: str) -> Iterator[Delivery]:
        """Yield what is delivered, in the order of arrival."""
        while True:
            came = self.line.take(expected)
            if came[:1] == bytes([DELIVER]):
                yield from _deliveries(came, expected)
            elif came[:1] != bytes([KEEPALIVE_ACK]) or len(came) != 7:
                raise MismatchError(expected, shown(came))

    def delivered(self, data: bytes) -> int:
        """Wait for a message; return its number."""
        expected = f"a DELIVER with the data {shown(data)}"
        return next(each.sequence for each in self.deliveries(expected) if each.data == data)


def _deliveries(datagram: bytes, expected: str) -> Iterator[Delivery]:
    at = 0
    while at < len(datagram):
        length = int.from_bytes(datagram[at + 1 : at + 3])
        end = at + 9 + length
        if datagram[at] != DELIVER or len(datagram) < at + 9 or end > len(datagram):
            raise MismatchError(f"{expected}, and a datagram of whole DELIVERs", shown(datagram))
        yield Delivery(int.from_bytes(datagram[at + 3 : at + 9]), datagram[at + 9 : end])
        at = end


@CASES.document(
    'rule 1: "the backbone has to respond to every KEEPALIVE with a KEEPALIVE-ACK"',
    "udp",
)
def udp_keepalive(probe: Probe) -> None:
    """Each of three KEEPALIVEs in datagrams is answered with a KEEPALIVE-ACK that has its ADDR and PORT."""
    subscriber = Subscriber(probe)
    for _ in range(2):
        subscriber.acknowledged(keepalive(subscriber.address))


@CASES.document("the example for 127.0.0.1:2323 begins `00000010`", "udp")
def udp_example(probe: Probe) -> None:
    """A KEEPALIVE whose TYPE is 0x02, as in the document's example, is answered."""
    line = Line(probe)
    sent = keepalive(line.local, "KEEPALIVE as the document's example has it")
    line.send(sent)
    ack = bytes([KEEPALIVE_ACK]) + sent[1:]
    came = line.take(f"a KEEPALIVE-ACK: {shown(ack)}")
    if came != ack:
        raise MismatchError(f"a KEEPALIVE-ACK: {shown(ack)}", shown(came))


@CASES.reading("ADDR 0.0.0.0 and PORT 0 stand for the datagram's own source", "udp")
def udp_own_source(probe: Probe) -> None:
    """A KEEPALIVE with ADDR 0.0.0.0 and PORT 0 subscribes the datagram's source."""
    line = Line(probe)
    sent = GOLDEN["KEEPALIVE from wherever it comes"]
    line.send(sent)
    while (came := line.take("a KEEPALIVE-ACK"))[:1] == bytes([DELIVER]):
        pass
    if came != bytes([KEEPALIVE_ACK]) + sent[1:]:
        raise MismatchError("a KEEPALIVE-ACK with ADDR 0.0.0.0 and PORT 0", shown(came))
    line.send(push(probe.marker()))
    while probe.marker() not in line.take("a DELIVER of the PUSH, to the datagram's source"):
        pass


@CASES.document("0x2 PUSH: LENGTH (2), DATA (0-65526)", "udp")
def udp_push(probe: Probe) -> None:
    """PUSHes in datagrams, an empty one among them, are delivered with their data and growing numbers."""
    subscriber = Subscriber(probe)
    begin, end = probe.marker("begin"), probe.marker("end")
    for wire in (push(begin), GOLDEN["PUSH hello"], GOLDEN["PUSH of nothing"], push(end)):
        subscriber.line.send(wire)
    expected = "DELIVERs of all four PUSHes"
    found: dict[bytes, int] = {}
    for each in subscriber.deliveries(expected):
        if begin in found or each.data == begin:
            found[each.data] = each.sequence
        if found.keys() >= {begin, b"hello", b"", end}:
            break
    if not 0 < found[begin] < found[end]:
        raise MismatchError("numbers that begin at 1 and grow", f"{found[begin]}, and then {found[end]}")


@CASES.document("BASE PACKET: TYPE (1), DATA (0-65534)", "udp")
def udp_longest(probe: Probe) -> None:
    """The longest message that fits a datagram of UDP is delivered whole."""
    if not probe.target.on_loopback:
        raise NotRunError("datagrams of 65,507 bytes pass for certain only on this machine's loopback")
    subscriber = Subscriber(probe)
    data = probe.marker().ljust(MAX_DATAGRAM_DATA, b".")
    subscriber.line.send(push(data))
    subscriber.delivered(data)


@CASES.document(
    'rule 2: "if not, it may re-request the missing message(s) with a REQUEST MESSAGE"',
    "udp",
)
def udp_request(probe: Probe) -> None:
    """A message that is requested again is delivered again, with the same number and data."""
    subscriber = Subscriber(probe)
    subscriber.line.send(push(probe.marker()))
    sequence = subscriber.delivered(probe.marker())
    subscriber.line.send(request(subscriber.address, sequence, sequence))
    for each in subscriber.deliveries(f"a second DELIVER of message {sequence}"):
        if each.sequence == sequence:
            if each.data != probe.marker():
                raise MismatchError(f"message {sequence} as it was before", shown(each.data))
            break


@CASES.document("0x4 REQUEST: ADDR (4), PORT (2), FROM_SEQ (6), TO_SEQ (6)", "udp")
def udp_request_range(probe: Probe) -> None:
    """A requested range is delivered with both of its ends."""
    subscriber = Subscriber(probe)
    for label in ("one", "two", "three"):
        subscriber.line.send(push(probe.marker(label)))
    first = subscriber.delivered(probe.marker("one"))
    last = subscriber.delivered(probe.marker("three"))
    subscriber.line.send(request(subscriber.address, first, last))
    missing = set(range(first, last + 1))
    for each in subscriber.deliveries(f"DELIVERs of messages {first} to {last}"):
        missing.discard(each.sequence)
        if not missing:
            break


@CASES.reading("On UDP a datagram is one packet, or several PUSHes or several DELIVERs back to back.", "udp")
def udp_two_pushes(probe: Probe) -> None:
    """Both PUSHes of one datagram are delivered."""
    subscriber = Subscriber(probe)
    subscriber.line.send(GOLDEN["PUSH twice in a datagram"])
    one, two = probe.marker("one"), probe.marker("two")
    subscriber.line.send(push(one) + push(two))
    missing = {one, two}
    for each in subscriber.deliveries("DELIVERs of both PUSHes"):
        missing.discard(each.data)
        if not missing:
            break


@CASES.reading(
    "A datagram is taken whole or not at all: if anything in it is wrong, none of its packets counts.",
    "udp",
)
def udp_all_or_nothing(probe: Probe) -> None:
    """A PUSH with garbage after it in its datagram is not delivered, and the next one is."""
    subscriber = Subscriber(probe)
    subscriber.line.send(push(probe.marker("bad")) + b"\xff")
    subscriber.line.send(push(probe.marker("good")))
    for each in subscriber.deliveries("a DELIVER of the good PUSH"):
        if each.data == probe.marker("bad"):
            raise MismatchError("nothing of a datagram with garbage in it", "a DELIVER of its PUSH")
        if each.data == probe.marker("good"):
            break


@CASES.reading("Over UDP the datagram is dropped whole.", "udp")
def udp_hostile(probe: Probe) -> None:
    """Datagrams that are not a client's packets change nothing: the next KEEPALIVE and PUSH are served."""
    subscriber = Subscriber(probe)
    backwards = request(subscriber.address, 9, 7)
    packets = (
        "DELIVER hello",
        "DELIVER hollow",
        "DELIVER of the last number",
        "FORWARD 7 to 9",
        "KEEPALIVE-ACK",
        "CHALLENGE",
        "PROOF",
    )
    cut = GOLDEN["PUSH hello"][:-1]
    for wire in (
        *(GOLDEN[title] for title in packets),
        backwards,
        cut,
        b"\xff",
        b"\x10",
        b"\x02",
        b"\x04\x00",
        b"",
    ):
        subscriber.line.send(wire)
    subscriber.acknowledged(keepalive(subscriber.address))
    subscriber.line.send(push(probe.marker()))
    subscriber.delivered(probe.marker())


@CASES.reading("A KEEPALIVE whose ADDR is refused is acknowledged all the same.", "udp")
def udp_foreign_address(probe: Probe) -> None:
    """A KEEPALIVE that states an address of somebody else is acknowledged, and its sender is not subscribed by it."""
    subscriber = Subscriber(probe)
    line = Line(probe)
    sent = keepalive(("192.0.2.1", 9))
    line.send(sent)
    came = line.take("a KEEPALIVE-ACK")
    if came != bytes([KEEPALIVE_ACK]) + sent[1:]:
        raise MismatchError(f"a KEEPALIVE-ACK: {shown(bytes([KEEPALIVE_ACK]) + sent[1:])}", shown(came))
    subscriber.line.send(push(probe.marker()))
    subscriber.delivered(probe.marker())
    line.send(sent)
    came = line.take("another KEEPALIVE-ACK")
    if came[:1] == bytes([DELIVER]):
        raise MismatchError("no DELIVER where nobody subscribed", shown(came))


# Over TCP.


class Connection:
    """A TCP client; it reads packets one after the other."""

    def __init__(self, probe: Probe, *, subscribed: bool = True) -> None:
        self.stream: Stream = probe.stream()
        if subscribed:
            self.stream.send(GOLDEN["KEEPALIVE"])
            self.stream.expect(GOLDEN["KEEPALIVE-ACK"], "a KEEPALIVE-ACK before any DELIVER")

    def delivery(self, expected: str) -> Delivery:
        """Return the next DELIVER, past acknowledgements."""
        while True:
            kind = self.stream.take(1, expected)[0]
            if kind == DELIVER:
                length = int.from_bytes(self.stream.take(2, expected))
                sequence = int.from_bytes(self.stream.take(6, expected))
                return Delivery(sequence, self.stream.take(length, expected))
            if kind != KEEPALIVE_ACK:
                raise MismatchError(
                    f"{expected}, in packets that a backbone sends over TCP", f"TYPE {kind:#04x}"
                )
            self.stream.take(FIXED[kind] - 1, expected)

    def delivered(self, data: bytes) -> int:
        """Wait for a message; return its number."""
        expected = f"a DELIVER with the data {shown(data)}"
        while (each := self.delivery(expected)).data != data:
            pass
        return each.sequence

    def have_nine(self, probe: Probe) -> int:
        """Push until messages 7 to 9 exist; return the newest number."""
        for count in range(9):
            self.stream.send(push(probe.marker(f"nine {count}")))
        return self.delivered(probe.marker("nine 8"))


@CASES.document(
    'rule 1: "the backbone has to respond to every KEEPALIVE with a KEEPALIVE-ACK"',
    "tcp",
)
def tcp_keepalive(probe: Probe) -> None:
    """The golden KEEPALIVE is answered with the golden KEEPALIVE-ACK, each time, byte for byte."""
    connection = Connection(probe)
    for _ in range(2):
        connection.stream.send(GOLDEN["KEEPALIVE"])
    for _ in range(2):
        kind = connection.stream.take(1, "a KEEPALIVE-ACK")
        while kind == bytes([DELIVER]):
            length = int.from_bytes(connection.stream.take(2, "a DELIVER"))
            connection.stream.take(6 + length, "a DELIVER")
            kind = connection.stream.take(1, "a KEEPALIVE-ACK")
        ack = kind + connection.stream.take(6, "a KEEPALIVE-ACK")
        if ack != GOLDEN["KEEPALIVE-ACK"]:
            raise MismatchError(f"a KEEPALIVE-ACK: {shown(GOLDEN['KEEPALIVE-ACK'])}", shown(ack))


@CASES.document('"everything is big endian."', "tcp")
def tcp_push(probe: Probe) -> None:
    """PUSHes, golden ones among them, are delivered in order, and their numbers grow by 1 without holes."""
    connection = Connection(probe)
    begin, end = probe.marker("begin"), probe.marker("end")
    connection.stream.send(push(begin) + GOLDEN["PUSH hello"] + GOLDEN["PUSH of nothing"] + push(end))
    before = connection.delivered(begin)
    came: list[Delivery] = []
    while not came or came[-1].data != end:
        came.append(connection.delivery("DELIVERs of all four PUSHes"))
        if came[-1].sequence != before + len(came):
            raise MismatchError(f"number {before + len(came)}", f"number {came[-1].sequence}")
    data = [each.data for each in came]
    if b"hello" not in data or b"" not in data[data.index(b"hello") :]:
        raise MismatchError(
            '"hello", an empty message and the last one, in this order', shown(b" ".join(data))
        )


@CASES.reading("On TCP packets stand back to back, in any chunks.", "tcp")
def tcp_bytewise(probe: Probe) -> None:
    """A KEEPALIVE and a PUSH that arrive byte by byte are served."""
    connection = Connection(probe, subscribed=False)
    connection.stream.send_bytewise(GOLDEN["KEEPALIVE"] + push(probe.marker()))
    connection.stream.expect(GOLDEN["KEEPALIVE-ACK"], "a KEEPALIVE-ACK")
    connection.delivered(probe.marker())


@CASES.reading("Any client may PUSH, whether or not it has ever sent a KEEPALIVE.", "tcp")
def tcp_push_alone(probe: Probe) -> None:
    """A PUSH of a connection that never sent a KEEPALIVE reaches the subscribers."""
    subscriber = Connection(probe)
    Connection(probe, subscribed=False).stream.send(push(probe.marker()))
    subscriber.delivered(probe.marker())


@CASES.document("0x1 DELIVER: LENGTH (2), SEQUENCE (6), DATA (0-65526)", "tcp")
def tcp_longest(probe: Probe) -> None:
    """The longest message there is, 65,526 bytes, is delivered whole."""
    connection = Connection(probe)
    data = probe.marker().ljust(MAX_DATA, b".")
    connection.stream.send(push(data))
    connection.delivered(data)


@CASES.reading("On TCP, where packets have no boundaries, 0x02 is always PUSH.", "tcp")
def tcp_example_is_push(probe: Probe) -> None:
    """The bytes of the document's example begin a PUSH of 32,512 bytes."""
    connection = Connection(probe)
    example = GOLDEN["KEEPALIVE as the document's example has it"]
    data = (example[3:] + probe.marker()).ljust(int.from_bytes(example[1:3]), b".")
    connection.stream.send(example + data[4:])
    connection.delivered(data)


@CASES.document("0x4 REQUEST: ADDR (4), PORT (2), FROM_SEQ (6), TO_SEQ (6)", "tcp")
def tcp_request(probe: Probe) -> None:
    """A requested range comes back over the connection with both of its ends."""
    connection = Connection(probe)
    connection.stream.send(push(probe.marker("one")) + push(probe.marker("two")))
    first = connection.delivered(probe.marker("one"))
    last = connection.delivered(probe.marker("two"))
    connection.stream.send(request(connection.stream.local, first, last))
    missing = set(range(first, last + 1))
    while missing:
        missing.discard(connection.delivery(f"DELIVERs of messages {first} to {last}").sequence)


@CASES.reading("FROM_SEQ 0 means 1, the first message there ever was.", "tcp")
def tcp_request_from_zero(probe: Probe) -> None:
    """The golden REQUESTs bring messages 1 to 9 and 7 to 9, if the server still has its first messages."""
    connection = Connection(probe)
    head = connection.have_nine(probe)
    for title, wanted in (("REQUEST from 0", range(1, 10)), ("REQUEST 7 to 9", range(7, 10))):
        connection.stream.send(GOLDEN[title])
        missing = set(wanted)
        try:
            while missing:
                missing.discard(connection.delivery(f"DELIVERs of messages {wanted[0]} to 9").sequence)
        except MismatchError:
            if head > 10_000:
                raise NotRunError("the server may have dropped its first messages by now") from None
            raise


@CASES.reading("a DELIVER, FORWARD, KEEPALIVE-ACK or CHALLENGE that comes to the hub", "tcp")
def tcp_backbone_packets(probe: Probe) -> None:
    """A connection that sends a DELIVER, a FORWARD, a KEEPALIVE-ACK, a CHALLENGE or a PROOF is closed."""
    for title in ("DELIVER hello", "FORWARD 7 to 9", "KEEPALIVE-ACK", "CHALLENGE", "PROOF"):
        connection = Connection(probe, subscribed=False)
        connection.stream.send(GOLDEN[title])
        connection.stream.expect_end(f"{title.split()[0]} has no place here")


@CASES.reading("a TYPE that is none of the eight; an empty datagram", "tcp")
def tcp_unknown_type(probe: Probe) -> None:
    """A connection that sends a TYPE there is not is closed."""
    for kind in (0x00, 0x03, 0xFF):
        connection = Connection(probe, subscribed=False)
        connection.stream.send(bytes([kind]) + bytes(18))
        connection.stream.expect_end(f"there is no TYPE {kind:#04x}")


@CASES.reading("LENGTH over 65,526", "tcp")
def tcp_too_long(probe: Probe) -> None:
    """A PUSH whose LENGTH is 65,527 closes the connection, before its data has come."""
    connection = Connection(probe, subscribed=False)
    connection.stream.send(bytes([PUSH]) + (MAX_DATA + 1).to_bytes(2))
    connection.stream.expect_end("LENGTH is 65,527")


@CASES.reading("SEQUENCE 0; FROM_SEQ past TO_SEQ", "tcp")
def tcp_backwards(probe: Probe) -> None:
    """A REQUEST from 9 to 7 closes the connection."""
    connection = Connection(probe, subscribed=False)
    connection.stream.send(request(NOWHERE, 9, 7))
    connection.stream.expect_end("FROM_SEQ is past TO_SEQ")


@CASES.reading("Nobody else is affected.", "tcp")
def tcp_others_go_on(probe: Probe) -> None:
    """A refused connection does not disturb another one."""
    subscriber = Connection(probe)
    hostile = Connection(probe, subscribed=False)
    hostile.stream.send(b"\xff")
    hostile.stream.expect_end("there is no TYPE 0xff")
    subscriber.stream.send(push(probe.marker()))
    subscriber.delivered(probe.marker())
