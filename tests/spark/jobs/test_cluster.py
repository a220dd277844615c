"""Spark over a cluster: a stream outlives the nodes it reads from, and ``verify`` sees when their logs disagree."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.clusterprocess import Trio
from tests.hubprocess import HubProcess
from tests.spark.hubs import seal, until
from tests.spark.jobs.conftest import Play
from tests.system.observing import PATIENCE_SECONDS

import headrace
from headrace.log.sealed.index import SegmentIndex
from headrace.log.sealed.segment import SealedSegment
from headrace.message import Message, messages
from headrace.spark import register
from headrace.spark.hub_connections import close_links
from headrace.spark.jobs.verify import run
from headrace.spark.jobs.verify.run import Verifier

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three nodes; each test leaves them whole. On a busy machine publishers may wait for a primary for long."""
    patience = f"cluster.publish_seconds={PATIENCE_SECONDS:g}"
    with Trio.start(tmp_path_factory.mktemp("trio"), patience) as nodes:
        yield nodes
        close_links()


def servers(trio: Trio, first: HubProcess) -> str:
    """All nodes' links, one of them first: that is where a client begins."""
    return ",".join([first.doors["tube_tcp"], *(n.doors["tube_tcp"] for n in trio.nodes if n is not first)])


class Load:
    """Publishes all the time, whoever is there; no faster than a query with small micro-batches reads."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: dict[int, bytes] = {}
        self.failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with headrace.connect_sync(f"tube://{self._hosts}", reconnect_timeout=PATIENCE_SECONDS) as link:
                count = 0
                while not self._over.wait(0.1):
                    payloads = [b"load %d" % (count + each) for each in range(20)]
                    count += len(payloads)
                    first, _ = link.publish(payloads)
                    self.acknowledged.update(enumerate(payloads, first))
        except BaseException as error:
            self.failure = error
            raise


class Kept:
    """What a query has read, by micro-batch: one that is done again takes the place of its first try."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.before: Callable[[int], None] = lambda _: None
        """Called with each micro-batch that is planned, before a task reads any of it."""

    def take(self, rows: DataFrame, number: int) -> None:
        self.before(number)
        self.batches[number] = rows.select("seq", "payload").collect()

    @property
    def rows(self) -> dict[int, bytes]:
        read = [row for number in sorted(self.batches) for row in self.batches[number]]
        seqs = [row.seq for row in read]
        assert seqs == sorted(set(seqs))
        return {row.seq: bytes(row.payload) for row in read}

    @property
    def last(self) -> int:
        return max((row.seq for batch in list(self.batches.values()) for row in batch), default=0)


