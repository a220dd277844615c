"""Cases for the SDK protocol, at a connector that lets anybody in.

The cases about pushes need to publish; they are run if the door for that is known (``--publisher``).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Final

from headrace.config import Address
from headrace.conform.case import Cases, MismatchError, NotRunError, shown
from headrace.conform.probe import Probe, Stream
from headrace.wire.vectors import golden

CASES: Final = Cases()
GOLDEN: Final = golden("sdk")
PUBLISH: Final = golden("attribute")["publish"]

HB: Final = GOLDEN["hb"]
ERROR: Final = GOLDEN["command error"]
MAX_PUSH: Final = 1 << 20
"""No message of the kit is longer, and a server may not make it wait for more."""

OWN: Final = "headrace_conform"
"""The attribute that marks the kit's own messages."""


def command(*elements: bytes) -> bytes:
    """Return a message of elements."""
    body = b"*%d\r\n" % len(elements)
    for each in elements:
        body += b"$%d\r\n%s\r\n" % (len(each), each)
    return b"#%d\r\n%s" % (len(body), body)


def subscription(fields: Mapping[str, Mapping[str, object]]) -> bytes:
    """Return a ``sub`` with these attributes."""
    elements = [b"sub"]
    for name, field in fields.items():
        elements += [name.encode(), json.dumps(field).encode()]
    return command(*elements)


def publication(attributes: dict[str, object], payload: bytes) -> bytes:
    """Return a publish message with these attributes."""
    text = json.dumps(attributes).encode()
    body = b"\x01" + len(text).to_bytes(2) + text + b"\x02" + len(payload).to_bytes(2) + payload
    return PUBLISH[:1] + len(body).to_bytes(2) + PUBLISH[3:4] + body


class Client:
    """An SDK client."""

    def __init__(self, probe: Probe, place: Address | None = None) -> None:
        self.stream: Stream = probe.stream(place)

    def say(self, wire: bytes) -> None:
        """Send a command that is not answered, and make sure that it was taken."""
        self.stream.send(wire)
        self.heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat, whose reply must be the next thing that comes."""
        self.stream.send(HB)
        self.stream.expect(GOLDEN["heartbeat reply"], "+h as the next reply")

    def push(self, expected: str) -> dict[str, object]:
        """Return the content of the next push."""
        line = self.stream.take_line(16, f"a push: {expected}")
        if not (line[:1] == b"#" and line[1:].isdigit() and 2 < int(line[1:]) <= MAX_PUSH):
            raise MismatchError("a push that begins with # and a length", shown(line))
        body = self.stream.take(int(line[1:]), f"a push of {line[1:].decode()} bytes")
        if body[-2:] != b"\r\n":
            raise MismatchError("a push whose length counts its last CRLF", shown(line + b"\r\n" + body))
        content = json.loads(body)
        if not isinstance(content, dict) or not isinstance(content.get("payload"), str):
            raise MismatchError('a JSON object with a "payload"', shown(body))
        return content

    def payload(self, expected: str) -> bytes:
        """Return the payload of the next push."""
        content = self.push(expected)
        text = str(content["payload"])
        return base64.b64decode(text) if content.get("type") == 2 else text.encode()

    def expect_payload(self, payload: bytes) -> None:
        """Take a push of this payload, and of no other."""
        came = self.payload(f"payload {shown(payload)}")
        if came != payload:
            raise MismatchError(f"a push of {payload!r}", f"a push of {came!r}")


def publisher(probe: Probe) -> Stream:
    """Open a connection that publishes."""
    if probe.target.publisher is None:
        raise NotRunError("it needs a publisher door: --publisher HOST:PORT")
    return probe.stream(probe.target.publisher)


def _refused(probe: Probe, wire: bytes, why: str, *before: bytes) -> None:
    client = Client(probe)
    for each in before:
        client.stream.send(each)
    client.stream.send(wire)
    rest = client.stream.expect_end(why)
    if not rest.endswith(ERROR):
        raise MismatchError(f"-command error before the end ({why})", shown(rest))


@CASES.document('**From the connector**: "Heartbeat reply: +h CR LF"')
def heartbeat(probe: Probe) -> None:
    """The golden heartbeat is answered with the golden reply, each time."""
    client = Client(probe)
    for _ in range(3):
        client.heartbeat()
    client.stream.send(HB * 3)
    client.stream.expect(GOLDEN["heartbeat reply"] * 3, "+h three times")


@CASES.document('"$<number of bytes of element-1> CR LF, <element-1 data> CR LF … element-N"')
def bytewise(probe: Probe) -> None:
    """A heartbeat that arrives byte by byte is answered."""
    client = Client(probe)
    client.stream.send_bytewise(HB)
    client.stream.expect(GOLDEN["heartbeat reply"], "+h")


@CASES.document('"auth success reply: +authsuccess CR LF"')
def auth(probe: Probe) -> None:
    """The golden auths, with the timestamp as a string and as a number, succeed where authentication is off."""
    for title in ("auth", "auth with a number"):
        client = Client(probe)
        client.stream.send(GOLDEN[title])
        client.stream.expect(GOLDEN["auth success"], "+authsuccess")
        client.heartbeat()


@CASES.document(
    "**subscribe**: \"sub 'attr1 name' 'attr1 field json string' … 'attrN name' 'attrN field json string'\""
)
def subscribe(probe: Probe) -> None:
    """The golden subscriptions are taken without a reply, and one replaces the other."""
    client = Client(probe)
    for title in ("sub", "sub with extra", "sub withdrawing"):
        client.say(GOLDEN[title])


@CASES.reading("An element's data may hold any bytes, CRLF included: it is cut out by its length.")
def any_bytes(probe: Probe) -> None:
    """An attribute's name may hold CRLF and the signs of the framing."""
    client = Client(probe)
    client.say(command(b"sub", b"a\r\n$3\r\nb", b'{"use":1,"strval":"#\\r\\n"}'))


