"""Examples in our Markdown files do what they say.

A fenced block with ``<!-- run -->`` on the line before it is run:

``sh``
    as a script, in a directory that the blocks of a file share, with the environment's commands on the path;
``console``
    line by line: what follows ``$`` is run and must print the lines below it (``...`` stands for anything);
``python``
    in one namespace for all such blocks of a file;
``pycon``
    the same, as a doctest.

They are followed as a reader follows them, beside a hub that is running in the same directory. For the first pages that
people read, one after the other (:data:`FIRST_PAGES`), it is one ``headrace up``; each other page has a new
``headrace serve``.

Examples name the doors' default ports, as a reader would. Here each stands for a free one, in the example itself and in
the settings that its hub takes from the environment.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from tests.ports import lasting_port

from headrace.config import DOORS, load

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^<!-- run -->\n```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKER = "<!-- run -->"
SECONDS = 120
DEFAULT_PORTS = {
    door: address.port for door in DOORS if (address := getattr(load(environ={}).listen, door)) is not None
}


FIRST_PAGES = (ROOT / "README.md", ROOT / "docs/quickstart.md", ROOT / "docs/recipes.md")
"""The pages that have their reader keep ``headrace up`` running, in the order of reading."""


@dataclass(frozen=True)
class Example:
    language: str
    code: str
    line: int


def examples(text: str) -> list[Example]:
    found = [
        Example(m["language"], m["code"], text.count("\n", 0, m.start()) + 3) for m in BLOCK.finditer(text)
    ]
    markers = sum(line == MARKER for line in text.splitlines())
    assert len(found) == markers, "a run marker without a fenced block right after it"
    return found


def marks(page: Path) -> list[pytest.MarkDecorator]:
    found = examples(page.read_text())
    runs_commands = any(example.language in ("sh", "bash") for example in found)
    uses_spark = any("headrace.spark import" in example.code for example in found)
    return [pytest.mark.slow] * runs_commands + [pytest.mark.spark] * uses_spark


PAGES = [
    pytest.param(page, marks=marks(page))
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/*.md")])
    if MARKER in page.read_text().splitlines() and page not in FIRST_PAGES
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_beside("serve", [page], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_first_pages_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow_beside("up", FIRST_PAGES, tmp_path, monkeypatch)


def follow_beside(
    command: str, pages: Sequence[Path], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Follow pages beside one hub that a command runs."""
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    ports = free_ports("".join(page.read_text() for page in pages))
    for door, port in DEFAULT_PORTS.items():
        monkeypatch.setenv(f"HEADRACE_LISTEN__{door.upper()}", f"127.0.0.1:{ports[port]}")
    with running_hub(command, directory):
        for page in pages:
            follow(page, ports)


def follow(page: Path, ports: dict[int, int]) -> None:
    """Run a page's examples, in their order."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for example in examples(elsewhere(page.read_text(), ports)):
        where = f"{page.relative_to(ROOT)}:{example.line}"
        match example.language:
            case "sh" | "bash":
                shell(example.code, where)
            case "console":
                console(example.code, where)
            case "python":
                exec(compile("\n" * (example.line - 1) + example.code, str(page), "exec"), namespace)
            case "pycon":
                doctests(example, namespace, page)
            case other:
                pytest.fail(f"{where}: no way to run {other}")


@contextlib.contextmanager
def running_hub(command: str, directory: Path) -> Iterator[None]:
    """A hub as the reader started it, in another terminal; Ctrl-C stops it."""
    ready, said = directory / "beside.json", directory / "beside.log"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", command, "--ready-file", str(ready)],
            cwd=directory,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = monotonic() + SECONDS
        while not ready.exists():
            assert process.poll() is None, said.read_text()
            assert monotonic() < deadline, f"the hub is not ready: {said.read_text()}"
            sleep(0.05)
        yield
        assert process.poll() is None, f"the hub ended by itself: {said.read_text()}"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0, said.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_ports(text: str) -> dict[int, int]:
    """A free port for each default one and each that a text names."""
    named = {int(port) for port in re.findall(r"(?<=127\.0\.0\.1:)\d+\b", text)} - {0}
    return {port: lasting_port() for port in {*DEFAULT_PORTS.values(), *named}}


def elsewhere(text: str, ports: dict[int, int]) -> str:
    """The same text with the ports of this machine replaced."""
    return re.sub(r"(?<=127\.0\.0\.1:)\d+\b", lambda match: str(ports.get(int(match[0]), match[0])), text)


def shell(script: str, where: str) -> str:
    """Run a script; whatever it leaves in the background ends with it."""
    process = subprocess.Popen(
        ["sh", "-eu", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None or _group_alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{where}: exit status {process.returncode}\n{output}"
    return output


def console(session: str, where: str) -> None:
    for step in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        got = shell(command, where)
        same = doctest.OutputChecker().check_output(expected.strip(), got.strip(), doctest.ELLIPSIS)
        assert same, f"{where}: $ {command}\nexpected:\n{expected}\ngot:\n{got}"


def doctests(example: Example, namespace: dict[str, Any], page: Path) -> None:
    test = doctest.DocTestParser().get_doctest(
        example.code, namespace, page.name, str(page), example.line - 1
    )
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    namespace.update(test.globs)
    assert test.examples, f"{page.name}:{example.line}: no prompt to run"
    assert not runner.failures, "".join(report)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_wrong_example_is_noticed() -> None:
    with pytest.raises(AssertionError, match="expected"):
        console("$ echo one\ntwo\n", "here")
    with pytest.raises(AssertionError, match="exit status 3"):
        shell("exit 3", "here")
    with pytest.raises(AssertionError, match="Expected"):
        doctests(Example("pycon", ">>> 1 + 1\n3\n", 1), {}, Path("here.md"))


def test_a_marker_needs_its_block() -> None:
    with pytest.raises(AssertionError, match="marker"):
        examples("<!-- run -->\n\n```sh\ntrue\n```\n")


WAITING = re.compile(r"\b(until|while)\s+(\[|grep|not )")


@pytest.mark.parametrize(
    "page",
    sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/*.md")]),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_loop_waits_without_an_end(page: Path) -> None:
    for block in re.findall(r"^```\w+[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            assert not WAITING.search(line) or "timeout" in line, line
