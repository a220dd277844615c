"""The SDK's text protocol: how a client subscribes at a connector and receives its pushes.

A client sends commands, as messages of elements: ``#n``, ``*k`` and k times ``$length`` and data, each ended by
CRLF, where ``#n`` counts every byte after its own CRLF. A connector sends replies, which are fixed lines, and
pushes, which are ``#n`` and one JSON object. Each direction has its decoder: :class:`ServerDecoder` reads what
clients send, :class:`ClientDecoder` what connectors send.

Strategy: ``#n`` is judged as soon as its line is here; then the decoder waits for all n bytes and reads them in
one go. Data is cut out by its length and never searched, so it may hold any bytes.

Invariants:

- Lengths are strict: decimal digits without sign or leading zero, and the elements are exactly the message.
- When a command may come is in :data:`TRANSITIONS`; a decoder takes any command at any time.
- An error names the byte of the connection at which its message begins.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec

from headrace.errors import LimitError, MalformedError, UsageError, WireError
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.attribute.items import located
from headrace.wire.receive_buffer import Decoder
from headrace.wire.sdk.auth import Auth, parse_auth, serialize_auth
from headrace.wire.sdk.subscribe import Subscribe, parse_subscribe, subscribe_elements
from headrace.wire.state_machine import StateMachine
from headrace.wire.typed_json import decode_json

MAX_PUSH = 64 * 1024 * 1024
"""The longest push a client takes: a payload of 8 MiB with every byte escaped, and room to spare."""

CRLF = b"\r\n"

_LENGTH = re.compile(rb"([#*$])(0|[1-9][0-9]{0,9})\r\n")
_LONGEST = len("#4294967295\r\n")
"""The longest line that states a length."""


@dataclass(frozen=True, slots=True)
class SdkLimits:
    """What a connector accepts from a client, known or not."""

    message: int = 64 * 1024
    """Bytes after the first line."""

    elements: int = 1 + 2 * 128
    """The command, and the names and fields of 128 attributes."""

    element: int = 16 * 1024
    """Bytes of data."""


DEFAULT_LIMITS = SdkLimits()


class SdkState(Enum):
    """The state of a session."""

    LOCKED = "locked"  # auth is required and has not come
    OPEN = "open"  # auth is not required and has not come
    GUEST = "guest"  # subscribed without auth, under a client id that the connector made up
    KNOWN = "known"  # authenticated
    CLOSED = "closed"  # "-command error" is the last that is sent


class SdkEvent(Enum):
    """What moves a session. AUTH is an accepted auth; anything refused is an ERROR."""

    AUTH = "auth"
    HEARTBEAT = "hb"
    SUBSCRIBE = "sub"
    ERROR = "command error"


TRANSITIONS: Mapping[tuple[SdkState, SdkEvent], SdkState] = {
    (SdkState.LOCKED, SdkEvent.AUTH): SdkState.KNOWN,
    (SdkState.LOCKED, SdkEvent.HEARTBEAT): SdkState.LOCKED,
    (SdkState.LOCKED, SdkEvent.ERROR): SdkState.CLOSED,
    (SdkState.OPEN, SdkEvent.AUTH): SdkState.KNOWN,
    (SdkState.OPEN, SdkEvent.HEARTBEAT): SdkState.OPEN,
    (SdkState.OPEN, SdkEvent.SUBSCRIBE): SdkState.GUEST,
    (SdkState.OPEN, SdkEvent.ERROR): SdkState.CLOSED,
    (SdkState.GUEST, SdkEvent.HEARTBEAT): SdkState.GUEST,
    (SdkState.GUEST, SdkEvent.SUBSCRIBE): SdkState.GUEST,
    (SdkState.GUEST, SdkEvent.ERROR): SdkState.CLOSED,
    (SdkState.KNOWN, SdkEvent.HEARTBEAT): SdkState.KNOWN,
    (SdkState.KNOWN, SdkEvent.SUBSCRIBE): SdkState.KNOWN,
    (SdkState.KNOWN, SdkEvent.ERROR): SdkState.CLOSED,
}
"""A connection is one client's: it has its id from its one auth or, as a guest, from its first sub."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Client: a sign of life."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Connector: the answer to a heartbeat."""


@dataclass(frozen=True, slots=True)
class AuthSuccess:
    """Connector: the auth is accepted."""


@dataclass(frozen=True, slots=True)
class CommandError:
    """Connector: the command is wrong or not allowed; nothing follows."""


@dataclass(frozen=True, slots=True)
class Push:
    """Connector: a message that satisfies a subscription."""

    seq: int
    """Its sequence number, or :data:`UNPLACED`."""
    payload: bytes
    subs: tuple[str, ...] = ()
    """The names of the named subscriptions that it satisfies."""
    events: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The events of fences, by the name of their subscription; the unnamed one's is empty."""


Command: TypeAlias = Auth | Heartbeat | Subscribe
Reply: TypeAlias = HeartbeatReply | AuthSuccess | CommandError
ConnectorFrame: TypeAlias = Reply | Push

