"""Cases for Parcel: discovery, sequence numbers and heartbeats, as nodes of the document have them.

The kit introduces itself as a node, and the server forgets it after the document's five seconds of silence. It never
says the hello by which nodes of Headrace know each other, so it is not a member of any cluster.
"""

from __future__ import annotations

from typing import Any, Final

import cbor2

from headrace.conform.case import Cases, MismatchError, shown
from headrace.conform.probe import Probe, Stream
from headrace.wire.vectors import golden

CASES: Final = Cases()
GOLDEN: Final = golden("parcel")

KEYS: Final = ("is_response", "parcel_type", "id", "size", "body")
NODE_KEYS: Final = {"id", "mode", "name", "host"}
MODES: Final = ("DSC", "WRK", "ERR")
HEARTBEAT_SECONDS: Final = 4.0
"""A heartbeat comes each second; the server also has to look up, dial and be scheduled."""


def parcel(
    kind: str, body: object = "Empty", *, node: int = 4660, response: bool = False, **more: object
) -> bytes:
    """Return a parcel; ``size`` is 0, as the original sends it."""
    fields = {"is_response": response, "parcel_type": kind, "id": node, "size": 0, "body": body, **more}
    return _framed(fields)


def introduction(node: int, name: str, host: str = "127.0.0.1") -> bytes:
    """Return a DscReq of a node."""
    identity = {"id": node, "mode": "DSC", "name": name, "host": host}
    return parcel("DscReq", {"DscReq": {"identity": identity}}, node=node)


def _framed(fields: dict[str, object]) -> bytes:
    encoded = cbor2.dumps(fields)
    return bytes([len(encoded)]) + encoded


class Node:
    """A node of the document that dials the server."""

    def __init__(self, probe: Probe) -> None:
        self.stream: Stream = probe.stream()

    def answer(self, kind: str) -> dict[str, Any]:
        """Return the next parcel, which must be a response of this type."""
        expected = f"a {kind}"
        size = self.stream.take(1, expected)[0]
        data = self.stream.take(size, f"{expected} of {size} bytes")
        try:
            fields = cbor2.loads(data)
        except cbor2.CBORDecodeError as error:
            raise MismatchError(f"{expected} in CBOR", f"{shown(data)} ({error})") from None
        if not isinstance(fields, dict) or not fields.keys() >= set(KEYS):
            raise MismatchError(f"{expected}: a map of {', '.join(KEYS)}", repr(fields))
        if (fields["parcel_type"], fields["is_response"]) != (kind, True):
            raise MismatchError(f"{expected} that is a response", repr(fields))
        if not (isinstance(fields["id"], int) and 0 <= fields["id"] < 65536):
            raise MismatchError(f"{expected} whose id is a u16", repr(fields["id"]))
        return fields

    def neighbours(self) -> list[dict[str, Any]]:
        """Return the nodes that a DscRes lists."""
        body = self.answer("DscRes")["body"]
        try:
            listed: list[dict[str, Any]] = list(body["DscRes"]["neighbours"])
        except (TypeError, LookupError):
            raise MismatchError("the body {DscRes: {neighbours: [...]}}", repr(body)) from None
        for each in listed:
            if not (isinstance(each, dict) and each.keys() >= NODE_KEYS and each["mode"] in MODES):
                raise MismatchError("nodes of id, mode (DSC, WRK or ERR), name and host", repr(each))
        return listed

    def sequence(self) -> int:
        """Return the number that a SeqRes states."""
        body = self.answer("SeqRes")["body"]
        try:
            number = body["SeqRes"]["seq_number"]
        except (TypeError, LookupError):
            number = None
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise MismatchError("the body {SeqRes: {seq_number: a number}}", repr(body))
        return number


@CASES.document(
    'Those responding to a `DscReq` "should send a `DscRes` with their list of neighbouring nodes"'
)
def discovery(probe: Probe) -> None:
    """The original's own DscReq, size 0 and all, is answered with a DscRes."""
    node = Node(probe)
    node.stream.send(GOLDEN["DscReq as the original sends it"])
    node.neighbours()


