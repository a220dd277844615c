"""``conform``: try any server against a protocol's document."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.terminal.exits import FAILED
from headrace.cli.terminal.options import Json
from headrace.cli.terminal.output import console, print_json, wants_json
from headrace.errors import UsageError
from headrace.protocols import PORTS

if TYPE_CHECKING:
    from headrace.conform import Case, Result

EXAMPLES: Final = (
    ("The hub on this machine:", "headrace conform fyrehose 127.0.0.1:2323"),
    ("A server of another make, by the document alone:", "headrace conform spp 10.0.0.7:3002 --document"),
    (
        "A connector, and what is published to it:",
        "headrace conform sdk 10.0.0.7:7253 --publisher 10.0.0.7:8000",
    ),
    ("Tubes over WebSocket:", "headrace conform tube ws://10.0.0.7:8080"),
    ("What would be tried:", "headrace conform parcel --list"),
    ("For a script:", "headrace conform parcel 10.0.0.7:7878 --json | jq .failed"),
)

_MARKS: Final = {
    "passed": "[green]passed [/green]",
    "failed": "[red]failed [/red]",
    "not run": "[yellow]not run[/yellow]",
}


class Tried(StrEnum):
    """The protocols that can be tried."""

    FYREHOSE = "fyrehose"
    SPP = "spp"
    PARCEL = "parcel"
    ATTRIBUTE = "attribute"
    SDK = "sdk"
    TUBE = "tube"


class AttributeDoor(StrEnum):
    """The doors of the attribute family."""

    PUBLISHER = "publisher"
    DISPATCHER = "dispatcher"
    ROUTER = "router"
    STATUS = "status"


def conform(
    protocol: Annotated[Tried, typer.Argument(help="The protocol to test.", show_default=False)],
    address: Annotated[
        str | None,
        typer.Argument(metavar="HOST:PORT", help="Where the server listens.", show_default=False),
    ] = None,
    door: Annotated[
        AttributeDoor | None,
        typer.Option(
            "--door", help="attribute: which door this is; by default the one whose default port it is."
        ),
    ] = None,
    sdk: Annotated[
        str | None,
        typer.Option("--sdk", metavar="HOST:PORT", help="attribute: the connector where messages arrive."),
    ] = None,
    publisher: Annotated[
        str | None,
        typer.Option("--publisher", metavar="HOST:PORT", help="sdk: the door where the kit may publish."),
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Run only this case. Repeatable.")
    ] = None,
    document: Annotated[
        bool, typer.Option("--document", help="Only what the original document says, not our reading of it.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.05, max=60, metavar="SECONDS", help="How long a case waits.")
    ] = 5.0,
    listing: Annotated[bool, typer.Option("--list", help="List the cases, and run none.")] = False,
    as_json: Json = False,
) -> None:
    """Check that a server follows a protocol's document: Headrace's own, or anybody's.

    It sends the documents' frames, golden and hostile, and prints a line for each case: whether the server passed and,
    if it did not, what was sent, what was expected, what came, and the sentence that asks for it.

    The cases publish a few messages and take at most two minutes. Run them against a server that may be tested, without
    authentication. The exit code is 1 if a case failed or nothing listens there.
    """
    from headrace.conform import Basis, cases_of, run_cases

    chosen = "" if door is None else door.value
    if address is not None and protocol is Tried.ATTRIBUTE and door is None:
        chosen = _door_of(address)
    cases = cases_of(protocol.value, names or (), door=chosen)
    if document:
        cases = [case for case in cases if case.basis is Basis.DOCUMENT]
    if listing:
        _print_cases(cases, as_json=as_json)
        return
    if address is None:
        raise UsageError("which server? expected HOST:PORT; --list shows the cases without one")
    results = run_cases(cases, _target(protocol, address, timeout, chosen, sdk, publisher))
    if wants_json(asked=as_json):
        done = list(results)
        print_json(
            {"protocol": protocol.value, "address": address, **_counts(done), "cases": [*map(_facts, done)]}
        )
    else:
        done = []
        for result in results:
            _print_result(result)
            done.append(result)
        counts = _counts(done)
        print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['not_run']} not run")
    if _counts(done)["failed"]:
        raise typer.Exit(FAILED)


def _target(
    protocol: Tried, address: str, timeout: float, door: str, sdk: str | None, publisher: str | None
) -> Any:
    from headrace.conform.target import Target, parse_address

    scheme, separator, rest = address.partition("://")
    if separator and (protocol, scheme) not in ((Tried.TUBE, "ws"), (Tried.TUBE, "tube")):
        raise UsageError(
            f"{address!r} is not the address of the server: expected HOST:PORT, or ws://HOST:PORT for a tube"
        )
    return Target(
        parse_address(rest if separator else address),
        timeout,
        door,
        None if sdk is None else parse_address(sdk, "a connector"),
        None if publisher is None else parse_address(publisher, "a publisher door"),
        scheme == "ws" and bool(separator),
    )


def _door_of(address: str) -> str:
    port = address.rpartition(":")[2]
    for door in AttributeDoor:
        if port == str(PORTS[door.value]):
            return door.value
    raise UsageError(f"which door is {address}? Say so: --door {', '.join(AttributeDoor)}")


def _counts(results: list[Result]) -> dict[str, int]:
    outcomes = [result.outcome.value for result in results]
    return {name.replace(" ", "_"): outcomes.count(name) for name in _MARKS}


def _facts(result: Result) -> dict[str, object]:
    return {
        **_about(result.case),
        "outcome": result.outcome.value,
        "seconds": round(result.seconds, 3),
        "sent": list(result.sent),
        "expected": result.expected,
        "came": result.came,
    }


def _about(case: Case) -> dict[str, object]:
    return {
        "case": case.name,
        "group": case.group,
        "title": case.title,
        "basis": case.basis.value,
        "sentence": case.sentence,
    }


def _print_result(result: Result) -> None:
    from rich.markup import escape

    out = console()
    case = result.case
    reason = f" [dim]({escape(result.came)})[/dim]" if result.outcome.value == "not run" else ""
    out.print(f"{_MARKS[result.outcome.value]}  {case.name}  {escape(case.title)}{reason}", soft_wrap=True)
    if result.outcome.value == "failed":
        for what, text in (
            *(("sent", each) for each in result.sent),
            ("expected", result.expected),
            ("came", result.came),
            (f"the {case.basis.value}", case.sentence),
        ):
            out.print(f"         [dim]{what}:[/dim] {escape(text)}", soft_wrap=True)
    sys.stdout.flush()


def _print_cases(cases: list[Case], *, as_json: bool) -> None:
    if wants_json(asked=as_json):
        print_json([*map(_about, cases)])
        return
    for case in cases:
        print(f"{case.name}  {case.title} ({case.basis.value}: {case.sentence})")