@CASES.reading("`use` selects the members that count. The others may be absent, or any JSON.")
def other_members(probe: Probe) -> None:
    """Members that `use` does not select may be anything, and unknown ones are ignored."""
    client = Client(probe)
    field = {"use": 2, "low": -1, "high": 1.5, "strval": "", "extra": "", "more": None}
    client.say(subscription({"degrees": field}))


@CASES.document('"command error reply: -command error CR LF"')
def unknown_command(probe: Probe) -> None:
    """A command there is not gets the golden command error, and the end."""
    _refused(probe, command(b"nonsense"), "there is no such command")
    _refused(probe, command(b"hb", b"more"), "hb has no arguments")


@CASES.reading("A first byte that is not `#` is refused at once.")
def no_message(probe: Probe) -> None:
    """A first byte that is not # gets a command error, and the end."""
    _refused(probe, b"GET / HTTP/1.1\r\n\r\n", "it does not begin with #")


@CASES.document('"#<subsequence message length (number of bytes)> CR LF"')
def wrong_length(probe: Probe) -> None:
    """A message whose # counts a byte less than its elements have gets a command error, and the end."""
    _refused(probe, HB.replace(b"#12", b"#11") + HB, "# counts a byte too few")


@CASES.document('"*<number of elements> CR LF"')
def wrong_count(probe: Probe) -> None:
    """A message with fewer elements than * says gets a command error, and the end."""
    _refused(probe, HB.replace(b"*1", b"*2"), "* counts an element too many")


@CASES.reading("| bytes after the `#` line | 65,536 | refused |")
def too_long(probe: Probe) -> None:
    """A message of a gigabyte gets a command error by its first line."""
    _refused(probe, b"#1073741824\r\n", "1 GiB is announced")


@CASES.document('"auth information json: client_id, timestamp, token"')
def bad_auth(probe: Probe) -> None:
    """An auth whose JSON lacks a member, or is none, gets a command error, and the end."""
    _refused(probe, command(b"auth", b'{"client_id":"5f3c0a10b1e24d7780c1a201","timestamp":"1"}'), "no token")
    _refused(probe, command(b"auth", b"nonsense"), "no JSON")


@CASES.document('"use: represents which field will be used. 1: strval, 2: low, high, 3: extra"')
def bad_field(probe: Probe) -> None:
    """A field with a `use` there is not, or without the members that it selects, gets a command error, and the end."""
    fields: tuple[dict[str, object], ...] = ({"use": 4}, {"use": 1}, {"use": 2, "low": 1}, {"use": 3}, {})
    for field in fields:
        _refused(probe, subscription({"x": field}), f"the field is {json.dumps(field)}")
    _refused(probe, command(b"sub", b"x"), "an attribute without a field")


@CASES.document('"low, high: both low and high are float, attribute ranges from low to high"')
def bad_range(probe: Probe) -> None:
    """A range whose low is above its high, or is not a number, gets a command error, and the end."""
    _refused(probe, subscription({"x": {"use": 2, "low": 2, "high": 1}}), "low is above high")
    _refused(probe, command(b"sub", b"x", b'{"use":2,"low":NaN,"high":1}'), "NaN is not a number")


