"""Cases for the binary messages of the attribute family, at any of its four doors.

A case without a group is run at every door. The document has no replies: that a door took a message shows in its answer
to a heartbeat (dispatcher, router) or to a node info (status). A publisher door answers nothing, so there, and where a
push must reach somebody, the cases watch as a client of a connector, if one is known (``--sdk``).
"""

from __future__ import annotations

import json
from typing import Final

from headrace.conform import sdk
from headrace.conform.case import Cases, MismatchError, NotRunError, shown
from headrace.conform.probe import Probe, Stream
from headrace.wire.vectors import golden

CASES: Final = Cases()
GOLDEN: Final = golden("attribute")

DOORS: Final = ("publisher", "dispatcher", "router", "status")
MAX_BODY: Final = 2000
SINGLE, HEAD, MID, TAIL = 1, 2, 4, 8
HANDSHAKE, HEARTBEAT, PUSH = 1, 2, 3

QUIET_SECONDS: Final = 0.1
"""How long a door that never answers is watched: a refusal comes at once."""

VALID: Final = {
    "publisher": GOLDEN["publish"],
    "dispatcher": GOLDEN["heartbeat"],
    "router": GOLDEN["heartbeat"],
    "status": GOLDEN["node info"],
}
"""A message that each door takes."""

Message = tuple[int, dict[int, bytes]]
"""A command, and the content of each item."""


def item(number: int, content: bytes) -> bytes:
    """Return an item."""
    return bytes([number]) + len(content).to_bytes(2) + content


def message(command: int, *items: bytes, extra: int = SINGLE) -> bytes:
    """Return a message."""
    body = b"".join(items)
    return bytes([command]) + len(body).to_bytes(2) + bytes([extra]) + body


class Peer:
    """A connection to the door."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.door = probe.target.door
        self.stream: Stream = probe.stream()
        if self.door == "status":
            self.greeting = (self.message("node info"), self.message("vnode info"))

    def message(self, expected: str) -> Message:
        """Return the next message."""
        head = self.stream.take(4, expected)
        length = int.from_bytes(head[1:3])
        if length > MAX_BODY:
            raise MismatchError(f"{expected} with a body of at most {MAX_BODY} bytes", shown(head))
        body = self.stream.take(length, expected)
        items, at = {}, 0
        while at < length:
            size = int.from_bytes(body[at + 1 : at + 3])
            if at + 3 + size > length:
                raise MismatchError(f"{expected} whose items fill its body", shown(head + body))
            items[body[at]] = body[at + 3 : at + 3 + size]
            at += 3 + size
        return head[0], items

    def taken(self, wire: bytes) -> None:
        """Send a message, and make sure that it was accepted: the connection stays open."""
        self.stream.send(wire)
        self.goes_on()

    def goes_on(self) -> None:
        """Make sure that the door still serves this connection."""
        if self.door == "publisher":
            self.stream.stays_open(QUIET_SECONDS, "a publish that is taken")
        elif self.door == "status":
            self.stream.send(GOLDEN["node info"])
            self.answer(1, "a node info in answer to one")
        else:
            self.stream.send(GOLDEN["heartbeat"])
            self.answer(HEARTBEAT, "a heartbeat in answer to one")

    def answer(self, command: int, expected: str) -> dict[int, bytes]:
        """Return the items of the next message, which must be this command."""
        came, items = self.message(expected)
        if came != command:
            raise MismatchError(expected, f"command {came} with the items {items!r}")
        return items


def _refused(probe: Probe, wire: bytes, why: str) -> None:
    peer = Peer(probe)
    peer.stream.send(wire)
    peer.stream.expect_end(why)


def _valid(probe: Probe) -> bytes:
    return VALID[probe.target.door]


def _with(wire: bytes, *more: bytes, first: bool = False) -> bytes:
    """Return a message with more items after its own, or before them."""
    body = (b"".join(more) + wire[4:]) if first else (wire[4:] + b"".join(more))
    return wire[:1] + len(body).to_bytes(2) + wire[3:4] + body


# At every door.


@CASES.document(
    '"Message header: 1 byte message command type, 2 byte message body length, 1 byte message extra field"'
)
def golden_message(probe: Probe) -> None:
    """The door's golden message is taken, also several back to back."""
    peer = Peer(probe)
    peer.taken(_valid(probe))
    peer = Peer(probe)
    peer.stream.send(_valid(probe) * 3)
    if peer.door != "publisher":
        for _ in range(3):
            peer.answer(_valid(probe)[0], "an answer to each of three messages")
    peer.goes_on()


