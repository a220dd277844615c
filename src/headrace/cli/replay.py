"""``replay``: publish a range of one log to another hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.access import Access
from headrace.cli.options import ClientId, Door, Json, LinkUrl, access, gather
from headrace.cli.output import counted, print_json, wants_json
from headrace.cli.prose import examples, paragraphs
from headrace.errors import UsageError

HELP: Final = paragraphs(
    """
    Publish a range of a hub's messages, or of a log's files, to another hub.

    Payload, topic and attributes stay; number and time are the other hub's, and the origin is replay. The other hub
    remembers how far it has come with this log, so a replay that was interrupted or is repeated goes on behind that
    and doubles nothing. It follows that a log is replayed forward only: what lies before is left out, and said. --as
    replays under another name, which has come nowhere yet. With --client-id, this is the same client to both hubs.
    """
)
MAX_NAME: Final = 255

SourceData = Annotated[
    Path | None,
    typer.Option(
        "--data", "-d", metavar="DIR", help="Take them from a data directory's log, not from a hub."
    ),
]
EXAMPLES: Final = examples(
    ("All of this hub's log to another:", "headrace replay --to tube://10.0.0.7:8081"),
    (
        "A range of a stopped hub's files:",
        "headrace replay --data ./old --from 100 --until 200 --to tube://10.0.0.7",
    ),
    ("The last hour once more:", "headrace replay --from -1h --as again --to tube://10.0.0.7"),
)


def replay(
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The link of the hub that gets them.")],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="The first message: a number, earliest, or a time, as tail has it.",
        ),
    ] = "earliest",
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="PLACE",
            help="The last message: a number, or now; or a time, to end before it.",
        ),
    ] = "now",
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Remember it under this name, not under the log's."),
    ] = None,
    url: LinkUrl = None,
    client_id: ClientId = None,
    data: SourceData = None,
    as_json: Json = False,
) -> None:
    """Publish a range of one log to another hub."""
    if url is not None and data is not None:
        raise UsageError("--url and --data both say where the messages are: leave out one")
    if name is not None and not 1 <= len(name) <= MAX_NAME:
        raise UsageError(f"--as {name}: expected 1 to {MAX_NAME} characters")
    from headrace.cli.places import End, here, parse_place

    now = here()
    first, last = parse_place("--from", begin, now), parse_place("--until", until, now)
    if first is End.NOW:
        raise UsageError("--from now: nothing is there yet")
    if last is End.EARLIEST:
        raise UsageError("--until earliest: expected a number, a time or now")
    if isinstance(first, int) and isinstance(last, int) and first > last:
        raise UsageError(f"--from {first} is behind --until {last}")
    target = access(to, Door.TUBE, client_id)
    from headrace.cli import replaying

    if data is not None:
        from headrace.cli.log import existing

        source: Access | Path = existing(gather(None, data))
    else:
        source = access(url, Door.TUBE, client_id)
    done = replaying.replay(source, target, first, last, name)
    if done.skipped:
        typer.echo(
            f"headrace: messages up to {done.skipped} were left out: the other hub has this log up to there",
            err=True,
        )
    if wants_json(asked=as_json):
        print_json(done.facts())
    elif done.messages == 1:
        print(f"replayed 1 message; it is {done.first} there")
    elif done.messages:
        print(f"replayed {counted(done.messages, 'message')}; they are {done.first}-{done.last} there")
    else:
        print("there was nothing to replay")
