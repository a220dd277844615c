"""``log aside``: messages that a running frontend kept and its upstream hub refused for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from headrace.cli.terminal.help_text import add_command, make_group
from headrace.cli.terminal.options import ClientId, DoorScheme, Json, LinkUrl, Yes, hub_access
from headrace.cli.terminal.output import (
    confirm,
    console,
    counted,
    moment,
    plain_table,
    print_json,
    print_result,
    wants_json,
)
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.client.link.client import LinkClient

_CLIENT: Final = "headrace log aside"

aside = make_group(
    """
    Show, retry or drop what a frontend kept and its upstream hub refused for good.

    A frontend that stores and forwards has acknowledged these messages as kept, so a person decides about them.
    """,
    ("What was refused, and why?", "headrace log aside list"),
    ("Once the reason is mended:", "headrace log aside retry --all"),
)

Requests: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="[REQUEST]...", help="As listed.", show_default=False)
]
Every: TypeAlias = Annotated[bool, typer.Option("--all", help="All that are set aside.")]


@add_command(
    aside,
    "list",
    ("For people:", "headrace log aside list"),
    ("For a script:", "headrace log aside list --json | jq '.[].reason'"),
)
def list_aside(url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """List the refused requests, oldest first, each with its reason.

    Beside the frontend's files, headrace log dump --data DATA/outbox/aside shows the messages.
    """
    found = hub_access(url, DoorScheme.TUBE, client_id).ask(_CLIENT, lambda link: link.set_aside())
    if wants_json(asked=as_json):
        print_json(found)
    elif not found:
        print("nothing is set aside")
    else:
        from rich.markup import escape

        from headrace.cli.terminal.rendering import visible

        table = plain_table("request", "when", ">messages", "topics", "reason")
        for each in found:
            topics = ", ".join(each["topics"])
            texts = (
                each["request"],
                str(moment(each["time"])),
                str(each["messages"]),
                topics,
                each["reason"],
            )
            table.add_row(*(escape(visible(text.encode())) for text in texts))
        console().print(table)


@add_command(
    aside,
    "retry",
    ("One of them:", "headrace log aside retry 3f2a91c0-17"),
    ("All, in order:", "headrace log aside retry --all"),
)
def retry(
    requests: Requests = None,
    every: Every = False,
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Publish requests again, as new messages: without their publishers' numbers, and after all later messages.

    A request that is refused once more stays set aside; the reason is the error, and later requests are not tried.
    """

    async def publish(link: LinkClient) -> list[dict[str, object]]:
        done: list[dict[str, object]] = []
        for name in await _chosen(link, requests, every):
            last = await link.retry_set_aside(name)
            done.append({"request": name, "last": last, "kept": last is None})
        return done

    done = hub_access(url, DoorScheme.TUBE, client_id).ask(_CLIENT, publish)
    kept = ", kept again until the upstream hub is back" if any(each["kept"] for each in done) else ""
    print_result(done, f"published {counted(len(done), 'request')}{kept}", as_json=as_json)


@add_command(
    aside,
    "drop",
    ("Asking first:", "headrace log aside drop 3f2a91c0-17"),
    ("In a script:", "headrace log aside drop --all --yes"),
)
def drop(
    requests: Requests = None,
    every: Every = False,
    yes: Yes = False,
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Delete requests and their messages for good. It asks first."""
    hub = hub_access(url, DoorScheme.TUBE, client_id)
    names = hub.ask(_CLIENT, lambda link: _chosen(link, requests, every))
    if names:
        question = f"Drop {counted(len(names), 'request')} and all their messages from {hub.url}?"
        confirm(question, yes=yes, remedy="add --yes to drop them")

    async def forget(link: LinkClient) -> None:
        for name in names:
            await link.drop_set_aside(name)

    hub.ask(_CLIENT, forget)
    print_result({"dropped": names}, f"dropped {counted(len(names), 'request')}", as_json=as_json)


async def _chosen(link: LinkClient, requests: list[str] | None, every: bool) -> list[str]:
    """Return the names of the chosen requests."""
    if every is bool(requests):
        raise UsageError("name the requests, or all of them with --all: headrace log aside list shows them")
    return requests or [each["request"] for each in await link.set_aside()]
