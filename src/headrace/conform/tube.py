"""Cases for the tube, over TCP or over WebSocket.

What a message means is the application's business. The kit sends the first request of Headrace's link, in every form
that a message can have. If the server answers it, the answer must be the same each time, whatever the form; if not, the
Pong to a Ping after it shows that the server read the message to its end.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import Final

from headrace.conform.case import Cases, MismatchError, NotRunError
from headrace.conform.probe import Probe
from headrace.conform.tube_line import PING, PONG, Heard, Line, TcpLine, WebSocketLine, read_varint, varint
from headrace.wire.vectors import golden

CASES: Final = Cases()
GOLDEN: Final = golden("tube")
REQUEST: Final = golden("link")["hello"]
"""The application's message: at least eight bytes, since a golden message has up to eight fragments."""

DEFLATE: Final = 1
ANSWER_SECONDS: Final = 0.5
"""How long an application may take to answer after the Pong; one that does not answer is not waited for longer."""

QUIET_SECONDS: Final = 0.2
"""How long a case waits for what must not come."""

NOT_SUPPORTED: Final = 8
"""A refusal of compression n is the code 8 + n."""


def header(title: str) -> tuple[bytes, int]:
    """Return the header of a golden message, and how many fragments it announces."""
    wire = GOLDEN[title]
    if wire[0] & 7:
        return wire[:1], wire[0] & 7
    count, length = read_varint(wire[1:], title)
    return wire[: 1 + length], count


