"""The kit on our own hub, which passes, and on servers that do not."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable

import pytest
from tests.conform.conftest import TargetOf
from tests.conform.middleman import (
    ALTERS,
    CLOSES,
    NEVER_CLOSES,
    SWALLOWS,
    Breach,
    Middleman,
    SilentStranger,
)
from tests.hubprocess import HubProcess
from tests.ports import lasting_port

from headrace.config import Address
from headrace.conform import Case, Outcome, Result, Target, cases_of, run_cases
from headrace.conform.target import parse_address
from headrace.errors import UnreachableError, UsageError

DOORS = {
    "fyrehose": "fyrehose",
    "spp": "spp",
    "parcel": "parcel",
    "publisher": "attribute",
    "dispatcher": "attribute",
    "router": "attribute",
    "status": "attribute",
    "sdk": "sdk",
    "tube_tcp": "tube",
    "tube_ws": "tube",
}
"""The protocol of each door."""

SHORT = 0.1
"""How long a case waits for a server that will not answer."""


def cases_at(door: str) -> list[Case]:
    protocol = DOORS[door]
    return cases_of(protocol, door=door if protocol == "attribute" else "")


def test_every_case_is_for_some_door() -> None:
    at_doors = {case.name for door in DOORS for case in cases_at(door) if DOORS[door] == "attribute"}
    assert at_doors == {case.name for case in cases_of("attribute")}


@pytest.mark.parametrize("door", DOORS)
def test_our_own_hub_passes(target_of: TargetOf, door: str) -> None:
    results = list(run_cases(cases_at(door), target_of(door)))
    failed = [result for result in results if result.outcome is Outcome.FAILED]
    assert failed == []
    not_run = {result.case.name for result in results if result.outcome is Outcome.NOT_RUN}
    assert not_run == ({"joined-header"} if door == "tube_tcp" else set())


def test_twice_on_the_same_hub(target_of: TargetOf) -> None:
    for _ in range(2):
        assert {each.outcome for each in run_cases(cases_of("spp"), target_of("spp"))} == {Outcome.PASSED}


def broken(
    hub: HubProcess, target_of: TargetOf, door: str, case: Case, breach: Breach, honest: int
) -> Result:
    """Run a case at a server that breaks the protocol."""
    with Middleman(hub.address(door), breach, honest=honest) as between:
        (result,) = run_cases([case], target_of(door, port=between.port, patience=SHORT))
    return result


@pytest.mark.parametrize("door", [door for door in DOORS if door != "tube_ws"])
def test_every_case_can_fail(hub: HubProcess, target_of: TargetOf, door: str) -> None:
    """A case that passes whatever the server does would show nothing."""
    # The first connection of most cases at the spp door makes its service.
    breaches = [(breach, 0) for breach in (CLOSES, NEVER_CLOSES, ALTERS, SWALLOWS)]
    breaches += [(CLOSES, 1), (ALTERS, 1)] if door == "spp" else []
    unbroken = []
    for case in cases_at(door):
        if case.name == "joined-header":
            continue
        if case.group == "udp":
            with SilentStranger() as stranger:
                (result,) = run_cases([case], target_of(door, port=stranger.port, patience=SHORT))
            outcomes = [result.outcome]
        else:
            outcomes = []
            for breach, honest in breaches:
                outcomes.append(broken(hub, target_of, door, case, breach, honest).outcome)
                if outcomes[-1] is Outcome.FAILED:
                    break
        if outcomes[-1] is not Outcome.FAILED:
            unbroken.append((case.name, outcomes))
    assert unbroken == []


def replacing(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


def number(value: int) -> bytes:
    return value.to_bytes(4)


UNSUBSCRIBE = number(2) + number(20) + number(16) + b"headrace-conform"


@pytest.mark.parametrize(
    ("door", "name", "breach"),
    [
        (
            "fyrehose",
            "tcp-keepalive",
            Breach(answer=replacing(b"\x20\x7f\0\0\1\x09\x13", b"\x20\x7f\0\0\1\x09\x14")),
        ),
        ("fyrehose", "tcp-push", Breach(answer=replacing(b"hello", b"hullo"))),
        ("fyrehose", "tcp-push", Breach(request=replacing(b"\x02\x00\x05hello\x02\x00\x00", b""))),
        ("fyrehose", "tcp-request", Breach(request=replacing(b"\x04\x7f", b"\x10\x7f"))),
        ("spp", "passwords", Breach(request=replacing(number(33), number(0x48520002)))),
        ("spp", "unsubscribing", Breach(request=replacing(UNSUBSCRIBE, b""))),
        ("spp", "changes", Breach(answer=replacing(b'"count": 1', b'"count": 2'))),
        ("parcel", "general-status", Breach(answer=replacing(b"WRK", b"XXX"))),
        ("parcel", "true-size", Breach(answer=lambda data: re.sub(rb"dsize.", b"dsize\0", data))),
        ("parcel", "sender-is-added", Breach(request=replacing(b"conform-", b"another-"))),
        (
            "parcel",
            "unasked-response",
            Breach(request=replacing(b"is_response\xf5", b"is_response\xf4")),
        ),
        ("sdk", "heartbeat", Breach(answer=replacing(b"+h\r\n", b"+h\n\r"))),
        ("sdk", "push", Breach(answer=replacing(b"snow", b"rain"))),
        ("sdk", "push", Breach(answer=replacing(b"}\r\n", b"}"))),
        (
            "sdk",
            "equal-strings",
            Breach(request=replacing(b'"use": 1', b'"use":3,"extra":"{\\"exists\\":true}"')),
        ),
        ("sdk", "second-auth", Breach(answer=replacing(b"-command error", b"-command ERROR"))),
        ("tube_tcp", "ping", Breach(answer=replacing(b"\x88", b"\x80"))),
        ("tube_tcp", "unasked-pong", Breach(request=replacing(b"\x88", b"\x80"))),
        ("tube_tcp", "obeyed-size", Breach(request=lambda data: data if data != b"\x06" else b"\x7e")),
        ("tube_tcp", "unknown-compressions", Breach(answer=replacing(b"\x60", b"\x58"))),
        ("status", "start-hash", Breach(answer=replacing(b"\x04\x00\x28", b"\x09\x00\x28"))),
        ("router", "handshake", Breach(answer=replacing(b"\x05\x00\x08", b"\x06\x00\x08"))),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_a_case_is_about_makes_it_fail(
    hub: HubProcess, target_of: TargetOf, door: str, name: str, breach: Breach
) -> None:
    (case,) = cases_of(DOORS[door], [name])
    result = broken(hub, target_of, door, case, breach, 1 if door == "spp" else 0)
    assert result.outcome is Outcome.FAILED
    assert result.expected
    assert result.came
    assert result.sent or door == "status"
    # The same case passes at the hub itself.
    (result,) = run_cases([case], target_of(door))
    assert result.outcome is Outcome.PASSED


@pytest.mark.parametrize("protocol", sorted(set(DOORS.values())))
def test_nobody_is_there(protocol: str) -> None:
    target = Target(Address("127.0.0.1", lasting_port()), SHORT, door="publisher")
    with pytest.raises(UnreachableError, match="refused"):
        next(run_cases(cases_of(protocol), target))


def test_a_server_without_tcp_is_tried_by_datagrams(target_of: TargetOf) -> None:
    port = lasting_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.bind(("127.0.0.1", port))
        plain.settimeout(10)
        answered = cases_of("fyrehose", ["udp-example", "tcp-push"])

        # It answers the runner's look and the example, and nothing else.
        def answer() -> None:
            for _ in range(2):
                data, address = plain.recvfrom(100)
                plain.sendto(b"\x20" + data[1:], address)

        thread = threading.Thread(target=answer)
        thread.start()
        results = list(run_cases(answered, Target(Address("127.0.0.1", port), 10)))
        thread.join(10)
    assert [result.outcome for result in results] == [Outcome.PASSED, Outcome.NOT_RUN]
    assert "nothing listens on TCP" in results[1].came


def test_a_run_ends_in_time(target_of: TargetOf) -> None:
    results = list(run_cases(cases_of("sdk"), target_of("sdk"), seconds=0.0))
    assert {result.outcome for result in results} == {Outcome.NOT_RUN}


def test_what_a_server_needs_and_does_not_have(hub: HubProcess) -> None:
    alone = Target(Address(*hub.address("sdk")))
    (result,) = run_cases(cases_of("sdk", ["push"]), alone)
    assert (result.outcome, result.came) == (
        Outcome.NOT_RUN,
        "it needs a publisher door: --publisher HOST:PORT",
    )


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.0.0.1:", ":80", "h:0", "h:65536", "h:-1", "::1:80", "h:x", ""]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        parse_address(text)


def test_places() -> None:
    assert str(parse_address("[::1]:80")) == "[::1]:80"
    assert str(parse_address("hub.example:80")) == "hub.example:80"


def test_there_is_no_such_case() -> None:
    with pytest.raises(UsageError, match="no case 'nonsense'"):
        cases_of("spp", ["nonsense"])
    with pytest.raises(UsageError, match="not a protocol"):
        cases_of("smtp")
