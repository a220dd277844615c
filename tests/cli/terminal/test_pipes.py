from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.terminal.pipes import PipeWriter, lines
from headrace.errors import UsageError


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


async def collect(fd: int, longest: int = 100) -> list[bytes]:
    return [line async for some in lines(fd, longest) for line in some]


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.booleans())
def test_lines_of_a_pipe(given_lines: list[bytes], ended: bool) -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"\n".join(given_lines) + b"\n" * ended)
        os.close(writer)
        # What follows the last line end is a line only if there is something.
        expected = (
            (given_lines or [b""])
            if ended
            else given_lines[:-1] + [last for last in given_lines[-1:] if last]
        )
        assert asyncio.run(collect(reader)) == expected
    finally:
        os.close(reader)


async def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n\nfour")
    with path.open("rb") as file:
        assert await collect(file.fileno()) == [b"one", b"two", b"", b"four"]


async def test_lines_of_nothing() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        assert await collect(fd) == []
    finally:
        os.close(fd)


async def test_a_line_does_not_wait_for_company(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    source = lines(reader, 100)
    os.write(writer, b"first\nsec")
    assert await anext(source) == [b"first"]
    os.write(writer, b"ond\nthird\n")
    assert await anext(source) == [b"second", b"third"]
    await source.aclose()


@pytest.mark.parametrize("ending", [b"\n", b""])
async def test_a_line_too_long_is_refused_by_number(pipe: tuple[int, int], ending: bytes) -> None:
    reader, writer = pipe
    os.write(writer, b"ok\n" + b"x" * 101 + ending)
    os.close(writer)
    with pytest.raises(UsageError, match="line 2 has more than 100 bytes"):
        await collect(reader)


async def test_writing_lets_the_loop_run_while_nobody_reads(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    data = bytes(range(256)) * 4096
    # A write that blocked would block this test with it.
    writing = asyncio.create_task(PipeWriter(writer).write(data))
    os.set_blocking(reader, False)
    taken = bytearray()
    async with asyncio.timeout(30):
        while len(taken) < len(data):
            await asyncio.sleep(0)
            try:
                taken += os.read(reader, 1 << 16)
            except BlockingIOError:
                continue
        await writing
    assert taken == data


async def test_writing_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        await PipeWriter(file.fileno()).write(b"x" * 100_000)
    assert (tmp_path / "out").stat().st_size == 100_000


async def test_writing_to_nobody(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        await PipeWriter(writer).write(b"x")


async def test_the_end_of_the_reader_ends_a_wait(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    asyncio.get_running_loop().call_soon(os.close, reader)
    with pytest.raises(BrokenPipeError), PipeWriter(writer).while_read():
        await asyncio.wait_for(asyncio.Event().wait(), 30)


async def test_another_cancellation_stays_one(pipe: tuple[int, int]) -> None:
    async def wait() -> None:
        with PipeWriter(pipe[1]).while_read():
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
