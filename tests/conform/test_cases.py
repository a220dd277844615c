"""The cases rest on the documents: their sentences stand on the protocol pages, their bytes are the golden ones, and
the page about the kit lists them all."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from headrace.conform import PROTOCOLS, Basis, Case, cases_of
from headrace.wire.vectors import golden

DOCS = Path(__file__).parents[2] / "docs"
HEADING = "## Sentence by sentence"

NOT_SENT = {
    "fyrehose": set(),
    "spp": {
        # Sent by servers; a client's packets of these types are other goldens.
        "Offer load",
        "Offer größe",
        "Removed load",
        "Info empty",
        # A server without authentication accepts any, and one with it knows no key of the kit.
        "Authenticated accepted",
        "Authenticated with a challenge",
    },
    "parcel": {
        # What only members of a cluster of Headrace's send, and what only its servers do.
        "ProtoError as the original has it",
        "ProtoError with a reason",
        "StateChange",
        "Ping with a tag",
        "Publish",
        "Ack",
        "Prepare",
        "PrepareOk",
        "Commit",
        "StartViewChange",
        "DoViewChange",
        "StartView",
        "Recovery",
        "RecoveryResponse",
        "GetState",
        "NewState",
        "GetSnapshot",
        "SnapshotPart",
    },
    "attribute": set(),
    "sdk": {
        # What a connector sends; the cases read pushes by their parts.
        "push",
        "push of bytes",
        "push of the original",
        # Headrace's own, which the document does not have: other servers need not understand them.
        "push with events",
        "push with names",
        "sub with alternatives",
        "subn",
        "unsubn",
    },
    "tube": {
        # No request of the link is empty.
        "empty message",
        "message of no fragments",
    },
}
"""Golden bytes that no case can send to a server, or expect of it."""


def plain(text: str) -> str:
    """Text without line breaks and marks of emphasis."""
    return " ".join(re.sub(r"[*`]", "", text).split())


def every_case() -> list[tuple[str, Case]]:
    return [(protocol, case) for protocol in PROTOCOLS for case in cases_of(protocol)]


@pytest.mark.parametrize(("protocol", "case"), every_case(), ids=lambda each: getattr(each, "name", each))
def test_the_sentence_stands_on_the_page(protocol: str, case: Case) -> None:
    page = (DOCS / "protocols" / f"{protocol}.md").read_text()
    _, _, table = page.partition(HEADING)
    if case.basis is Basis.DOCUMENT:
        cells = [
            plain(line.split(" | ")[0].removeprefix("| ")) for line in table.splitlines() if line[:2] == "| "
        ]
        assert plain(case.sentence) in cells
    else:
        assert plain(case.sentence) in plain(page), case.sentence
    assert case.title
    assert not case.title.endswith(".")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_golden_frame_is_sent_or_expected(protocol: str) -> None:
    modules = [protocol, "sdk"] if protocol == "attribute" else [protocol]
    sources = [Path(importlib.import_module(f"headrace.conform.{name}").__file__ or "") for name in modules]
    words = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    unused = set(golden(protocol)) - words
    assert unused == NOT_SENT[protocol]


def listed() -> str:
    """The tables of the page, made of the cases."""
    parts = []
    for protocol in PROTOCOLS:
        rows = [f"### {protocol}", "", "| case | what the server does | asked for by |", "|---|---|---|"]
        for case in cases_of(protocol):
            where = f" ({case.group})" if case.group and protocol == "attribute" else ""
            sentence = case.sentence.strip("| ").replace(" | ", ", ")
            asked = "" if case.basis is Basis.DOCUMENT else "*reading*: "
            rows.append(f"| `{case.name}`{where} | {case.title} | {asked}{sentence} |")
        parts.append("\n".join(rows))
    return re.sub(r"\[([^]]+)\]\(#[^)]*\)", r"\1", "\n\n".join(parts)) + "\n"


def test_the_page_lists_every_case() -> None:
    page = (DOCS / "conformance.md").read_text()
    begin, end = "<!-- cases -->\n\n", "\n<!-- /cases -->"
    assert page.partition(begin)[2].partition(end)[0] == listed()