F = TypeVar("F", Command, ConnectorFrame)

_REPLIES: Mapping[Reply, bytes] = {
    HeartbeatReply(): b"+h\r\n",
    AuthSuccess(): b"+authsuccess\r\n",
    CommandError(): b"-command error\r\n",
}
_LONGEST_REPLY = max(map(len, _REPLIES.values()))

_TEXT, _BASE64 = 1, 2
"""The types of a push's payload."""

UNPLACED: Final = 0
"""The ``seq`` of a push without a place in the sequence: from another implementation's matcher or connector."""


def serialize(frame: Command | ConnectorFrame, limits: SdkLimits = DEFAULT_LIMITS) -> bytes:
    r"""One frame as its bytes; the limits are for commands.

    >>> serialize(Heartbeat())
    b'#12\r\n*1\r\n$2\r\nhb\r\n'
    """
    match frame:
        case Auth():
            return serialize_elements([b"auth", serialize_auth(frame)], limits)
        case Heartbeat():
            return serialize_elements([b"hb"], limits)
        case Subscribe():
            return serialize_elements(subscribe_elements(frame), limits)
        case Push(seq, payload, subs, events):
            push = _serialize_push(seq, payload)
            return label_push(push, subs, events) if subs or events else push
        case _:
            return _REPLIES[frame]


def serialize_pushes(seqs: Sequence[int], payloads: Run) -> Run:
    """Many pushes in one buffer; item ``i`` of the run is the push of message ``i``, ready to send.

    A message is serialized once, however many clients it is for.
    """
    if len(seqs) != len(payloads):
        raise UsageError(f"{len(seqs)} sequence numbers for {len(payloads)} payloads")
    return Run.of(map(_serialize_push, seqs, payloads))


def label_push(push: bytes, names: Sequence[str], events: Mapping[str, Sequence[str]]) -> bytes:
    """Add the names of the subscriptions that it satisfies, and the events of their fences, to a serialized push.

    >>> label_push(serialize(Push(7, b"a")), ["near"], {})
    b'#50\\r\\n{"payload":"a","type":1,"seq":7,"subs":["near"]}\\r\\n'
    """
    begin = push.index(CRLF) + len(CRLF)
    subs = b',"subs":%b' % msgspec.json.encode(names) if names else b""
    crossed = b',"events":%b' % msgspec.json.encode(events) if events else b""
    content = b"%b%b%b}\r\n" % (push[begin : -len(b"}\r\n")], subs, crossed)
    if len(content) > MAX_PUSH:
        raise LimitError("sdk", "message length", len(content), MAX_PUSH)
    return b"#%d\r\n%b" % (len(content), content)


def serialize_elements(elements: Sequence[bytes], limits: SdkLimits = DEFAULT_LIMITS) -> bytes:
    """A message of these elements."""
    if len(elements) > limits.elements:
        raise LimitError("sdk", "number of elements", len(elements), limits.elements)
    parts = [b"*%d\r\n" % len(elements)]
    for element in elements:
        if len(element) > limits.element:
            raise LimitError("sdk", "element length", len(element), limits.element)
        parts += (b"$%d\r\n" % len(element), element, CRLF)
    length = sum(map(len, parts))
    if length > limits.message:
        raise LimitError("sdk", "message length", length, limits.message)
    return b"".join((b"#%d\r\n" % length, *parts))


def parse_command(body: bytes, limits: SdkLimits = DEFAULT_LIMITS) -> Command:
    """The command in a message's body, which is what follows its first line."""
    match parse_elements(body, limits):
        case [b"auth", json]:
            return parse_auth(json)
        case [b"hb"]:
            return Heartbeat()
        case elements if (subscribe := parse_subscribe(elements)) is not None:
            return subscribe
        case elements:
            given = b" ".join(elements[:1]).decode(errors="replace")
            rule = "auth, hb, sub, subn or unsubn, and what belongs to it"
            raise MalformedError("sdk", "command", f"{given} of {len(elements)} elements", rule)


def parse_elements(body: bytes, limits: SdkLimits = DEFAULT_LIMITS) -> list[bytes]:
    """The elements in a message's body."""
    count, at = _parse_length(body, 0, b"*", "number of elements", limits.elements)
    elements: list[bytes] = []
    for _ in range(count):
        length, at = _parse_length(body, at, b"$", "element length", limits.element)
        end = at + length
        if body[end : end + len(CRLF)] != CRLF:
            raise MalformedError("sdk", "element", body[at:end], f"{length} bytes of data, then CRLF")
        elements.append(body[at:end])
        at = end + len(CRLF)
    if at != len(body):
        raise MalformedError("sdk", "message length", len(body), f"its elements end after {at} bytes")
    return elements


