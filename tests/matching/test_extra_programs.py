from __future__ import annotations

from hypothesis import given
from tests.matching.drawn import extras

from headrace.matching import extra_programs, kernels
from headrace.wire.sdk.predicate import Extra


@given(extras)
def test_a_program_reads_back_as_the_predicate_it_was_made_of(predicate: Extra) -> None:
    words: list[str] = []

    def code(text: str) -> int:
        if text not in words:
            words.append(text)
        return words.index(text)

    program = extra_programs.compiled(predicate, 5, code)
    assert program[:2] == [len(program), 5]
    assert extra_programs.decompiled(program, words.__getitem__) == predicate


def test_equal_numbers_have_the_same_bits() -> None:
    assert extra_programs.bits(-0.0) == extra_programs.bits(0.0) == 0
    assert extra_programs.bits(7) == extra_programs.bits(7.0)
    assert extra_programs.bits(1.0) != extra_programs.bits(-1.0)


def test_the_kernels_know_the_same_operations() -> None:
    for name in ("IN", "PREFIX", "EXISTS", "ABSENT", "NOT", "NONE", "OR", "TEXT", "NUMBER", "HEAD"):
        assert getattr(kernels, name) == getattr(extra_programs, name), name