@CASES.document('"and general status `DSC`, `WRK`, `ERR`"')
def general_status(probe: Probe) -> None:
    """The first node that a DscRes lists is the responder, with its mode; the asker is not in the list."""
    node = Node(probe)
    node.stream.send(GOLDEN["DscReq as the original sends it"])
    fields = node.answer("DscRes")
    listed = fields["body"]["DscRes"]["neighbours"]
    if not listed or listed[0]["id"] != fields["id"] or listed[0]["mode"] not in MODES:
        raise MismatchError(f"the responder, {fields['id']}, as the first of the list", repr(listed))
    if any(each["id"] == 4660 for each in listed):
        raise MismatchError("a list without the asker", repr(listed))


@CASES.document('"Each of the receivers adds the sender, Ivan, to their list"')
def sender_is_added(probe: Probe) -> None:
    """A node that introduced itself is listed to the next one that asks."""
    name = f"conform-{probe.token}"
    number = int(probe.token[:4], 16) or 1
    one, two = Node(probe), Node(probe)
    one.stream.send(introduction(number, name))
    one.neighbours()
    two.stream.send(GOLDEN["DscReq as the original sends it"])
    listed = two.neighbours()
    if not any((each["id"], each["name"]) == (number, name) for each in listed):
        raise MismatchError(f"node {number}, {name!r}, in the list", repr(listed))


@CASES.document('"Each one responds with their `SEQ` number"')
def sequence_number(probe: Probe) -> None:
    """The golden SeqReq is answered with a SeqRes."""
    node = Node(probe)
    node.stream.send(GOLDEN["SeqReq"])
    node.sequence()


@CASES.document('"After discovery, Ivan can send a `SeqRes` to each of its neighbours"')
def sequence_by_the_prose(probe: Probe) -> None:
    """A SeqRes that is not a response, which the document's prose calls the request, is answered with a SeqRes."""
    for body in ("Empty", {"SeqRes": {"seq_number": 0}}):
        node = Node(probe)
        node.stream.send(parcel("SeqRes", body))
        node.sequence()


@CASES.document('"and marks Ivan locally as `WRK`"')
def asker_is_marked(probe: Probe) -> None:
    """A node that asked for the sequence number is listed as WRK."""
    name = f"conform-{probe.token}"
    number = int(probe.token[:4], 16) or 1
    one, two = Node(probe), Node(probe)
    one.stream.send(introduction(number, name) + parcel("SeqReq", node=number))
    one.neighbours()
    one.sequence()
    two.stream.send(GOLDEN["DscReq as the original sends it"])
    modes = [each["mode"] for each in two.neighbours() if each["name"] == name]
    if modes != ["WRK"]:
        raise MismatchError(f"{name!r} in the list as WRK", repr(modes))


@CASES.document('DscReq: "Strict *Request*/Response on same TCP stream"')
def strict_order(probe: Probe) -> None:
    """Requests on one stream are answered on it, one by one and in order."""
    node = Node(probe)
    discover = GOLDEN["DscReq as the original sends it"]
    node.stream.send(discover + parcel("SeqReq") + discover)
    node.neighbours()
    node.sequence()
    node.neighbours()


@CASES.document(
    '"Every parcel is preceded by an u8 `n`", "followed by `n` bytes of CBOR-serialized ProtoParcel"'
)
def bytewise(probe: Probe) -> None:
    """A DscReq that arrives byte by byte is answered."""
    node = Node(probe)
    node.stream.send_bytewise(GOLDEN["DscReq as the original sends it"])
    node.neighbours()


@CASES.document('`size: u16`, "size of body in bytes"')
def true_size(probe: Probe) -> None:
    """The `size` of an answer is the length of its body in CBOR, and a request with a true `size` is taken."""
    node = Node(probe)
    node.stream.send(GOLDEN["SeqReq"])
    fields = node.answer("SeqRes")
    size = len(cbor2.dumps(fields["body"]))
    if fields["size"] != size:
        raise MismatchError(f"size {size}", f"size {fields['size']!r}")