def parse_push(body: bytes) -> Push:
    """The push in a message's body; unknown members of its JSON are ignored."""
    if not body.endswith(CRLF):
        raise MalformedError("sdk", "push", body[-len(CRLF) :], "must end with CRLF")
    # To JSON the CRLF is white space.
    rule = "a JSON object of payload, type (1 or 2) and, in our own pushes, seq"
    content = decode_json(_CONTENT, body, "sdk", "push", rule)
    payload = content.payload.encode()
    payload = payload if content.type == _TEXT else _parse_base64(payload)
    return Push(content.seq, payload, content.subs, content.events)


def new_session(*, auth_required: bool) -> StateMachine[SdkState, SdkEvent]:
    """The session of a new connection."""
    return StateMachine("sdk", TRANSITIONS, SdkState.LOCKED if auth_required else SdkState.OPEN)


def event_of(command: Command) -> SdkEvent:
    """The event that a command is to its session; an auth, once accepted."""
    match command:
        case Auth():
            return SdkEvent.AUTH
        case Heartbeat():
            return SdkEvent.HEARTBEAT
        case Subscribe():
            return SdkEvent.SUBSCRIBE


class _MessageDecoder(Decoder[F]):
    """Messages that begin with ``#n``."""

    def _read(self, limit: int, parse: Callable[[bytes], F]) -> F | None:
        """Consume the next message, once it is all here, and return what ``parse`` makes of its body."""
        inbox = self.inbox
        line = inbox.peek(_LONGEST)
        if _is_coming(line):
            return None
        try:
            length, begin = _parse_length(line, 0, b"#", "message length", limit)
            if len(inbox) < begin + length:
                return None
            frame = parse(inbox.peek(length, skip=begin))
        except WireError as error:
            raise located(error, inbox.position) from None
        inbox.skip(begin + length)
        return frame


class ServerDecoder(_MessageDecoder[Command]):
    """Reads what clients send."""

    def __init__(self, limits: SdkLimits = DEFAULT_LIMITS) -> None:
        super().__init__()
        self.limits = limits

    def _next(self) -> Command | None:
        return self._read(self.limits.message, lambda body: parse_command(body, self.limits))


class ClientDecoder(_MessageDecoder[ConnectorFrame]):
    """Reads what connectors send."""

    def __init__(self, max_push: int = MAX_PUSH) -> None:
        super().__init__()
        self.max_push = max_push

    def _next(self) -> ConnectorFrame | None:
        line = self.inbox.peek(_LONGEST_REPLY)
        if line.startswith(b"#"):
            return self._read(self.max_push, parse_push)
        for reply, wire in _REPLIES.items():
            if line.startswith(wire):
                self.inbox.skip(len(wire))
                return reply
        for end in range(len(line) + 1):
            if not any(wire.startswith(line[:end]) for wire in _REPLIES.values()):
                rule = "+h, +authsuccess, -command error or a push"
                raise MalformedError("sdk", "reply", line[:end], rule, offset=self.inbox.position)
        return None


class _Content(msgspec.Struct):
    payload: str
    type: Literal[1, 2]
    seq: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)] = UNPLACED
    subs: tuple[str, ...] = ()
    events: dict[str, tuple[str, ...]] = {}


_CONTENT = msgspec.json.Decoder(_Content)


def _serialize_push(seq: int, payload: bytes) -> bytes:
    if not 0 <= seq <= MAX_SEQUENCE:
        raise LimitError("sdk", "seq", seq, MAX_SEQUENCE)
    try:
        text, kind = msgspec.json.encode(payload.decode()), _TEXT
    except UnicodeDecodeError:
        text, kind = b'"%b"' % _base64(payload), _BASE64
    content = b'{"payload":%b,"type":%d,"seq":%d}\r\n' % (text, kind, seq)
    if len(content) > MAX_PUSH:
        raise LimitError("sdk", "message length", len(content), MAX_PUSH)
    return b"#%d\r\n%b" % (len(content), content)


def _base64(payload: bytes) -> bytes:
    return binascii.b2a_base64(payload, newline=False)


def _parse_base64(text: bytes) -> bytes:
    try:
        payload = binascii.a2b_base64(text)
    except binascii.Error:
        payload = b""
    # The decoder skips what is not base64, so many texts give one payload; only one of them is right.
    if _base64(payload) != text:
        raise MalformedError("sdk", "payload", text, "base64, for its type is 2")
    return payload


def _is_coming(line: bytes) -> bool:
    """Whether the first line of a message is incomplete, and right so far."""
    return line[:1] in (b"", b"#") and len(line) < _LONGEST and CRLF not in line


def _parse_length(data: bytes, at: int, mark: bytes, field: str, limit: int) -> tuple[int, int]:
    """The number in the line that begins at ``at``, and where that line ends."""
    line = _LENGTH.match(data, at)
    if line is None or line[1] != mark:
        # The error must not depend on how much has come after the line.
        shown, _, _ = data[at : at + (_LONGEST if data.startswith(mark, at) else 1)].partition(CRLF)
        raise MalformedError("sdk", field, shown, f"{mark.decode()}, a number without leading zero, CRLF")
    number = int(line[2])
    if number > limit:
        raise LimitError("sdk", field, number, limit)
    return number, line.end()
