"""Rounds through streams: everyone's turn comes, and nobody else waits for all of them."""

from __future__ import annotations

import asyncio

import pytest

from headrace.net.link.streams import rounds as stream_rounds
from headrace.net.link.streams.rounds import StreamRounds


class Stream:
    def __init__(self, fails: bool = False) -> None:
        self.pumped = 0
        self.fails = fails

    def pump(self) -> None:
        self.pumped += 1
        if self.fails:
            raise ValueError("a stream fails")


class Connection:
    def __init__(self, count: int) -> None:
        self.streams = [Stream() for _ in range(count)]

    def open_streams(self) -> list[Stream]:
        return list(self.streams)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_few_streams_are_served_at_once() -> None:
    connections = [Connection(2), Connection(3)]
    StreamRounds(connections).begin()
    assert [stream.pumped for each in connections for stream in each.streams] == [1] * 5


async def test_many_streams_are_served_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turns in between; what is committed meanwhile is one more round."""
    monkeypatch.setattr(stream_rounds, "TURN_SECONDS", 0.0)
    connection = Connection(10)
    rounds = StreamRounds([connection])
    rounds.begin()
    assert sum(stream.pumped for stream in connection.streams) == 1
    for _ in range(5):
        rounds.begin()
    await turns(5)
    assert 2 <= sum(stream.pumped for stream in connection.streams) < 10
    await turns(30)
    assert [stream.pumped for stream in connection.streams] == [2] * 10
    rounds.begin()
    await turns(20)
    assert [stream.pumped for stream in connection.streams] == [3] * 10


async def test_a_stream_that_fails_holds_up_no_other() -> None:
    connection = Connection(5)
    connection.streams[2].fails = True
    rounds = StreamRounds([connection])
    with pytest.raises(ValueError, match="a stream fails"):
        rounds.begin()
    await turns(5)
    assert [stream.pumped for stream in connection.streams] == [1] * 5
    connection.streams[2].fails = False
    rounds.begin()
    assert [stream.pumped for stream in connection.streams] == [2] * 5