@CASES.document('"The parcel looks like this": `is_response`, `parcel_type`, `id`, `size`, `body`')
def key_order(probe: Probe) -> None:
    """The keys of an answer stand in the document's order, and a request's may stand in any, with others among them."""
    node = Node(probe)
    fields: dict[str, object] = {"later": [1, {"a": None}], "body": "Empty", "size": 6, "id": 4660}
    node.stream.send(_framed({**fields, "parcel_type": "SeqReq", "is_response": False}))
    came = node.answer("SeqRes")
    if tuple(came)[: len(KEYS)] != KEYS:
        raise MismatchError(f"the keys {', '.join(KEYS)}", ", ".join(map(str, came)))


@CASES.document('"A worker is required to send a heartbeat to each (for now) of its neighbours each 1s"')
def heartbeats(probe: Probe) -> None:
    """A neighbour that speaks only the document is dialled where it listens, with a DscReq for a heartbeat."""
    probe.allow(HEARTBEAT_SECONDS)
    node = Node(probe)
    listener = probe.listener(node.stream)
    port = listener.getsockname()[1]
    host = node.stream.local[0]
    number = int(probe.token[4:8], 16) or 1
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    node.stream.send(introduction(number, f"conform-{probe.token}", where))
    node.neighbours()
    expected = f"a heartbeat to {where} within {HEARTBEAT_SECONDS:g} s"
    try:
        incoming = probe.enter(listener.accept()[0])
    except TimeoutError:
        raise MismatchError(expected, "silence") from None
    incoming.settimeout(probe.seconds_left())
    data = incoming.recv(1)
    while data and len(data) <= data[0] and (more := incoming.recv(256)):
        data += more
    fields = cbor2.loads(data[1:]) if data else None
    if not isinstance(fields, dict) or fields.get("parcel_type") != "DscReq":
        raise MismatchError(f"{expected}: a DscReq", shown(data))


@CASES.reading("`Ping`, answered by `Pong`")
def ping(probe: Probe) -> None:
    """A node that introduced itself by the golden DscReq and sends the golden Ping gets a Pong."""
    node = Node(probe)
    node.stream.send(GOLDEN["DscReq"])
    node.neighbours()
    node.stream.send(GOLDEN["Ping"])
    node.answer("Pong")


def _refused(probe: Probe, wire: bytes, why: str) -> None:
    node = Node(probe)
    node.stream.send(wire)
    node.answer("ProtoError")
    node.stream.expect_end(why)


@CASES.reading("A node that refuses a parcel says so and closes the stream.")
def unknown_type(probe: Probe) -> None:
    """A parcel of an unknown type is answered with a ProtoError, and the end."""
    _refused(probe, parcel("Nonsense"), "there is no such type")


@CASES.document('DscRes: "Response to `DscReq`"')
def unasked_response(probe: Probe) -> None:
    """The golden DscRes and SeqRes, which nobody asked for, are answered with a ProtoError, and the end."""
    for title in ("DscRes", "SeqRes"):
        _refused(probe, GOLDEN[title], f"nobody asked for a {title}")


@CASES.document('`is_response`: "whether or not packet is a response"')
def contradiction(probe: Probe) -> None:
    """A DscReq or SeqReq that calls itself a response is answered with a ProtoError, and the end."""
    identity = {"id": 4660, "mode": "DSC", "name": "Ivan", "host": "127.0.0.1"}
    _refused(
        probe,
        parcel("DscReq", {"DscReq": {"identity": identity}}, response=True),
        "a request is not a response",
    )
    _refused(probe, parcel("SeqReq", response=True), "a request is not a response")


@CASES.reading("a missing key is refused, except where a default is given below;")
def missing_key(probe: Probe) -> None:
    """A parcel without one of the five keys is answered with a ProtoError, and the end."""
    whole: dict[str, object] = cbor2.loads(GOLDEN["SeqReq"][1:])
    for key in ("is_response", "parcel_type", "id", "body"):
        _refused(
            probe, _framed({name: value for name, value in whole.items() if name != key}), f"without {key}"
        )


@CASES.document('"The encoding we\'re using is CBOR"')
def not_cbor(probe: Probe) -> None:
    """Bytes that are no CBOR, no map, or nothing at all are answered with a ProtoError, and the end."""
    for data in (b"\xff\xff\xff", b"\x01", b"", cbor2.dumps(["SeqReq"])):
        _refused(probe, bytes([len(data)]) + data, f"{shown(data)} is not a parcel")
