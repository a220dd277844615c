"""Run a protocol's cases against a server, one after the other, within a limit of time."""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Collection, Iterator
from typing import Final

from headrace.config import Address
from headrace.conform.case import Case, Cases, MismatchError, NotRunError, Outcome, Result
from headrace.conform.probe import Probe
from headrace.conform.target import Target
from headrace.errors import UnreachableError, UsageError, system_reason

PROTOCOLS: Final = ("fyrehose", "spp", "parcel", "attribute", "sdk", "tube")
"""The protocols that have cases, each in a module of its name."""

RUN_SECONDS: Final = 120.0
"""A run ends after this long, whatever the server does."""


def cases_of(protocol: str, names: Collection[str] = (), *, door: str = "") -> list[Case]:
    """Return a protocol's cases in order, or those with these names; ``door`` selects one of the attribute family."""
    if protocol not in PROTOCOLS:
        raise UsageError(f"{protocol!r} is not a protocol of the kit: expected {', '.join(PROTOCOLS)}")
    cases: Cases = importlib.import_module(f"headrace.conform.{protocol}").CASES
    unknown = set(names) - {case.name for case in cases}
    if unknown:
        raise UsageError(f"{protocol} has no case {min(unknown)!r}: headrace conform {protocol} --list")
    chosen = [case for case in cases if not names or case.name in names]
    return [case for case in chosen if not door or case.group in ("", door)]


def run_cases(cases: list[Case], target: Target, *, seconds: float = RUN_SECONDS) -> Iterator[Result]:
    """Yield each case's result as it becomes known.

    Raises :class:`~headrace.errors.UnreachableError` if nobody listens there.
    """
    closed = _closed_groups({case.group for case in cases}, target)
    deadline = time.monotonic() + seconds
    for case in cases:
        if case.group in closed:
            yield Result(case, Outcome.NOT_RUN, 0.0, came=closed[case.group])
        elif time.monotonic() > deadline:
            yield Result(case, Outcome.NOT_RUN, 0.0, came=f"the run's {seconds:g} s are over")
        else:
            yield _run_case(case, target)


def _run_case(case: Case, target: Target) -> Result:
    began = time.monotonic()

    def result(outcome: Outcome, expected: str = "", came: str = "", sent: tuple[str, ...] = ()) -> Result:
        return Result(case, outcome, time.monotonic() - began, expected, came, sent)

    with Probe(target) as probe:
        try:
            case.run(probe)
        except MismatchError as error:
            return result(Outcome.FAILED, error.expected, error.came, probe.transcript)
        except NotRunError as error:
            return result(Outcome.NOT_RUN, came=str(error))
        except TimeoutError:
            return result(Outcome.FAILED, case.title, "silence", probe.transcript)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # A server may send anything; what a case cannot even read is not what it expects.
            came = f"something that cannot be read: {type(error).__name__}: {error}"
            return result(Outcome.FAILED, case.title, came, probe.transcript)
    return result(Outcome.PASSED)


def _closed_groups(groups: set[str], target: Target) -> dict[str, str]:
    """Return why each group that cannot be tried cannot.

    A TCP server that does not take a connection is not there. UDP shows nothing of itself: there, the server is there
    if the TCP port is, or if a datagram is not turned away.
    """
    if "udp" in groups:
        refused = _refusal(target.place, target.patience)
        if refused and _turns_datagrams_away(target):
            raise UnreachableError(str(target.place), refused)
        return {"tcp": f"nothing listens on TCP at {target.place}: {refused}"} if refused else {}
    if refused := _refusal(target.place, target.patience):
        raise UnreachableError(str(target.place), refused)
    return {}


def _refusal(place: Address, seconds: float) -> str:
    try:
        socket.create_connection((place.host, place.port), seconds).close()
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return system_reason(error)
    return ""


def _turns_datagrams_away(target: Target) -> bool:
    """Return whether a KEEPALIVE brings neither an answer nor silence from a port that is open."""
    from headrace.conform.fyrehose import keepalive

    with Probe(target) as probe:
        try:
            line = probe.datagrams()
            line.send(keepalive(line.local))
            line.take("a KEEPALIVE-ACK")
        except (MismatchError, NotRunError):
            return True
    return False
