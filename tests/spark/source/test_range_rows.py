"""A range comes whole, in order, as chosen, whether it is read from files or over the link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.hubs import TRIMMING, Hub, trimmed

from headrace.errors import LostRangeError, TrimmedError, UsageError
from headrace.log.sealed.segment import SealedSegment
from headrace.message import SCHEMA
from headrace.spark.hub_connections import close_links
from headrace.spark.options import SourceOptions, parse_source_options
from headrace.spark.source import range_rows as module
from headrace.spark.source.range_rows import LogRange, gathered, read_range, sealed_segments

COUNT = 3000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with two sealed segments and an open tail, and a hold that moves between messages.

    Every third message has another topic.
    """
    with Hub.start(tmp_path_factory.mktemp("filled")) as hub:
        with hub.link() as link:
            for begin in range(0, COUNT, 500):
                link.publish(
                    [
                        {"payload": b"%d" % n, "topic": f"t/{n % 3}", "attributes": {"even": str(n % 2 == 0)}}
                        for n in range(begin, begin + 500)
                    ]
                )
                link.hold("somebody", 1 + begin)
                if begin in (500, 1500):
                    hub.seal()
        yield hub
        close_links()


def options(hub: Hub, **given: str) -> SourceOptions:
    return parse_source_options({"servers": hub.servers, **given}, stream=True)


def span(hub: Hub, first: int = 1, last: int | None = None) -> LogRange:
    extent = hub.head()
    return LogRange(extent.log, extent.path, first, extent.head if last is None else last)


def seqs(batches: Any) -> list[int]:
    got = []
    for batch in batches:
        assert batch.schema.equals(SCHEMA)
        got += batch.column("seq").to_pylist()
    return got


@pytest.mark.parametrize("files", ["true", "false"])
def test_a_range_is_whole(filled: Hub, files: str) -> None:
    everything = options(filled, files=files)
    assert filled.head().head == COUNT
    assert seqs(read_range(everything, span(filled))) == list(range(1, COUNT + 1))
    for first, last in ((1, 1), (400, 1700), (1001, 1002), (1900, COUNT), (COUNT, COUNT)):
        assert seqs(read_range(everything, span(filled, first, last))) == list(range(first, last + 1))


