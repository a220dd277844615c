"""Arbitrary bytes at a connector and at a client of the SDK's text protocol.

The input's first byte chooses the side and how the rest is chunked. Commands that are read move a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import UnexpectedError, WireError
from headrace.wire.receive_buffer import Decoder
from headrace.wire.sdk.auth import Auth, is_signed, parse_auth, serialize_auth
from headrace.wire.sdk.commands import (
    ClientDecoder,
    Command,
    SdkEvent,
    SdkLimits,
    SdkState,
    ServerDecoder,
    event_of,
    new_session,
    serialize,
)
from headrace.wire.sdk.predicate import parse_field, serialize_field
from headrace.wire.sdk.subscribe import Subscribe

LIMITS = SdkLimits(message=2000, elements=9, element=1000)
MAX_PUSH = 2000

SIDES: tuple[Callable[[], Decoder[Any]], ...] = (
    lambda: ServerDecoder(LIMITS),
    lambda: ClientDecoder(MAX_PUSH),
)


def target(data: bytes) -> None:
    choice, wire = data[0] if data else 0, data[1:]
    side = SIDES[choice & 1]
    step = (choice >> 2) + 1
    frames, refusal = read(side(), [wire])
    assert read(side(), [wire[i : i + step] for i in range(0, len(wire), step)]) == (frames, refusal), (
        "chunking"
    )
    for frame in frames:
        unbounded = ServerDecoder() if choice & 1 == 0 else ClientDecoder()
        assert read(unbounded, [serialize(frame)]) == ([frame], None), "what is read can be written"
    if choice & 1 == 0:
        converse(frames, auth_required=bool(choice & 2))


def read(decoder: Decoder[Any], chunks: list[bytes]) -> tuple[list[Any], tuple[object, ...] | None]:
    frames: list[Any] = []
    try:
        for chunk in chunks:
            frames.extend(decoder.feed(chunk))
    except WireError as error:
        return frames, (type(error), error.protocol, error.field, error.value, error.limit, error.offset)
    assert decoder.unfinished < MAX_PUSH + 16
    return frames, None


def converse(commands: list[Command], *, auth_required: bool) -> None:
    session = new_session(auth_required=auth_required)
    for command in commands:
        match command:
            case Auth():
                assert parse_auth(serialize_auth(command)) == command
                assert command.seconds >= 0
                is_signed(command, b"key", allow_sha1=True)
            case Subscribe():
                for predicate in (each for some in command.alternatives for each in some.values()):
                    assert parse_field(serialize_field(predicate)) == predicate
            case _:
                pass
        try:
            session.step(event_of(command))
        except UnexpectedError:
            session.step(SdkEvent.ERROR)
            break
    assert session.state in SdkState
    assert auth_required or session.state is not SdkState.LOCKED
