"""A case: one thing to try, the sentence that requires it, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.conform.probe import Probe

_SHOWN: Final = 96
"""Bytes of a piece that a report shows: whole frames of most cases, and no page of hex for the longest."""


class Basis(StrEnum):
    """Where a case's sentence stands."""

    DOCUMENT = "document"
    """In the original document, as the table *Sentence by sentence* of our page quotes it."""

    READING = "reading"
    """On our page only: the document leaves it open, and another server may read it differently."""


class Outcome(StrEnum):
    """The outcome of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a protocol."""

    name: str
    """Short and unique within the protocol; what ``--case`` selects by."""
    title: str
    """What the server does if it passes."""
    basis: Basis
    sentence: str
    """The sentence that requires it, word for word as on the protocol's page."""
    run: Callable[[Probe], None]
    group: str = ""
    """The transport or door the case is for; empty if the protocol has only one."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case, with the facts of a failure."""

    case: Case
    outcome: Outcome
    seconds: float
    expected: str = ""
    came: str = ""
    sent: tuple[str, ...] = ()


class MismatchError(Exception):
    """The server did something else than a case expects."""

    def __init__(self, expected: str, came: str) -> None:
        self.expected = expected
        self.came = came
        super().__init__(f"expected {expected}; came: {came}")


class NotRunError(Exception):
    """A case that cannot be tried here; says what is missing."""


class Cases:
    """The cases of one protocol, in the order they are written and run in."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases.values())

    def document(
        self, sentence: str, group: str = ""
    ) -> Callable[[Callable[[Probe], None]], Callable[[Probe], None]]:
        """Add the function as a case for a sentence of the document."""
        return self._adder(Basis.DOCUMENT, sentence, group)

    def reading(
        self, sentence: str, group: str = ""
    ) -> Callable[[Callable[[Probe], None]], Callable[[Probe], None]]:
        """Add the function as a case for a sentence of our page alone."""
        return self._adder(Basis.READING, sentence, group)

    def _adder(
        self, basis: Basis, sentence: str, group: str
    ) -> Callable[[Callable[[Probe], None]], Callable[[Probe], None]]:
        def add(function: Callable[[Probe], None]) -> Callable[[Probe], None]:
            name = function.__name__.strip("_").replace("_", "-")
            title = " ".join((function.__doc__ or "").split()).removesuffix(".")
            if name in self._cases:
                raise ValueError(f"two cases have the name {name}")
            self._cases[name] = Case(name, title, basis, " ".join(sentence.split()), function, group)
            return function

        return add


def shown(data: bytes) -> str:
    """Write bytes as a report shows them.

    >>> shown(b"hi")
    '68 69'
    >>> shown(bytes(65_000)).endswith("… (65000 bytes)")
    True
    """
    if not data:
        return "nothing"
    if len(data) <= _SHOWN:
        return data.hex(" ")
    return f"{data[:_SHOWN].hex(' ')} … ({len(data)} bytes)"