@CASES.document('"Item body: length equals to body length in item header"')
def bytewise(probe: Probe) -> None:
    """A message that arrives byte by byte is taken."""
    peer = Peer(probe)
    peer.stream.send_bytewise(_valid(probe))
    if peer.door != "publisher":
        peer.answer(_valid(probe)[0], "an answer")
    peer.goes_on()


@CASES.document('"Item header: 1 byte item id, 2 byte item body length"')
def unknown_item(probe: Probe) -> None:
    """Items that the door does not know are skipped, before its own and after them."""
    for first in (True, False):
        peer = Peer(probe)
        peer.stream.send(_with(_valid(probe), item(200, b"later"), item(201, b""), first=first))
        if peer.door != "publisher":
            peer.answer(_valid(probe)[0], "an answer")
        peer.goes_on()


@CASES.document('"MaxBodyLength 2000"')
def too_long(probe: Probe) -> None:
    """A header that states a body of 2,001 bytes closes the connection, before the body has come."""
    command = _valid(probe)[:1]
    _refused(probe, command + (MAX_BODY + 1).to_bytes(2) + b"\x01", "the body has 2,001 bytes")


@CASES.document('"MaxBodyLength 2000"')
def longest(probe: Probe) -> None:
    """A body of exactly 2,000 bytes is taken."""
    wire = _valid(probe)
    room = MAX_BODY - (len(wire) - 4) - 3
    peer = Peer(probe)
    peer.stream.send(_with(wire, item(200, bytes(room))))
    if peer.door != "publisher":
        peer.answer(wire[0], "an answer")
    peer.goes_on()


@CASES.document('"Message body contains one or more items, total length equals to body length in header"')
def left_over(probe: Probe) -> None:
    """One or two bytes after the last item close the connection."""
    for rest in (b"\x01", b"\x01\x00"):
        _refused(probe, _with(_valid(probe), rest), f"{len(rest)} left over")


@CASES.document('"Item body: length equals to body length in item header"')
def overrun(probe: Probe) -> None:
    """An item that overruns the body closes the connection."""
    _refused(probe, _with(_valid(probe), b"\xc8\x00\x09more"), "the item has 9 bytes, the body 4")


@CASES.reading("Any other command is refused.")
def unknown_command(probe: Probe) -> None:
    """Commands 0, 9 and 255 close the connection."""
    for command in (0, 9, 255):
        _refused(probe, bytes([command]) + _valid(probe)[1:], f"there is no command {command}")


# At the publisher door.


@CASES.document('**Publisher 1**: "Publish message"', "publisher")
def publish_arrives(probe: Probe) -> None:
    """The golden publish reaches a client that subscribes to it."""
    client = _client(probe)
    client.say(golden("sdk")["sub"])
    Peer(probe).stream.send(GOLDEN["publish"])
    client.expect_payload(b"snow")


@CASES.document('"AttributeId 1"', "publisher")
def publish_items(probe: Probe) -> None:
    """Items may come in either order, the last of a repeated one counts, and the payload may be missing."""
    client = _client(probe)
    client.say(sdk.subscription({sdk.OWN: {"use": 1, "strval": probe.token}}))
    attributes = item(1, json.dumps({sdk.OWN: probe.token}).encode())
    others = item(1, b'{"x":1}')
    peer = Peer(probe)
    peer.stream.send(message(1, item(2, b"payload first"), attributes, extra=0))
    peer.stream.send(message(1, others, item(2, b"no"), attributes, item(2, b"the last"), extra=0))
    peer.stream.send(message(1, attributes, others, item(2, b"for others"), extra=0))
    peer.stream.send(message(1, attributes, extra=0))
    for payload in (b"payload first", b"the last", b""):
        client.expect_payload(payload)


@CASES.document('"ExtraField, not use now" (publish)', "publisher")
def publish_extra(probe: Probe) -> None:
    """The extra field of a publish is ignored, whatever it holds."""
    wire = GOLDEN["publish"]
    for extra in (1, 2, 255):
        Peer(probe).taken(wire[:3] + bytes([extra]) + wire[4:])


@CASES.document('"Message body contains one or more items" (publish)', "publisher")
def publish_nothing(probe: Probe) -> None:
    """A publish without any item closes the connection."""
    _refused(probe, message(1, extra=0), "it has no item")


