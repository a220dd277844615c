"""Large captures in parts: the same rows as those of the whole file, wherever it is cut, whatever it carries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.decode.test_job import PORTS, datagram, packet, pcap

from headrace.archive.folder import Folder
from headrace.errors import MalformedError
from headrace.spark.jobs.decode import ROWS, decode
from headrace.spark.jobs.decode.capture_rows import PcapRecords, rows_of
from headrace.spark.jobs.decode.large_files import plan
from headrace.spark.jobs.decode.pcap import HEADER_BYTES, packets, read_header
from headrace.spark.jobs.decode.record_boundaries import PartScan, join, scan
from headrace.wire.capture import Capture, Chunk, serialize
from headrace.wire.fyrehose import stream as fyrehose

SPLIT = 50_000
END = {"nothing": b"", "cut off": b"\x01\x02\x03\x04\x05", "malformed": b"\xff" * 64}


def pushes(random: Random, count: int) -> bytes:
    """Frames; some carry what looks like packets of a capture."""
    fake = pcap([packet(b"fake", 1)] * 12)[HEADER_BYTES:]
    return b"".join(
        fyrehose.serialize(fyrehose.Push(random.choice([fake, random.randbytes(random.randrange(200))])))
        for _ in range(count)
    )


def traffic(seed: int, end: bytes) -> bytes:
    """Connections at the same time, as TCP brings them: some segments late, twice, or never; and datagrams."""
    random = Random(seed)
    waiting: list[list[bytes]] = []
    for port in range(40_000, 40_008):
        data, at, own = pushes(random, 30), 1000, [packet(b"", 999, flags=0x02, ports=(port, 2323))]
        while data:
            size = random.randrange(1, 700)
            own.append(packet(data[:size], at, ports=(port, 2323)))
            at, data = at + size, data[size:]
        for _ in range(3):
            one, other = sorted(random.sample(range(1, len(own)), 2))
            own[one], own[other] = own[other], own[one]
        own.append(random.choice(own))
        if port % 4 == 0:
            del own[random.randrange(len(own) // 2, len(own))]
        waiting.append(own)
    waiting.append([datagram(pushes(random, 1)) for _ in range(60)])
    waiting.append([packet(pushes(random, 1), 1, ports=(50_000, 9)) for _ in range(20)])
    found = []
    while waiting:
        own = random.choice(waiting)
        found.append(own.pop(0))
        waiting = [each for each in waiting if each]
    return pcap(found) + end


def ordered(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(str(row.get(name)) for name in ROWS.names) for row in rows)


@pytest.mark.parametrize("end", END)
@pytest.mark.parametrize("split", [100, 333, 5000, 100_000])
def test_parts_of_a_pcap_file_begin_with_packets(split: int, end: str) -> None:
    content = traffic(split, END[end])
    header = read_header(BytesIO(content))
    starts = record_starts(content)
    wrong = 0

    def again(part: PartScan, first: int) -> PartScan:
        nonlocal wrong
        wrong += 1
        return scan(BytesIO(content), PcapRecords(header), part.begin, part.end, first=first)

    scans = [
        scan(BytesIO(content), PcapRecords(header), begin, min(begin + split, len(content)))
        for begin in range(HEADER_BYTES, len(content), split)
    ]
    parts = join(HEADER_BYTES, scans, again)
    assert parts[0][0] == HEADER_BYTES
    assert all(before == after for (_, before), (after, _) in pairwise(parts))
    assert {begin for begin, _ in parts} <= {*starts, len(content) - len(END[end])}
    assert parts[-1][1] in ((None,) if END[end] else (None, len(content)))
    # Payloads that look like packets mislead some guesses, and no part.
    assert wrong < len(scans) or split > 50_000


def record_starts(content: bytes) -> list[int]:
    file = BytesIO(content)
    header = read_header(file)
    found = []
    with suppress(MalformedError):
        for at, _ in packets(file, header, HEADER_BYTES):
            found.append(at)
    return found


def datagrams(random: Random, end: bytes) -> bytes:
    content = serialize(Capture("fyrehose", "", datagrams=True))
    for number in range(1, 400):
        data = random.choice([pushes(random, 1), serialize(Chunk(False, 5, b"as if it were one")) * 12])
        content += serialize(Chunk(number % 3 == 0, number, data))
    return content + end


def stream(random: Random, end: bytes) -> bytes:
    content = serialize(Capture("fyrehose", "127.0.0.1:40000"))
    data = pushes(random, 400)
    for number, at in enumerate(range(0, len(data), 100)):
        content += serialize(Chunk(number % 2 == 1, number, data[at : at + 100]))
    return content + end


@pytest.mark.slow
@pytest.mark.spark
def test_a_file_in_parts_has_the_rows_of_the_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Every kind of file, each ended in every way, cut into dozens of parts."""
    makers: dict[str, Callable[[Random, bytes], bytes]] = {
        "udp.capture": datagrams,
        "tcp.capture": stream,
        "all.pcap": lambda random, end: traffic(random.randrange(100), end),
        # No packet can be read, so there is nothing to cut.
        "strange.pcap": lambda _, end: pcap([packet(b"x", 1)] * 1000, kind=147) + end,
        "none.cap": lambda random, end: random.randbytes(60_000) + end,
    }
    folder, names = Folder.at(str(tmp_path)), []
    for what, end in END.items():
        for name, make in makers.items():
            names.append(f"{what}-{name}")
            (tmp_path / names[-1]).write_bytes(make(Random(7), end))
    planned = plan(spark, folder, names, SPLIT)
    assert len(planned.packets) > 9
    assert sum(part.name.endswith("udp.capture") for part in planned.parts) > 9
    assert sum(part.direction is not None for part in planned.parts) == 6
    whole = [row for name in names for row in rows_of(folder, name, PORTS)]
    # Times are numbers of microseconds until Arrow has them.
    parts = [
        {**row.asDict(), "time": None if row.time is None else round(row.time.timestamp() * 1_000_000)}
        for row in decode(spark, folder, names, PORTS, split=SPLIT).collect()
    ]
    assert len(parts) == len(whole) > 1000
    for row in (*whole, *parts):
        row["payload"] = None if row.get("payload") is None else bytes(row["payload"])
    assert ordered(parts) == ordered(whole)