def test_a_sealed_file_is_not_opened_for_topics_that_it_does_not_hold(
    filled: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(_segment: SealedSegment, _number: int) -> pa.RecordBatch:
        raise AssertionError("a record batch was read")

    monkeypatch.setattr(SealedSegment, "rows", unread)
    sealed = list(sealed_segments(span(filled)))
    [last] = [segment.last for segment in sealed[-1:]]
    assert seqs(read_range(options(filled, topic="t/7"), span(filled, 1, last))) == []
    with pytest.raises(AssertionError, match="was read"):
        list(read_range(options(filled, topic="t/1"), span(filled, 1, last)))


@pytest.mark.parametrize(
    "chosen",
    [
        {"topic": "t/1"},
        {"topic": "t/*", "where": '{"even": "True"}'},
        {"origin": "tube"},
        {"origin": "spp,tube"},
        {"origin": "spark"},
    ],
)
def test_files_and_link_choose_the_same(filled: Hub, chosen: dict[str, str]) -> None:
    by_files = seqs(read_range(options(filled, **chosen), span(filled)))
    assert by_files == seqs(read_range(options(filled, files="false", **chosen), span(filled)))
    asked = {"origin": chosen["origin"].split(",")} if "origin" in chosen else {}
    if "topic" in chosen:
        asked["topic"] = chosen["topic"]
    if "where" in chosen:
        asked["where"] = {"even": {"use": 1, "strval": "True"}}  # type: ignore[assignment]
    assert by_files == [message.seq for message in filled.messages(**asked)]
    assert bool(by_files) == (chosen != {"origin": "spark"})


def test_sealed_segments_need_no_hub(filled: Hub) -> None:
    """What lies in files is read without a connection: there is nobody to connect to."""
    wanted = span(filled, 1, 1500)
    filled.terminate()
    assert seqs(read_range(options(filled, patience="0"), wanted)) == list(range(1, 1501))
    filled.restart()


def test_files_of_another_log_are_not_taken(filled: Hub, start: Callable[..., Hub]) -> None:
    other = start(name="other")
    other.publish([b"other"] * 10)
    other.seal()
    wanted = span(filled)._replace(path=other.head().path)
    assert not list(sealed_segments(wanted))
    assert seqs(read_range(options(filled), wanted._replace(first=5, last=8))) == [5, 6, 7, 8]


def test_a_damaged_file_is_the_hubs_business(hub: Hub) -> None:
    hub.publish([b"%d" % n for n in range(1000)])
    hub.seal()
    wanted = span(hub, 1, 900)
    path = min(Path(wanted.path).glob("*.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"checksum|damaged|in doubt"):
        list(read_range(options(hub), wanted))


def test_another_log_behind_the_address_is_an_error_that_names_both(filled: Hub) -> None:
    wanted = span(filled)._replace(log="00000000-0000-0000-0000-000000000000", path="")
    with pytest.raises(UsageError) as told:
        list(read_range(options(filled), wanted))
    assert "00000000-0000-0000-0000-000000000000" in str(told.value)
    assert filled.head().log in str(told.value)


def test_what_retention_removed_is_an_error_or_is_passed_over(
    start: Callable[..., Hub], caplog: pytest.LogCaptureFixture
) -> None:
    hub = start(*TRIMMING)
    trimmed(hub)
    wanted = span(hub)
    oldest = hub.head().first
    with pytest.raises(LostRangeError) as lost:
        list(read_range(options(hub), wanted))
    assert (lost.value.first, lost.value.last) == (1, oldest - 1)
    with caplog.at_level("WARNING", "headrace.spark"):
        got = seqs(read_range(options(hub, failOnDataLoss="false"), wanted))
    assert got == list(range(oldest, wanted.last + 1))
    assert f"messages 1 to {oldest - 1} are lost" in caplog.text
    none = wanted._replace(last=2)
    assert seqs(read_range(options(hub, failOnDataLoss="false"), none)) == []


def test_small_batches_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 10)
    schema = pa.schema([pa.field("n", pa.int64())])

    def batch(count: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(range(count))], schema=schema)

    assert [b.num_rows for b in gathered(map(batch, [0, 4, 4, 4, 25, 0, 3, 1]))] == [12, 25, 4]
    assert list(gathered([])) == []


def test_of_what_is_trimmed_while_it_is_read_the_rest_is_lost(
    filled: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pa.Table.from_batches(read_range(options(filled), span(filled, 1, 400))).combine_chunks()
    told: list[tuple[str, int, int]] = []

    class Client:
        log = filled.head().log

        def read(self, first: int, last: int, **_: object) -> Any:
            return Stream(first, last)

        def report_lost(self, *lost: Any) -> None:
            told.append(lost)

    class Stream:
        def __init__(self, first: int, last: int) -> None:
            self.cursor, self._last = first, last

        def __iter__(self) -> Iterator[pa.RecordBatch]:
            end = 100 if self.cursor == 1 else self._last
            rows = whole.slice(self.cursor - 1, end - self.cursor + 1).to_batches()
            self.cursor = end + 1
            yield from rows
            if end == 100:
                raise TrimmedError(101, 400, 301)

    monkeypatch.setattr(module, "link", lambda *_, **__: nullcontext(Client()))
    chosen = options(filled, files="false", failOnDataLoss="false", reader="own")
    got = seqs(read_range(chosen, span(filled, 1, 400)))
    assert got == [*range(1, 101), *range(301, 401)]
    assert told == [("own", 101, 300)]
    chosen = options(filled, files="false")
    with pytest.raises(LostRangeError, match="messages 101 to 300 are lost"):
        list(read_range(chosen, span(filled, 1, 400)))
