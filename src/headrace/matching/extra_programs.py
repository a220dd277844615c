"""Predicates of an ``extra`` as programs: integers in a pool, which a kernel runs for a message.

A program is ``[length, attribute, operation, …]``. It works on a stack of truth values and leaves one:

======================= ===================================================================================
``IN n (type value)*n`` push whether the attribute is one of these
``PREFIX word``         push whether it is a string that begins so
``EXISTS``, ``ABSENT``  push whether it is there, or is not
``NOT``                 negate the top
``NONE``                push false: the beginning of an ``any``
``OR``                  pop one, or it into the top: behind each predicate of an ``any``
======================= ===================================================================================

The stack is at most two deep for each of the predicates that stand in one another, so it fits an integer's bits.

Words are written as their codes, numbers as the bits of their double, -0.0 as 0.0. What is written reads back as
the same predicate: ``exists: false`` is ``ABSENT``, not ``EXISTS NOT``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from headrace.matching.index.segment import Segment, word
from headrace.wire.sdk.predicate import Any, Between, Equals, Exists, Extra, In, Not, Predicate, Prefix

IN: Final = 1
PREFIX: Final = 2
EXISTS: Final = 3
ABSENT: Final = 4
NOT: Final = 5
NONE: Final = 6
OR: Final = 7

TEXT: Final = 0
NUMBER: Final = 1

HEAD: Final = 2
"""Words before the first operation."""


def bits(number: float) -> int:
    """A number as an integer that equal numbers share."""
    return int(np.float64(number + 0.0).view(np.int64))


def compiled(predicate: Extra, attribute: int, code: Callable[[str], int]) -> list[int]:
    """The program of a predicate; ``code`` gives the code of a word."""
    program = [0, attribute]
    _write(program, predicate, code)
    program[0] = len(program)
    return program


def decompiled(program: Sequence[int], word: Callable[[int], str]) -> Extra:
    """The predicate that a program was made of."""
    stack: list[Extra] = []
    at = HEAD
    while at < len(program):
        operation = program[at]
        at += 1
        if operation == IN:
            count = program[at]
            values = program[at + 1 : at + 1 + 2 * count]
            stack.append(
                In(
                    tuple(
                        _value(kind, value, word)
                        for kind, value in zip(values[::2], values[1::2], strict=True)
                    )
                )
            )
            at += 1 + 2 * count
        elif operation == PREFIX:
            stack.append(Prefix(word(program[at])))
            at += 1
        elif operation in (EXISTS, ABSENT):
            stack.append(Exists(operation == EXISTS))
        elif operation == NOT:
            stack.append(Not(stack.pop()))
        elif operation == NONE:
            stack.append(Any(()))
        else:
            inner = stack.pop()
            match stack.pop():
                case Any(before):
                    stack.append(Any((*before, inner)))
    return stack.pop()


def predicates_of(segment: Segment, row: int) -> dict[str, Predicate]:
    """The predicates of a subscription, as they were given."""

    def text(code: int) -> str:
        return word(segment.words, code)

    found: dict[str, Predicate] = {}
    begin, end = segment.start[row : row + 2].tolist()
    for dim, low, high in zip(
        segment.dim[begin:end].tolist(),
        segment.lo[begin:end].tolist(),
        segment.hi[begin:end].tolist(),
        strict=True,
    ):
        if dim < 0:
            at = int(low)
            program = segment.pool[at : at + int(segment.pool[at])].tolist()
            found[word(segment.names, program[1])] = decompiled(program, text)
        elif dim % 2:
            found[word(segment.names, dim // 2)] = Between(low, high)
        else:
            found[word(segment.names, dim // 2)] = Equals(text(int(low)))
    return found


def _write(program: list[int], predicate: Extra, code: Callable[[str], int]) -> None:
    match predicate:
        case In(values):
            program += (IN, len(values))
            for value in values:
                program += (TEXT, code(value)) if isinstance(value, str) else (NUMBER, bits(value))
        case Prefix(text):
            program += (PREFIX, code(text))
        case Exists(present):
            program.append(EXISTS if present else ABSENT)
        case Not(inner):
            _write(program, inner, code)
            program.append(NOT)
        case Any(predicates):
            program.append(NONE)
            for inner in predicates:
                _write(program, inner, code)
                program.append(OR)


def _value(kind: int, value: int, word: Callable[[int], str]) -> str | float:
    return word(value) if kind == TEXT else float(np.int64(value).view(np.float64))
