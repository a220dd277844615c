"""How fast the codecs read and write: frames and bytes a second, in batches and frame by frame.

"batch" reads one buffer of many frames, or writes them in one call, as a busy connection does. "single" feeds
or writes one frame at a time, as an idle connection does. Each codec first reads and writes its frames once and
must not lose or change any: a benchmark of wrong work says nothing. The last table is the hub's hottest path
without its log: a buffer of PUSHes read, numbered and written as DELIVERs, beside a plain copy of the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import bench
from headrace.message import Run
from headrace.wire import spp
from headrace.wire.attribute import publish
from headrace.wire.fyrehose import stream as fyrehose
from headrace.wire.parcel import body
from headrace.wire.parcel import stream as parcel
from headrace.wire.receive_buffer import Decoder
from headrace.wire.sdk import commands as sdk
from headrace.wire.tube import frames as tube
from headrace.wire.tube import reassembly

BUFFER = 256 * 1024
"""What one read of a busy socket may bring."""

QUICK_FRAMES = 8
COLUMNS = ("single frames/s", "batch frames/s", "batch MB/s", "batch/single")


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of frame: its bytes, who reads them, and how they are written; ``write_all`` if many at once."""

    name: str
    wires: Sequence[bytes]
    decoder: Decoder[Any]
    write: Callable[[], object]
    write_all: Callable[[], bytes | memoryview] | None = None