def test_a_checkpoint_outlives_the_nodes_it_was_made_with(
    trio: Trio, spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    in_use = trio.working()
    named = servers(trio, in_use)
    kept = Kept()

    def begin() -> StreamingQuery:
        # Over the link: the files of a node that was killed would be there all the same.
        options = {
            "servers": named,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "200",
            "files": "false",
        }
        rows = spark.readStream.format("headrace").options(**options).load()
        writer = rows.writeStream.foreachBatch(kept.take).option("checkpointLocation", str(tmp_path / "kept"))
        return writer.start()

    killed: list[int] = []

    def kill(number: int) -> None:
        """In the middle of a micro-batch: it is planned by one node's head, and read from another."""
        if not killed and number >= 2:
            killed.append(number)
            in_use.kill9()

    def goes_on(query: StreamingQuery, until_when: Callable[[], object]) -> None:
        """Let a query run until something is so, and stop it; whatever fails meanwhile is what is told."""
        try:
            until(lambda: until_when() or query.exception() or load.failure)
        finally:
            query.stop()
        if load.failure is not None:
            raise load.failure
        assert query.exception() is None
        assert until_when()

    with Load(named) as load:
        kept.before = kill
        goes_on(begin(), lambda: killed and len(kept.batches) > killed[0] + 3)
        assert killed[0] in kept.batches
        in_use.restart()
        trio.primary()
        # Between two micro-batches, and two lives of a query: the node that was used now is gone as well.
        following = next(node for node in trio.nodes if node.doors["tube_tcp"] == named.split(",")[1])
        before = kept.last
        following.kill9()
        goes_on(begin(), lambda: kept.last > before + 200)
        following.restart()
    assert load.failure is None
    trio.working()
    query = begin()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    everything = log_of(trio.nodes[0])
    assert kept.rows == {message.seq: message.payload for message in everything}
    assert load.acknowledged.items() <= kept.rows.items()


def log_of(node: HubProcess) -> list[Message]:
    with headrace.connect_sync(f"tube://{node.doors['tube_tcp']}") as link:
        return [message for rows in link.read(1) for message in messages(rows)]


def test_verify_finds_what_one_node_has_differently(trio: Trio, play: Play, tmp_path: Path) -> None:
    primary = trio.working()
    with headrace.connect_sync(f"tube://{primary.doors['tube_tcp']}") as link:
        link.publish([b"the same on all nodes"] * 3000, topic="t")
        changed = int(link.head().head)
    trio.working()
    named = trio.hosts("tube_tcp")
    assert play("verify", named, path=tmp_path / "sound")["findings"] == 0
    for node in trio.nodes:
        seal(node)
    # Offline, one node's sealed segment is written anew with a payload that nobody published. Its checksums are right.
    liar = next(node for node in trio.nodes[1:] if node is not primary)
    liar.terminate()
    rewrite(liar.data / "log", changed, b"different on this one")
    liar.restart()
    trio.working()
    assert play("verify", named, path=tmp_path / "wrong")["findings"] == 1
    (found,) = pq.read_table(tmp_path / "wrong").to_pylist()
    assert (found["kind"], found["server"]) == ("disagreement", liar.doors["tube_tcp"])
    assert found["first"] == found["last"] == changed
    assert b"different on this one".hex().upper()[:20] in found["evidence"]
    # Replaced, it has what the others have.
    liar.terminate()
    shutil.rmtree(liar.data)
    liar.restart()
    trio.working()
    assert play("verify", named, path=tmp_path / "mended")["findings"] == 0


def test_verify_goes_on_without_a_node_and_looks_at_it_when_it_is_back(
    trio: Trio, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.working()
    named = trio.hosts("tube_tcp")
    others = ",".join(named.split(",")[1:])
    lost = trio.nodes[0]
    with headrace.connect_sync(f"tube://{others}") as link:
        changed, _ = link.publish([b"one node missed this"] * 10)
    trio.working()
    read = Verifier._range

    def killing(self: Verifier, server: str, first: int, last: int) -> DataFrame:
        """It has said how far it is, and is gone when it is asked for that."""
        if lost.running:
            assert server == lost.doors["tube_tcp"]
            lost.kill9()
        return read(self, server, first, last)

    with monkeypatch.context() as patch:
        patch.setattr(Verifier, "_range", killing)
        patch.setattr(run, "ANSWER_SECONDS", 0.5)
        without = play("verify", named, path=tmp_path / "found")
    assert (without["findings"], without["away"]) == (0, [lost.doors["tube_tcp"]])
    assert without["through"] >= changed + 9  # type: ignore[operator]
    lost.restart()
    trio.working()
    seal(lost)
    lost.terminate()
    rewrite(lost.data / "log", changed, b"and this it made up")
    lost.restart()
    with headrace.connect_sync(f"tube://{others}") as link:
        link.publish(b"more")
    trio.working()
    back = play("verify", named, path=tmp_path / "found")
    assert (back["findings"], back["away"]) == (1, [])
    (found,) = pq.read_table(tmp_path / "found").to_pylist()
    assert (found["kind"], found["server"], found["first"]) == (
        "disagreement",
        lost.doors["tube_tcp"],
        changed,
    )


def rewrite(log: Path, seq: int, payload: bytes) -> None:
    """Give a message of a sealed segment another payload."""
    segments = map(SealedSegment.open, log.glob("*.arrow"))
    segment = next(each for each in segments if each.first <= seq <= each.last)
    batches = []
    for number in range(len(segment.index.batches)):
        rows = segment.rows(number)
        payloads = rows.column("payload").to_pylist()
        first = rows.column("seq")[0].as_py()
        if first <= seq < first + rows.num_rows:
            payloads[seq - first] = payload
        place = rows.schema.get_field_index("payload")
        batches.append(
            rows.set_column(
                place, rows.schema.field(place), pa.array(payloads, rows.schema.field(place).type)
            )
        )
    segment.path.unlink()
    with pa.OSFile(str(segment.path), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    index = SegmentIndex.rebuild(segment.path, segment.uuid)
    index.write(segment.path.with_suffix(".index"), sync=True)
