"""What grows is told from what wavers."""

from __future__ import annotations

from random import Random

from tests.faults.slopes import slope


def test_what_wavers_does_not_grow() -> None:
    random = Random(1)
    assert slope([(at, 100 + random.uniform(-20, 20)) for at in range(100)], share=0.1, least=1).holds


def test_what_grows_is_found() -> None:
    random = Random(1)
    found = slope([(at, 100 + at / 4 + random.uniform(-20, 20)) for at in range(100)], share=0.1, least=1)
    assert not found.holds
    assert 15 < found.grown < 35


def test_a_few_wild_samples_turn_nothing() -> None:
    samples = [(float(at), 100.0) for at in range(100)]
    samples[-5:] = [(float(at), 10_000.0) for at in range(95, 100)]
    assert slope(samples, share=0.1, least=1).holds


def test_too_few_samples_prove_nothing() -> None:
    assert not slope([(1, 1), (2, 1)], share=0.1, least=1).holds
    assert not slope([], share=0.1, least=1).holds