def main(argv: Sequence[str]) -> int:
    return bench.run("wire", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure every codec, and the way from PUSH to DELIVER."""
    reading = bench.Table("Reading", COLUMNS)
    writing = bench.Table("Writing", COLUMNS)
    for case in cases(quick):
        _measure_reading(reading, case, quick)
        _measure_writing(writing, case, quick)
    return [reading, writing, _push_to_deliver(quick)]


def cases(quick: bool) -> Iterator[Case]:
    def count(frame: int) -> int:
        return QUICK_FRAMES if quick else BUFFER // frame

    for size in (16, 128, 1024):
        yield _push(size, count(3 + size))
        yield _deliver(size, count(9 + size))
    for size in (16, 128, 1024):
        yield _attribute_publish(size, count(size + 64))
    yield _spp_info(128, count(128))
    yield _parcel_ack(count(128))
    yield _sdk_heartbeat(count(17))
    yield _sdk_push(128, count(192))
    yield _tube_message(128, count(128))
    yield _tube_message(64 * 1024, count(64 * 1024))


def _push(size: int, count: int) -> Case:
    payloads = [bytes([i % 256]) * size for i in range(count)]
    run = Run.of(payloads)
    one = fyrehose.Push(payloads[0])
    return Case(
        f"fyrehose PUSH, {size} bytes",
        [fyrehose.serialize(fyrehose.Push(payload)) for payload in payloads],
        fyrehose.ServerDecoder(),
        write=lambda: fyrehose.serialize(one),
        write_all=lambda: fyrehose.push_run(run),
    )


def _deliver(size: int, count: int) -> Case:
    payloads = [bytes([i % 256]) * size for i in range(count)]
    run = Run.of(payloads)
    one = fyrehose.Deliver(1, payloads[0])
    return Case(
        f"fyrehose DELIVER, {size} bytes",
        [fyrehose.serialize(fyrehose.Deliver(seq, payload)) for seq, payload in enumerate(payloads, 1)],
        fyrehose.ClientDecoder(),
        write=lambda: fyrehose.serialize(one),
        write_all=lambda: fyrehose.deliver_run(run, 1)[0],
    )


def _attribute_publish(size: int, count: int) -> Case:
    publishes = publish.Publishes(
        [{"city": "Oslo", "degrees": float(i % 40)} for i in range(count)],
        Run.of(bytes([i % 256]) * size for i in range(count)),
    )
    one = next(iter(publishes))
    return Case(
        f"attribute publish, {size} bytes",
        [publish.serialize(message) for message in publishes],
        publish.PublisherDecoder(),
        write=lambda: publish.serialize(one),
        write_all=lambda: publish.serialize_all(publishes),
    )


def _spp_info(size: int, count: int) -> Case:
    infos = [spp.Info(f"service-{i % 100}", bytes([i % 256]) * size) for i in range(count)]
    pairs = [(info.service, info.message) for info in infos]
    return Case(
        f"spp Info, {size} bytes",
        [spp.serialize(info) for info in infos],
        spp.ClientDecoder(),
        write=lambda: spp.serialize(infos[0]),
        write_all=lambda: spp.serialize_infos(pairs),
    )


def _parcel_ack(count: int) -> Case:
    acks = [parcel.Parcel(60396, body.Ack(7, i, i, i + 9)) for i in range(1, count + 1)]
    return Case(
        "parcel Ack",
        [parcel.serialize(ack) for ack in acks],
        parcel.ParcelDecoder(),
        write=lambda: parcel.serialize(acks[0]),
    )


def _sdk_heartbeat(count: int) -> Case:
    return Case(
        "sdk hb",
        [sdk.serialize(sdk.Heartbeat())] * count,
        sdk.ServerDecoder(),
        write=lambda: sdk.serialize(sdk.Heartbeat()),
    )


def _sdk_push(size: int, count: int) -> Case:
    seqs = range(1, count + 1)
    payloads = [bytes([97 + i % 26]) * size for i in range(count)]
    run = Run.of(payloads)
    pushes = list(map(sdk.Push, seqs, payloads))
    return Case(
        f"sdk push, {size} bytes",
        [sdk.serialize(push) for push in pushes],
        sdk.ClientDecoder(),
        write=lambda: sdk.serialize(pushes[0]),
        write_all=lambda: sdk.serialize_pushes(seqs, run).content.data,
    )


def _tube_message(size: int, count: int) -> Case:
    fragment = reassembly.DEFAULT_FRAGMENT_SIZE
    messages = [bytes([i % 256]) * size for i in range(count)]
    decoder = reassembly.StreamDecoder()
    for _ in decoder.feed(tube.serialize(tube.FragmentSize(fragment))):
        pass
    return Case(
        f"tube message, {size} bytes",
        [b"".join(tube.stream_pieces(message, fragment)) for message in messages],
        decoder,
        write=lambda: list(tube.stream_pieces(messages[0], fragment)),
    )


def _measure_reading(table: bench.Table, case: Case, quick: bool) -> None:
    whole = b"".join(case.wires)

    def batch() -> None:
        for _ in case.decoder.feed(whole):
            pass

    def single() -> None:
        for wire in case.wires:
            for _ in case.decoder.feed(wire):
                pass

    read = sum(_frames(frame) for frame in case.decoder.feed(whole))
    assert read == len(case.wires), f"{case.name}: {read} frames read of {len(case.wires)}"
    one = bench.best(single, quick=quick) / len(case.wires)
    many = bench.best(batch, quick=quick) / len(case.wires)
    table.add(case.name, 1 / one, 1 / many, _megabytes(case.wires) / many, one / many)


def _measure_writing(table: bench.Table, case: Case, quick: bool) -> None:
    one = bench.best(case.write, quick=quick)
    if case.write_all is None:
        table.add(case.name, 1 / one, None, None, None)
        return
    assert bytes(case.write_all()) == b"".join(case.wires), f"{case.name}: a batch is written differently"
    many = bench.best(case.write_all, quick=quick) / len(case.wires)
    table.add(case.name, 1 / one, 1 / many, _megabytes(case.wires) / many, one / many)


def _push_to_deliver(quick: bool) -> bench.Table:
    size = 128
    count = QUICK_FRAMES if quick else BUFFER // (3 + size)
    pushes = bytearray(b"".join([fyrehose.serialize(fyrehose.Push(bytes(size)))] * count))
    decoder = fyrehose.ServerDecoder()
    numbers = itertools.count(1, count)

    def batch() -> None:
        frames, _, _ = decoder.scan(pushes, 0, len(pushes))
        for frame in frames:
            assert isinstance(frame, fyrehose.PushRun)
            fyrehose.deliver_run(frame.run, next(numbers))

    def single() -> None:
        step = 3 + size
        for seq, at in enumerate(range(0, len(pushes), step), 1):
            push = fyrehose.parse(bytes(pushes[at : at + step]))
            assert isinstance(push, fyrehose.Push)
            fyrehose.serialize(fyrehose.Deliver(seq, push.data))

    table = bench.Table(
        f"PUSH to DELIVER, {len(pushes):,} bytes of {size}-byte messages",
        ("frames/s", "MB/s"),
        note="MB are those that come in; the copy is of the same buffer",
    )
    for name, function, base in (
        ("single", single, None),
        ("batch", batch, "single"),
        ("plain copy", lambda: bytes(pushes), "batch"),
    ):
        seconds = bench.best(function, quick=quick)
        table.add(name, count / seconds, len(pushes) / seconds / 1e6, base=base)
    return table


def _frames(frame: object) -> int:
    """How many frames of the wire a decoder's yield stands for."""
    match frame:
        case fyrehose.PushRun(run) | fyrehose.DeliverRun(run=run):
            return len(run)
        case publish.Publishes():
            return len(frame)
        case _:
            return 1


def _megabytes(wires: Sequence[bytes]) -> float:
    """The mean length of a frame."""
    return sum(map(len, wires)) / len(wires) / 1e6