@CASES.reading("The JSON object maps names to strings or numbers, and nothing else", "publisher")
def publish_bad_attributes(probe: Probe) -> None:
    """Attributes that are no JSON object of strings and numbers close the connection."""
    for text in (b"nonsense", b"[1]", b'{"a":true}', b'{"a":null}', b'{"a":{}}', b'{"a":NaN}', b"\xff"):
        _refused(probe, message(1, item(1, text), item(2, b"x"), extra=0), f"the attributes are {text!r}")


# At the router door.


@CASES.document('"handshake = 1 # used for exchanging node information"', "router")
def handshake(probe: Probe) -> None:
    """The golden handshakes are answered with the connector's own id, 8 bytes of ASCII."""
    for title in ("handshake", "handshake of a connector that relies on marks"):
        peer = Peer(probe)
        peer.stream.send(GOLDEN[title])
        items = peer.answer(HANDSHAKE, "a handshake")
        if len(items.get(5, b"")) != 8 or not items[5].isascii():
            raise MismatchError("item 5: an id of 8 ASCII bytes", repr(items))


@CASES.document('"push message = 3"', "router")
def push_arrives(probe: Probe) -> None:
    """A push reaches the client that it names, and no other."""
    named, other = _client(probe, _client_id(probe, 1)), _client(probe, _client_id(probe, 2))
    peer = Peer(probe)
    peer.stream.send(_push(probe, PUSH, b"for one", _client_id(probe, 1)))
    peer.stream.send(_push(probe, PUSH, b"for both", _client_id(probe, 2) + _client_id(probe, 1)))
    for client, payloads in ((named, (b"for one", b"for both")), (other, (b"for both",))):
        for payload in payloads:
            client.expect_payload(payload)


@CASES.document("what Head, Mid and Tail carry (the names say no more)", "router")
def push_parts(probe: Probe) -> None:
    """A push in parts reaches the clients of all of them, with the payload joined, once its Tail has come."""
    one, two = _client(probe, _client_id(probe, 1)), _client(probe, _client_id(probe, 2))
    peer = Peer(probe)
    peer.stream.send(_push(probe, PUSH, b"first, ", _client_id(probe, 1), extra=HEAD))
    peer.stream.send(_push(probe, PUSH, b"second", _client_id(probe, 2), extra=MID))
    peer.goes_on()
    for client in (one, two):
        client.heartbeat()
    peer.stream.send(_push(probe, PUSH, b"", b"", extra=TAIL))
    for client in (one, two):
        client.expect_payload(b"first, second")


@CASES.document(
    '"ExtraSendSingle 0x01, ExtraSendMulHead 0x02, ExtraSendMulMid 0x04, ExtraSendMulTail 0x08"', "router"
)
def router_extra(probe: Probe) -> None:
    """The golden pushes, Single and in parts, are taken, and so is 0 for Single."""
    peer = Peer(probe)
    wire = GOLDEN["router push"]
    for each in (
        wire,
        wire[:3] + b"\x00" + wire[4:],
        GOLDEN["mark"],
        GOLDEN["dispatcher push of the original"],
    ):
        peer.taken(each)
    peer.taken(GOLDEN["push Head"] + GOLDEN["push Mid"] + GOLDEN["push Tail"])


@CASES.reading("A Mid or Tail without a Head is refused.", "router")
def router_no_head(probe: Probe) -> None:
    """The golden Mid and Tail close the connection where no Head came before."""
    for title in ("push Mid", "push Tail"):
        _refused(probe, GOLDEN[title], "no Head came before")


# At the dispatcher door.


@CASES.document('"heartbeat = 2"', "dispatcher")
def dispatcher_heartbeat(probe: Probe) -> None:
    """The golden heartbeats are answered with one, whose timestamp has 8 bytes."""
    for title in ("heartbeat", "heartbeat of a dispatcher"):
        peer = Peer(probe)
        peer.stream.send(GOLDEN[title])
        items = peer.answer(HEARTBEAT, "a heartbeat")
        if len(items.get(4, b"")) != 8:
            raise MismatchError("item 4: a timestamp of 8 bytes", repr(items))


@CASES.document('**Dispatcher 1**: "Messages from Matcher to Dispatcher"', "dispatcher")
def dispatcher_pushes(probe: Probe) -> None:
    """The golden pushes of a matcher and of dispatchers are taken."""
    for title in ("matcher push", "dispatcher push", "dispatcher push of the original"):
        Peer(probe).taken(GOLDEN[title])


