"""The notebook of the examples, run cell by cell beside a hub, as a person runs it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from tests.hubprocess import HubProcess

import headrace

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def run(code: str, namespace: dict[str, Any]) -> object:
    """Run a cell; the value of its last line is what a notebook shows."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
    return (
        None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)
    )


def test_the_notebook_runs_and_shows_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads(NOTEBOOK.read_text())
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in content["cells"]), "outputs are not kept in the repository"
    with HubProcess.start(tmp_path) as hub:
        connect = headrace.connect_sync
        doors = {"": "tube_tcp", "spp://": "spp"}

        def at_hub(url: str = "", **options: Any) -> Any:
            return connect(f"{url or 'tube://'}{hub.doors[doors[url]]}", **options)

        monkeypatch.setattr(headrace, "connect_sync", at_hub)
        namespace: dict[str, Any] = {}
        shown = [run(code, namespace) for code in cells]
    html = [each._repr_html_() for each in shown if hasattr(each, "_repr_html_")]
    assert any("weather/brno" in each and "<table" in each for each in html)
    message = next(each for each in shown if isinstance(each, headrace.Message))
    assert "11.5 at 0" in message._repr_html_()


def test_a_message_is_shown_without_markup_of_its_own() -> None:
    message = headrace.Message(1, b"<script>" + b"x" * 1000, topic="<b>", attributes={"<i>": "&"})
    html = message._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert html.count("x") < 500