def cut(data: bytes, count: int) -> list[bytes]:
    """Cut data into ``count`` fragments, none of them empty."""
    step = -(-len(data) // count)
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    while len(pieces) < count:
        longest = max(range(len(pieces)), key=lambda at: len(pieces[at]))
        piece = pieces[longest]
        pieces[longest : longest + 1] = [piece[:1], piece[1:]]
    return pieces


def open_line(probe: Probe, size: bytes = GOLDEN["fragment size 262144"], *, joined: bool = False) -> Line:
    """Open a tube."""
    line: Line = WebSocketLine(probe, joined=joined) if probe.target.websocket else TcpLine(probe)
    stated = line.size(size)
    if stated < 1:
        raise MismatchError("a fragment size of 1 or more", str(stated))
    return line


def pong(line: Line) -> list[Heard]:
    """Send a Ping; return what comes before its Pong."""
    line.say(GOLDEN["ping"], [])
    before = []
    while (heard := line.hear("a Pong")).code != PONG:
        before.append(heard)
    return before


def answer(probe: Probe, line: Line) -> bytes | None:
    """Return the server's answer to the message just sent, or None if it only read it."""
    line.say(GOLDEN["ping"], [])
    message = None
    ponged = False
    while not ponged or message is None:
        try:
            with probe.at_most(ANSWER_SECONDS if ponged else probe.target.patience):
                heard = line.hear("an answer, or a Pong")
        except MismatchError:
            if ponged:
                return None
            raise
        if heard.code < NOT_SUPPORTED:
            message = zlib.decompress(heard.message) if heard.code == DEFLATE else heard.message
        elif heard.code == PONG:
            ponged = True
        elif heard.code != PING:
            raise MismatchError("an answer, or a Pong", str(heard))
    return message


def say(line: Line, title: str, data: bytes = REQUEST) -> None:
    """Send data in the form of a golden message."""
    head, count = header(title)
    line.say(head, cut(data, count))


def _same_answer(probe: Probe, title: str, data: bytes = REQUEST, *, joined: bool = False) -> None:
    plain = open_line(probe)
    say(plain, "message hello")
    expected = answer(probe, plain)
    line = open_line(probe, joined=joined)
    say(line, title, data)
    came = answer(probe, line)
    if came != expected:
        raise MismatchError(f"the answer to the same message in one fragment: {expected!r}", repr(came))


@CASES.document('Server\'s size: "Sent by server, in response to the initial client->server" one')
def fragment_sizes(probe: Probe) -> None:
    """A client's fragment size, of one byte or five, is answered with the server's."""
    for size in (GOLDEN["fragment size 100"], GOLDEN["fragment size 262144"], varint(1), varint(2**31 - 1)):
        open_line(probe, size)


@CASES.document('"16 - Ping (Peer should immediately respond with Pong)"')
def ping(probe: Probe) -> None:
    """The golden Ping is answered with the golden Pong, each time."""
    line = open_line(probe)
    for _ in range(3):
        line.say(GOLDEN["ping"], [])
    for _ in range(3):
        heard = line.hear("a Pong")
        if heard.code != PONG:
            raise MismatchError("a Pong", str(heard))


@CASES.reading("Its low three bits are sent 0 and ignored, and no count follows it, whatever they are.")
def ping_low_bits(probe: Probe) -> None:
    """A Ping with low bits set is a Ping, and no count follows it."""
    line = open_line(probe)
    line.say(GOLDEN["ping with low bits"], [])
    if (heard := line.hear("a Pong")).code != PONG:
        raise MismatchError("a Pong", str(heard))
    pong(line)


@CASES.document('"17 - Pong (Sent in reply to Ping, peer should not respond)"')
def unasked_pong(probe: Probe) -> None:
    """A Pong that nobody asked for is not answered."""
    line = open_line(probe)
    line.say(GOLDEN["pong"], [])
    _nothing_but_a_pong(probe, line, "nothing in answer to a Pong")


@CASES.document('"0 - Message is not compressed"')
def one_fragment(probe: Probe) -> None:
    """A message in one fragment, with its count in the header, is read to its end."""
    line = open_line(probe)
    say(line, "message hello")
    pong(line)


@CASES.document(
    '"The least-significant three bits" are "an *unsigned* three-bit integer which represents the number of fragments'
    ' in the message"'
)
def two_fragments(probe: Probe) -> None:
    """A message in two fragments is the same message."""
    _same_answer(probe, "message in two fragments")


@CASES.document(
    '"If the least-significant three bits are all zero, the number of fragments is specified by the next 1-5 bytes",'
    ' "an Avro-varint-encoded signed integer"'
)
def counted_fragments(probe: Probe) -> None:
    """A message in eight fragments, whose count follows the header, is the same message."""
    _same_answer(probe, "message in eight fragments")


@CASES.reading("A count of 1 to 7 that follows as a number is accepted, though never sent")
def small_count(probe: Probe) -> None:
    """A message in one fragment, whose count follows the header though it need not, is the same message."""
    _same_answer(probe, "message in one counted fragment")


@CASES.document('"After a data message is started by a data message header, the data fragments are sent"')
def joined_header(probe: Probe) -> None:
    """Over WebSocket, a header that begins the first fragment's message is read too."""
    if not probe.target.websocket:
        raise NotRunError("only WebSocket has two ways to send a header: ws://HOST:PORT")
    for title in ("message hello", "message in two fragments", "message in eight fragments"):
        _same_answer(probe, title, joined=True)


@CASES.document('"representing the client\'s desired fragment size"')
def obeyed_size(probe: Probe) -> None:
    """The server's fragments are no longer than the client asked for, and make the same message."""
    plain = open_line(probe)
    say(plain, "message hello")
    expected = answer(probe, plain)
    if not expected:
        raise NotRunError("the server does not answer the kit's message")
    line = open_line(probe, varint(3))
    say(line, "message hello")
    while (heard := line.hear("an answer in fragments of 3 bytes")).code >= NOT_SUPPORTED:
        pass
    if max(map(len, heard.fragments)) > 3 or heard.message != expected:
        raise MismatchError(f"{expected!r} in fragments of at most 3 bytes", str(heard))


@CASES.document('"1 - Message is compressed using deflate (compression id 1)"')
def deflate(probe: Probe) -> None:
    """A compressed message is the same message, or is answered as not supported; the connection stays."""
    line = open_line(probe)
    say(line, "compressed message", zlib.compress(REQUEST, 1))
    refusals = [heard for heard in pong(line) if heard.code == NOT_SUPPORTED + DEFLATE]
    if not refusals:
        _same_answer(probe, "compressed message", zlib.compress(REQUEST, 1))


@CASES.document('"2" to "7 - Reserved for future compression scheme"')
def unknown_compressions(probe: Probe) -> None:
    """Messages in compressions 2 to 7 are each answered with 8 + id, and discarded; the connection stays."""
    line = open_line(probe)
    head, _ = header("message in compression 2")
    for number in range(2, 8):
        line.say(bytes([number << 3 | 1]) if number > 2 else head, [b"\x01\x02\x03"])
        heard = line.hear(f"compression {number} is not supported: code {NOT_SUPPORTED + number}")
        if heard != Heard(NOT_SUPPORTED + number):
            raise MismatchError(f"control code {NOT_SUPPORTED + number}", str(heard))
    pong(line)


@CASES.reading('and answered with 9, "not supported", and the connection stays.')
def raw_deflate(probe: Probe) -> None:
    """A message in raw deflate (RFC 1951) under id 1 is answered with 9, and the connection stays."""
    line = open_line(probe)
    say(line, "compressed message", zlib.compress(REQUEST, 1)[2:-4])
    heard = line.hear("compression 1 is not supported: code 9")
    if heard != Heard(NOT_SUPPORTED + DEFLATE):
        raise MismatchError("control code 9", str(heard))
    pong(line)


@CASES.document('"10" to "15 - Compression id 2" to "7 is not supported by peer"')
def unasked_refusals(probe: Probe) -> None:
    """Refusals of compressions that the server never used are ignored."""
    line = open_line(probe)
    for title in ("compression 1 not supported", "compression 7 not supported"):
        line.say(GOLDEN[title], [])
    _nothing_but_a_pong(probe, line, "nothing in answer to a refusal")


@CASES.document('"An Avro-varint-encoded signed integer", "1-5 bytes in size"')
def bad_size(probe: Probe) -> None:
    """A fragment size of more than five bytes, of 0 or below ends the connection."""
    for wire, why in (
        (b"\x80\x80\x80\x80\x80\x01", "it has six bytes"),
        (varint(0), "it is 0"),
        (varint(-1), "it is -1"),
    ):
        line: Line = WebSocketLine(probe) if probe.target.websocket else TcpLine(probe)
        line.say(wire, [])
        line.expect_end(f"the fragment size is wrong: {why}")


@CASES.document('"8 - Unused"')
def unused_code(probe: Probe) -> None:
    """Code 8 ends the connection."""
    _refused(probe, bytes([8 << 3]), "code 8 is unused")


@CASES.document('"18 to 31 - Reserved for future control messages"')
def reserved_codes(probe: Probe) -> None:
    """Codes 18 and 31 end the connection."""
    for code in (18, 31):
        _refused(probe, bytes([code << 3]), f"code {code} is reserved")


@CASES.reading("A negative count or fragment length is refused.")
def negative_count(probe: Probe) -> None:
    """A message of -1 fragments ends the connection."""
    _refused(probe, b"\x00" + varint(-1), "the count is -1")


@CASES.document('"The maximum number of fragments is therefore 2^31-1"')
def huge_count(probe: Probe) -> None:
    """A message of 2^31-1 fragments does not stop the server from serving others, whatever it does with that one."""
    line = open_line(probe)
    line.say(b"\x00" + varint(2**31 - 1), [])
    pong(open_line(probe))


def _nothing_but_a_pong(probe: Probe, line: Line, expected: str) -> None:
    """Send a Ping; its Pong must be all that comes."""
    heard = pong(line)
    # Pongs cannot be told apart, so a second one is waited for.
    with probe.at_most(QUIET_SECONDS), contextlib.suppress(MismatchError):
        heard.append(line.hear("silence"))
    if heard:
        raise MismatchError(expected, str(heard[0]))


def _refused(probe: Probe, head: bytes, why: str) -> None:
    line = open_line(probe)
    line.say(head, [])
    line.expect_end(why)