@CASES.document('"MsgId 1, PayloadId 2, ClientListId 3" (between dispatchers)', "dispatcher")
def dispatcher_push_arrives(probe: Probe) -> None:
    """A push with items 1 to 3 only reaches a client at a connector of the dispatcher."""
    client = _client(probe, _client_id(probe, 1))
    Peer(probe).stream.send(_push(probe, PUSH, b"passed on", _client_id(probe, 1)))
    client.expect_payload(b"passed on")


@CASES.reading("A client list that is not a whole number of entries is refused.", "dispatcher")
def dispatcher_bad_list(probe: Probe) -> None:
    """A client list that is cut in an entry closes the connection, in a matcher's push and in a dispatcher's."""
    for command, size in ((1, 20), (3, 12)):
        wire = message(command, item(1, _msg_id(probe)), item(2, b"x"), item(3, bytes(size - 1)))
        _refused(probe, wire, f"an entry has {size} bytes")


@CASES.document('"MsgId 1"', "dispatcher")
def dispatcher_msg_id(probe: Probe) -> None:
    """A push without a MsgId, or with one that has not 12 bytes, closes the connection."""
    _refused(probe, message(3, item(2, b"x"), item(3, bytes(12))), "there is no MsgId")
    _refused(probe, message(3, item(1, b"short"), item(2, b"x")), "the MsgId has 5 bytes")


# At the status door.


@CASES.document('**Matcher 1**: "Status message"', "status")
def status(probe: Probe) -> None:
    """Every new connection is sent node info (items 1 to 5) and vnode info (items 1, 5 and 6)."""
    for (command, items), expected in zip(
        Peer(probe).greeting, ((1, {1, 2, 3, 4, 5}), (2, {1, 5, 6})), strict=True
    ):
        if command != expected[0] or not items.keys() >= expected[1]:
            raise MismatchError(
                f"command {expected[0]} with items {sorted(expected[1])}", f"command {command}, {items!r}"
            )


@CASES.document('"StartHashId 4"', "status")
def start_hash(probe: Probe) -> None:
    """The start hash is 40 hex digits, and it is the place of a virtual node."""
    (_, node), (_, vnodes) = Peer(probe).greeting
    text, listed = node.get(4, b""), vnodes.get(6, b"")
    try:
        start = bytes.fromhex(text.decode())
    except ValueError:
        start = b""
    if len(start) != 20:
        raise MismatchError("40 hex digits", repr(text))
    places = {listed[at : at + 20] for at in range(0, len(listed), 20)}
    if start not in places:
        raise MismatchError(
            f"{start.hex()} among the vnodes", ", ".join(sorted(place.hex() for place in places))
        )


@CASES.document('"VnodeListId 6"', "status")
def vnodes_taken(probe: Probe) -> None:
    """The golden vnode info of another matcher is taken, and its golden node info is answered with one."""
    peer = Peer(probe)
    peer.stream.send(GOLDEN["vnode info"])
    peer.goes_on()


@CASES.document('"HostnameId 1"', "status")
def status_items(probe: Probe) -> None:
    """A node info without a hostname closes the connection."""
    body = GOLDEN["node info"][4:]
    rest = body[3 + int.from_bytes(body[1:3]) :]
    _refused(probe, b"\x01" + len(rest).to_bytes(2) + b"\x00" + rest, "item 1 is missing")


# Where a push arrives.


def _client(probe: Probe, client_id: bytes | None = None) -> sdk.Client:
    """Return a client at the connector, under an id of its own if one is given."""
    if probe.target.sdk is None:
        raise NotRunError("it needs a connector where the message arrives: --sdk HOST:PORT")
    client = sdk.Client(probe, probe.target.sdk)
    if client_id is not None:
        claim = {"client_id": client_id.hex(), "timestamp": "1700000000", "token": "0"}
        client.stream.send(sdk.command(b"auth", json.dumps(claim).encode()))
        client.stream.expect(golden("sdk")["auth success"], "+authsuccess at the connector")
    return client


def _client_id(probe: Probe, number: int) -> bytes:
    return bytes.fromhex(probe.token).ljust(11, b"\xcf") + bytes([number])


def _msg_id(probe: Probe) -> bytes:
    """Return a MsgId that is not of Headrace's form: it stands for no number of any sequence."""
    return bytes.fromhex(probe.token).ljust(12, b"\xff")


def _push(probe: Probe, command: int, payload: bytes, clients: bytes, *, extra: int = SINGLE) -> bytes:
    return message(command, item(1, _msg_id(probe)), item(2, payload), item(3, clients), extra=extra)