@CASES.reading("A second `auth`, or one after a guest's `sub`, is refused")
def second_auth(probe: Probe) -> None:
    """A second auth gets a command error, and the end."""
    _refused(probe, GOLDEN["auth with a number"], "it is the second auth", GOLDEN["auth"])


@CASES.document(
    '"push message: #<subsequence message length (number of bytes)> CR LF, <message content json string> CR LF"'
)
def push(probe: Probe) -> None:
    """The golden publish reaches the golden subscription, in a push whose length counts its last CRLF."""
    source = publisher(probe)
    client = Client(probe)
    client.say(GOLDEN["sub"])
    source.send(PUBLISH)
    client.expect_payload(b"snow")


@CASES.document('"strval: single string value"')
def equal_strings(probe: Probe) -> None:
    """A subscription to a string brings the messages whose attribute equals it, and no others."""
    source = publisher(probe)
    client = Client(probe)
    client.say(subscription({OWN: {"use": 1, "strval": probe.token}}))
    for value, payload in ((f"{probe.token}0", b"another"), (7, b"a number"), (probe.token, b"equal")):
        source.send(publication({OWN: value}, payload))
    source.send(publication({"x": 1}, b"without"))
    source.send(publication({OWN: probe.token, "x": "y"}, b"equal too"))
    for payload in (b"equal", b"equal too"):
        client.expect_payload(payload)


@CASES.document('"low, high: both low and high are float, attribute ranges from low to high"')
def ranges(probe: Probe) -> None:
    """A range brings its two ends and what lies between, and nothing else."""
    source = publisher(probe)
    client = Client(probe)
    client.say(
        subscription({OWN: {"use": 1, "strval": probe.token}, "v": {"use": 2, "low": -1, "high": 2.5}})
    )
    for value in (-1.01, -1, "1", 0, 2.5, 2.51):
        source.send(publication({OWN: probe.token, "v": value}, str(value).encode()))
    source.send(publication({OWN: probe.token, "v": 1}, b"end"))
    for payload in (b"-1", b"0", b"2.5", b"end"):
        client.expect_payload(payload)


@CASES.reading("A second one replaces the first.")
def replaced(probe: Probe) -> None:
    """A second sub replaces the first, and a sub without attributes withdraws it."""
    source = publisher(probe)
    client, other = Client(probe), Client(probe)
    one = subscription({OWN: {"use": 1, "strval": f"{probe.token}1"}})
    two = subscription({OWN: {"use": 1, "strval": f"{probe.token}2"}})
    client.say(one)
    client.say(two)
    other.say(one)
    source.send(publication({OWN: f"{probe.token}1"}, b"first"))
    source.send(publication({OWN: f"{probe.token}2"}, b"second"))
    client.expect_payload(b"second")
    other.expect_payload(b"first")
    client.say(GOLDEN["sub withdrawing"])
    other.say(two)
    source.send(publication({OWN: f"{probe.token}2"}, b"third"))
    other.expect_payload(b"third")
    client.heartbeat()


@CASES.reading("A payload that is not UTF-8 goes as base64, with padding and without line breaks")
def bytes_payload(probe: Probe) -> None:
    """A payload that is not UTF-8 comes as base64, and says so by its type, 2."""
    source = publisher(probe)
    client = Client(probe)
    client.say(subscription({OWN: {"use": 1, "strval": probe.token}}))
    source.send(publication({OWN: probe.token}, b"\xff\x00\xfe"))
    content = client.push("base64")
    if (content["payload"], content.get("type")) != ("/wD+", 2):
        raise MismatchError('"payload": "/wD+", "type": 2', json.dumps(content))


@CASES.reading(
    "`in` and `prefix` are not satisfied by a message without the attribute; so `not` around them is."
)
def extra(probe: Probe) -> None:
    """`extra` with in, prefix and not selects as our page says."""
    source = publisher(probe)
    client = Client(probe)
    wanted = json.dumps({"any": [{"in": ["a", 7]}, {"prefix": "pre"}]})
    client.say(subscription({OWN: {"use": 1, "strval": probe.token}, "v": {"use": 3, "extra": wanted}}))
    for value in ("b", "a", 8, 7, "pre-x", "xpre"):
        source.send(publication({OWN: probe.token, "v": value}, str(value).encode()))
    for payload in (b"a", b"7", b"pre-x"):
        client.expect_payload(payload)
