"""Links between our Markdown files lead somewhere: the file is there, and so is the heading."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from markdown import Markdown

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("fuzz/*.md"), *ROOT.glob("examples/**/*.md"), *DOCS.rglob("*.md")]
)

CODE = re.compile(r"^( *)(```+).*?^\1\2$|(`+)(?!`).*?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^ {0,3}\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
FOREIGN = ("http://", "https://", "mailto:")


def links(text: str) -> list[str]:
    """The targets of all links and images outside code."""
    return [inline or reference for inline, reference in LINK.findall(CODE.sub("", text))]


@cache
def anchors(page: Path) -> set[str]:
    """The fragments a page has, as the site makes them, or as GitHub does for files beside it."""
    if page.is_relative_to(DOCS):
        html = Markdown(extensions=["attr_list", "tables", "toc", "pymdownx.superfences"]).convert(
            page.read_text()
        )
        return set(re.findall(r'\bid="([^"]+)"', html))
    return github_anchors(page.read_text())


def github_anchors(text: str) -> set[str]:
    seen: dict[str, int] = {}
    found = set()
    for heading in HEADING.findall(re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in links(page.read_text()):
        if link.startswith(FOREIGN):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link}: outside of the project"
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{link}: the site does not have that file"
        if fragment:
            assert fragment in anchors(target), f"{link}: there is no such heading"


def test_links_in_code_are_not_links() -> None:
    text = "[a](b.md) `[c](d.md)`\n\n```\n[e](f.md)\n```\n\n![g](h.svg)\n\n[i]: j.md#k\n"
    assert links(text) == ["b.md", "h.svg", "j.md#k"]


def test_anchors_as_github_makes_them() -> None:
    text = "# A `code` & [link](x)\n\n```\n# not one\n```\n\n## Again\n\n## Again\n"
    assert github_anchors(text) == {"a-code--link", "again", "again-1"}
