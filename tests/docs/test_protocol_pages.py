"""The protocol pages show the bytes that the codecs are tested with, all of them and no others."""

from __future__ import annotations

import importlib
import re
import textwrap
from pathlib import Path

import pytest
from tests.wire.golden import Golden

from headrace.wire import vectors

ROOT = Path(__file__).parents[2]
VECTORS = {
    (path.stem.removeprefix("test_") if path.parent.name == "wire" else path.parent.name): ".".join(
        path.relative_to(ROOT).with_suffix("").parts
    )
    for path in sorted((ROOT / "tests" / "wire").rglob("test_*.py"))
    if re.search(r"^GOLDEN\b", path.read_text(), re.MULTILINE)
}
"""Each protocol's test module that holds its golden vectors."""
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "protocols").glob("*.md"))}

BLOCK = re.compile(
    r'^(?P<indent> *)```hex title="(?P<title>[^"]+)"\n(?P<body>.*?)^(?P=indent)```$', re.MULTILINE | re.DOTALL
)
HEX_FENCE = re.compile(r"^ *```hex\b", re.MULTILINE)
LINE = re.compile(r"(?P<hex>[0-9a-fA-F]{2}(?: [0-9a-fA-F]{2})*)?(?: {2,}.*)?")
"""Spaced hex, then two or more spaces and a note; a line may have the one or the other alone."""


def blocks(page: str) -> list[tuple[str, bytes]]:
    """The title and the bytes of every annotated block of a page."""
    found = []
    for block in BLOCK.finditer(page):
        wire = b""
        for line in textwrap.dedent(block["body"]).splitlines():
            match = LINE.fullmatch(line.rstrip())
            assert match, f"{block['title']}: neither bytes nor a note: {line!r}"
            wire += bytes.fromhex(match["hex"] or "")
        found.append((block["title"], wire))
    return found


def golden(name: str) -> dict[str, bytes]:
    """The vectors of a protocol's test module."""
    tested: list[Golden] = importlib.import_module(VECTORS[name]).GOLDEN
    names = [vector.name for vector in tested]
    assert len(names) == len(set(names)), "two golden vectors have one name"
    return {vector.name: vector.wire for vector in tested}


def test_every_tested_protocol_has_a_page() -> None:
    assert VECTORS.keys() == PAGES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_every_golden_vector_of_the_package_is_tested(name: str) -> None:
    assert golden(name) == dict(vectors.golden(name))


def test_every_file_of_vectors_is_listed() -> None:
    assert set(vectors.PROTOCOLS) == PAGES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_a_golden_vector(name: str) -> None:
    page = PAGES[name].read_text()
    shown = blocks(page)
    assert len(shown) == len(HEX_FENCE.findall(page)), "a hex block without a title"
    known = golden(name)
    for title, wire in shown:
        assert title in known, f"no golden vector is named {title!r}"
        assert wire.hex(" ") == known[title].hex(" "), title


@pytest.mark.parametrize("name", PAGES)
def test_every_golden_vector_is_shown_once(name: str) -> None:
    titles = [title for title, _ in blocks(PAGES[name].read_text())]
    assert sorted(titles) == sorted(golden(name))


def test_a_block_is_read_as_people_read_it() -> None:
    page = textwrap.dedent(
        """
        ```hex title="PUSH hello"
        02              type: PUSH
        00 05           length of data: 5
                        (big-endian)
        68 65 6c 6c 6f  "hello"
        ```

        - in a list:

            ```hex title="nothing noted"
            ff
            ```
        """
    )
    assert blocks(page) == [("PUSH hello", b"\x02\x00\x05hello"), ("nothing noted", b"\xff")]


def test_a_line_that_is_no_hex_is_an_error() -> None:
    with pytest.raises(AssertionError, match="neither bytes nor a note"):
        blocks('```hex title="x"\nlength: 5\n```\n')
