"""Programs: what predicates compile to, as integers that kernels read.

A program is ``[length, attribute, instruction, …]``; an instruction is ``operation, n`` and ``n`` operands, each a
``type, value`` pair: ``TEXT`` and a word's code, ``NUMBER`` and the bits of a double, or ``ATTRIBUTE`` and an
attribute. So programs can be copied and their words and attributes renumbered without knowing the operations, which
:mod:`headrace.wire.sdk.predicate` lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

HEAD: Final = 2
"""Integers of a program before its first instruction: its length and its attribute."""

EQUALS, IN, BETWEEN, PREFIX, EXISTS, ABSENT, NOT, NONE, OR, INSIDE, FENCE = range(1, 12)
"""The operations."""

NOTHING, TEXT, NUMBER, ATTRIBUTE = 0, 1, 2, 3
"""The type of an attribute's value, or of an operand."""


def bits(number: float) -> int:
    """A number as an integer that equal numbers share.

    >>> bits(-0.0) == bits(0.0)
    True
    """
    return int(np.float64(number + 0.0).view(np.int64))


def number_operands(numbers: Iterable[float]) -> list[int]:
    """The operands of numbers."""
    return [each for number in numbers for each in (NUMBER, bits(number))]
