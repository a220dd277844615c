"""The page about rights: its settings and its example do what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from headrace.config import ACTIONS, Secret, load
from headrace.hub.access.audit import BURST, MOST
from headrace.hub.access.principal import Action
from headrace.hub.access.principals import Principals
from headrace.net.server.access.audit_file import FILE_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "access.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_its_settings(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    path = tmp_path / "hub.toml"
    path.write_text(block)
    table = Principals(load(path, environ={}), {"gateway-7": Secret("k")})
    gateway = table.of_client_id("0123456789abcdef01234567")
    assert gateway is not None
    assert table.of_address("10.0.7.3") is table.of_certificate("gateway-7.fleet.example") is gateway
    assert gateway.may(Action.PUBLISH, "fleet/7/door/open")
    assert gateway.may(Action.READ, "fleet/8")
    assert not gateway.may(Action.READ, "fleet/secret/8")
    assert gateway.may(Action.CONSUME, "fleet-billing")
    assert not gateway.may(Action.ADMIN)
    assert not table.anonymous.known


def test_its_example() -> None:
    (block,) = blocks("pycon")
    example = doctest.DocTestParser().get_doctest(block, {}, "docs/access.md", None, None)
    told: list[str] = []
    doctest.DocTestRunner().run(example, out=told.append)
    assert not told, "".join(told)


def test_it_names_every_action_and_limit() -> None:
    for action in ACTIONS:
        assert f"| `{action}` |" in PAGE
    assert f"{BURST} records a minute" in PAGE
    assert f"about everybody, {MOST}" in PAGE
    assert f"{FILE_BYTES >> 20} MiB at most" in PAGE
