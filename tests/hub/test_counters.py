from __future__ import annotations

import json

import pytest

from headrace.hub import counters as counters_module
from headrace.hub.counters import Counters


def test_a_count_is_a_name_and_labels() -> None:
    counters = Counters()
    counters.add("received")
    counters.add("received", 4)
    counters.add("received", 2, origin="spp")
    assert counters.get("received") == 5
    assert counters.get("received", origin="spp") == 2
    assert counters.get("received", origin="tube") == 0
    assert counters.get("nothing") == 0


def test_asking_counts_nothing() -> None:
    counters = Counters()
    counters.get("x", door="spp")
    assert list(counters) == []


def test_the_order_of_labels_means_nothing() -> None:
    counters = Counters()
    counters.add("x", door="spp", reason="slow")
    counters.add("x", reason="slow", door="spp")
    assert counters.get("x", reason="slow", door="spp") == 2
    assert len(list(counters)) == 1


def test_a_counter_kept_at_hand() -> None:
    counters = Counters()
    counter = counters.counter("delivered", door="spp")
    counter.value += 3
    counters.add("delivered", door="spp")
    assert counters.counter("delivered", door="spp") is counter
    assert counters.get("delivered", door="spp") == 4


def test_sorted_by_name_and_labels() -> None:
    counters = Counters()
    counters.add("b", door="y")
    counters.add("b", door="x")
    counters.add("a", 2)
    assert list(counters) == [("a", {}, 2), ("b", {"door": "x"}, 1), ("b", {"door": "y"}, 1)]


def test_as_json() -> None:
    counters = Counters()
    counters.add("plain", 3)
    counters.add("refused", door="spp", reason="slow")
    counters.add("refused", 2, door="tube", reason="limit")
    shown = {"plain": 3, "refused": {"spp/slow": 1, "tube/limit": 2}}
    assert json.loads(json.dumps(counters.as_dict())) == shown


def test_a_name_with_and_without_labels_loses_neither() -> None:
    counters = Counters()
    counters.add("mixed", 3)
    counters.add("mixed", 4, door="spp")
    assert counters.as_dict() == {"mixed": {"": 3, "spp": 4}}


class TestRefuse:
    def test_counted_by_door_and_reason_and_logged_with_the_peer(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        counters = Counters()
        counters.refuse("spp", "slow", "10.0.0.1:5", "took nothing for 30 s")
        assert counters.get("refused", door="spp", reason="slow") == 1
        assert caplog.messages == ["spp: refused 10.0.0.1:5 (slow, 1 so far): took nothing for 30 s"]

    def test_a_flood_is_counted_and_hardly_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        counters = Counters()
        for _ in range(3000):
            counters.refuse("spp", "malformed", "10.0.0.1:5", "bad bytes")
        assert counters.get("refused", door="spp", reason="malformed") == 3000
        shown = [int(message.split(" so far")[0].rpartition(" ")[2]) for message in caplog.messages]
        assert shown == [1, 10, 100, 1000, 2000, 3000]

    def test_a_flood_of_one_peer_hides_no_other(self, caplog: pytest.LogCaptureFixture) -> None:
        counters = Counters()
        for port in range(3000):
            counters.refuse("spp", "malformed", f"10.0.0.1:{port}", "bad bytes")
        caplog.clear()
        counters.refuse("spp", "malformed", "10.0.0.2:5 (somebody)", "bad bytes")
        assert len(caplog.messages) == 1

    def test_a_flood_from_everywhere_is_hardly_logged_and_takes_little_memory(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        counters = Counters()
        for number in range(10_000):
            counters.refuse("spp", "malformed", f"10.0.{number >> 8}.{number & 255}:5", "bad bytes")
        assert len(caplog.messages) == 20 + 10
        assert len(counters._peers) == counters_module._PEERS

    def test_a_flood_of_one_kind_hides_no_other(self, caplog: pytest.LogCaptureFixture) -> None:
        counters = Counters()
        for _ in range(100):
            counters.refuse("spp", "malformed", "10.0.0.1:5", "bad bytes")
        caplog.clear()
        counters.refuse("spp", "slow", "10.0.0.1:5", "took nothing")
        counters.refuse("tube", "malformed", "10.0.0.1:5", "bad bytes")
        assert len(caplog.messages) == 2


class TestReport:
    def test_counts_messages_and_logs_their_range(self, caplog: pytest.LogCaptureFixture) -> None:
        counters = Counters()
        counters.report("skipped", 5, 9, "10.0.0.1:5 is too far behind", door="fyrehose")
        counters.report("skipped", 12, 12, "again", door="fyrehose")
        assert counters.get("skipped", door="fyrehose") == 6
        assert caplog.messages[0] == "skipped: messages 5 to 9: 10.0.0.1:5 is too far behind"

    def test_every_range_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        counters = Counters()
        for seq in range(100):
            counters.report("skipped", seq, seq, "behind")
        assert len(caplog.messages) == 100

    def test_but_not_where_a_peer_can_cause_it_at_will(self, caplog: pytest.LogCaptureFixture) -> None:
        counters = Counters()
        for _ in range(1000):
            counters.report("unavailable", 1, 3, "asked", at_will=True)
        assert counters.get("unavailable") == 3000
        assert len(caplog.messages) == 21

    def test_a_message_without_a_number_is_logged_by_its_id(self, caplog: pytest.LogCaptureFixture) -> None:
        counters = Counters()
        for _ in range(30):
            counters.report_foreign("undeliverable", b"\xab\x01", "nobody has it", door="sdk")
        assert counters.get("undeliverable", door="sdk") == 30
        assert caplog.messages[0] == "undeliverable: message with the MsgId ab01: nobody has it"
        assert len(caplog.messages) == 20
