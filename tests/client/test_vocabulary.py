"""The same words on every client: what is published by one is what another receives."""

from __future__ import annotations

import inspect

import pytest

import headrace
from headrace.testing import Hub

ATTRIBUTES = {"city": "Praha", "x": 5, "y": 0.5}


@pytest.mark.parametrize("scheme", ["tube://", "ws://", "publisher://"])
def test_numbers_among_attributes_are_numbers(scheme: str) -> None:
    with Hub() as hub, hub.connect_sync(scheme) as client, hub.connect_sync("sdk://") as sdk:
        sdk.subscribe(headrace.where(x=headrace.at_least(5), city="Praha"))
        client.publish(b"shared", attributes=ATTRIBUTES)
        client.publish([{"payload": b"own", "attributes": ATTRIBUTES}, b"shared"], attributes={"x": 6})
        client.publish(b"apart", attributes={"city": "Praha"}, numbers={"x": 7})
        assert [next(sdk).payload for _ in range(3)] == [b"shared", b"own", b"apart"]
        said = [(message.attributes, message.numbers) for message in hub.wait_for(4)]
        assert said == [
            ({"city": "Praha"}, {"x": 5.0, "y": 0.5}),
            ({"city": "Praha"}, {"x": 5.0, "y": 0.5}),
            ({}, {"x": 6.0}),
            ({"city": "Praha"}, {"x": 7.0}),
        ]
        assert all(type(number) is float for _, numbers in said for number in numbers.values())
        for wrong in (True, None, ["a"]):
            with pytest.raises(headrace.UsageError):
                client.publish(b"", attributes={"a": wrong})


@pytest.mark.parametrize("scheme", ["tube://", "fyrehose://", "fyrehose+udp://", "publisher://"])
def test_publish_takes_one_message_or_many(scheme: str) -> None:
    with Hub() as hub, hub.connect_sync(scheme) as client:
        client.publish(b"one")
        client.publish([b"two", bytearray(b"three")])
        assert [message.payload for message in hub.wait_for(3)] == [b"one", b"two", b"three"]
        with pytest.raises(headrace.UsageError, match="bytes"):
            client.publish("text")


def test_where_to_start_is_from_seq() -> None:
    places = [headrace.FyrehoseClient, headrace.SdkClient]
    methods = [headrace.LinkClient.follow, headrace.LinkClient.read, headrace.LinkClient.consumer]
    methods += [headrace.LinkClient.head, headrace.LinkClient.reset_consumer]
    for each in (*places, *methods):
        assert "from_seq" in inspect.signature(each).parameters
    with Hub() as hub, hub.connect_sync("tube://") as link:
        link.publish([b"%d" % number for number in range(1, 6)], attributes={"x": 1})
        with link.follow(from_seq=3) as stream:
            assert (next(stream).seq, stream.cursor) == (3, 6)
        with hub.connect_sync("fyrehose://", from_seq=3) as backbone:
            assert next(backbone).seq == 3
        with hub.connect_sync("sdk://", from_seq=3) as sdk:
            sdk.subscribe({"x": 1})
            assert (next(sdk).seq, next(sdk).seq, next(sdk).seq, sdk.cursor) == (3, 4, 5, 6)


def test_where_to_start_may_be_a_word() -> None:
    with Hub() as hub, hub.connect_sync("tube://") as link:
        link.publish([b"one", b"two"], attributes={"x": 1})
        assert link.read("earliest").to_arrow()["seq"].to_pylist() == [1, 2]
        with link.follow("earliest") as stream:
            assert next(stream).seq == 1
        with link.consumer("all", from_seq="earliest") as consumer:
            assert next(consumer).seq == 1
        with hub.connect_sync("fyrehose://", from_seq="earliest") as backbone:
            assert next(backbone).seq == 1
        with hub.connect_sync("sdk://", from_seq="earliest") as sdk:
            sdk.subscribe({"x": 1})
            assert next(sdk).seq == 1
        link.reset_consumer("all", "now")
        with (
            link.follow("now") as stream,
            link.consumer("all") as consumer,
            link.consumer("new", from_seq="now") as new,
            hub.connect_sync("fyrehose://", from_seq="now") as backbone,
            hub.connect_sync("sdk://", from_seq="now") as sdk,
        ):
            sdk.subscribe({"x": 1})
            stream.begun()
            link.publish(b"three", attributes={"x": 1})
            assert {next(each).seq for each in (stream, consumer, new, backbone, sdk)} == {3}
        for wrong in (lambda: link.follow("first"), lambda: hub.connect_sync("sdk://", from_seq="first")):
            with pytest.raises(headrace.UsageError, match="expected a sequence number, 'earliest' or 'now'"):
                wrong()
        with pytest.raises(headrace.UsageError, match="follow what is to come"):
            link.read("now")


def test_alternatives_where_there_are_none() -> None:
    either = headrace.where(x=1) | headrace.where(y=2)
    with Hub() as hub, hub.connect_sync("tube://") as link:
        for wrong in (link.read, link.follow, lambda where: link.consumer("name", where=where)):
            with pytest.raises(headrace.UsageError, match="`match` reads them"):
                wrong(where=either)
            with pytest.raises(headrace.UsageError, match="not str"):
                wrong(where="x=1 | y=2")
        link.publish(b"one", attributes={"y": 2})
        assert [rows.num_rows for rows in link.match(either)] == [1]
