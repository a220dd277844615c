"""A user's program, as ``mypy --strict`` reads it; ``test_program.py`` has it read. It is never run.

``assert_type`` states what a type checker is to know. Each ``type: ignore`` states an error that it is to find: strict
checking complains of one that finds none.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, assert_type

import pyarrow as pa

import headrace
from headrace import (
    Acknowledged,
    Batch,
    BatchStream,
    Client,
    Consumer,
    Extent,
    FyrehoseClient,
    LinkClient,
    LinkPublisher,
    LiveService,
    Message,
    MessageStream,
    Offer,
    PublisherClient,
    Row,
    SdkClient,
    SppClient,
    SyncClient,
    SyncConsumer,
    SyncFyrehoseClient,
    SyncLinkClient,
    SyncLinkPublisher,
    SyncMessageStream,
    SyncPublisherClient,
    SyncSdkClient,
    SyncSppClient,
    TrimmedError,
    between,
    where,
)
from headrace.testing import Hub


def each_scheme_has_its_client(url: str) -> None:
    assert_type(headrace.connect(), LinkClient)
    assert_type(headrace.connect("tube://"), LinkClient)
    assert_type(headrace.connect("ws://", "hub.example:8080"), LinkClient)
    assert_type(headrace.connect("fyrehose://", from_seq=1), FyrehoseClient)
    assert_type(headrace.connect("fyrehose+udp://", "10.0.0.7"), FyrehoseClient)
    assert_type(headrace.connect("spp://", client_id="00112233445566778899aabb", key="secret"), SppClient)
    assert_type(headrace.connect("sdk://", heartbeat=5.0), SdkClient)
    assert_type(headrace.connect("publisher://", timeout=3.0), PublisherClient)
    assert_type(headrace.connect("tube+tls://", "hub.example", ca="ca.pem"), LinkClient)
    assert_type(headrace.connect("wss://", pin="hub.pem"), LinkClient)
    assert_type(headrace.connect("fyrehose+tls://", cert="me.pem", cert_key="me.key"), FyrehoseClient)
    assert_type(headrace.connect("spp+tls://"), SppClient)
    assert_type(headrace.connect("sdk+tls://", ca=None), SdkClient)
    assert_type(headrace.connect("publisher+tls://"), PublisherClient)
    assert_type(headrace.connect_sync("tube+tls://", ca="ca.pem"), SyncLinkClient)
    assert_type(headrace.connect(url), Client)
    assert_type(LinkClient.at(url, name="billing"), LinkClient)
    assert_type(SppClient.at(url), SppClient)


def each_scheme_has_its_blocking_client(url: str) -> None:
    assert_type(headrace.connect_sync(), SyncLinkClient)
    assert_type(headrace.connect_sync("tube://", "10.0.0.7:8081"), SyncLinkClient)
    assert_type(headrace.connect_sync("ws://"), SyncLinkClient)
    assert_type(headrace.connect_sync("fyrehose://"), SyncFyrehoseClient)
    assert_type(headrace.connect_sync("fyrehose+udp://"), SyncFyrehoseClient)
    assert_type(headrace.connect_sync("spp://"), SyncSppClient)
    assert_type(headrace.connect_sync("sdk://"), SyncSdkClient)
    assert_type(headrace.connect_sync("publisher://"), SyncPublisherClient)
    assert_type(headrace.connect_sync(url), SyncClient[Client])
    assert_type(SyncSdkClient.at(url, from_seq=7), SyncSdkClient)


async def the_link() -> None:
    async with headrace.connect(name="billing", reconnect_timeout=5.0) as link:
        assert_type(
            await link.publish(b"hello", topic="t", attributes={"city": "Praha", "x": 5}), Acknowledged
        )
        rows: list[Row] = [{"payload": b"a", "attributes": {"x": 5}}]
        await link.publish(rows)
        publisher = link.publisher("orders")
        assert_type(publisher, LinkPublisher)
        assert_type(await publisher.publish(b"one"), Acknowledged)
        ahead = await publisher.send(b"two")
        assert_type(await ahead, Acknowledged)
        assert_type(await link.head(), Extent)
        assert_type(link.read(1, 10), BatchStream)
        stream = link.follow(from_seq=1, topic="t", where=where(x=between(0, 10)))
        assert_type(stream, MessageStream)
        async for message in stream:
            assert_type(message, Message)
            print(message.seq, message.payload, message.topic)
        async with link.consumer("billing", topic="orders/*", from_seq=1) as consumer:
            assert_type(consumer, Consumer)
            async for message in consumer:
                assert_type(await consumer.ack(message), bool)


async def the_others() -> None:
    async with headrace.connect("fyrehose://", from_seq=1) as backbone:
        await backbone.publish([b"a", b"b"])
        async for message in backbone:
            assert_type(message, Message)
        async for batch in backbone.batches():
            assert_type(batch, Batch)
    async with headrace.connect("spp://") as spp:
        await spp.publish({"speed": 61}, topic="fleet/42")
        async for offer in spp.offers():
            assert_type(offer, Offer)
        async with spp.subscribe("fleet/42", "json") as service:
            assert_type(service, LiveService[dict[str, Any]])
            assert_type(service.value, dict[str, Any] | None)
        assert_type(spp.subscribe("fleet/42", "last"), LiveService[bytes])
    async with headrace.connect("sdk://", from_seq=7) as sdk:
        await sdk.subscribe(where(city="Praha", x=between(0, 10)))
        assert_type(await anext(sdk), Message)
        assert_type(sdk.cursor, int | None)
    async with headrace.connect("publisher://") as publisher:
        await publisher.publish(b"payload", attributes={"city": "Praha", "x": 5})


def without_an_event_loop() -> None:
    with headrace.connect_sync() as link:
        assert_type(link.publish(b"hello", topic="t"), Acknowledged)
        assert_type(link.head().head, int)
        assert_type(link.connected, bool)
        publisher = link.publisher("orders")
        assert_type(publisher, SyncLinkPublisher)
        assert_type(publisher.send(b"ahead"), Future[Acknowledged])
        with link.follow(from_seq=1) as stream:
            assert_type(stream, SyncMessageStream)
            assert_type(next(stream), Message)
        with link.consumer("billing") as consumer:
            assert_type(consumer, SyncConsumer)
            for message in consumer:
                assert_type(consumer.ack(message), bool)
        for rows in link.read(1):
            names: list[str] = pa.Table.from_batches([rows]).column_names
            print(names)
    backbone = headrace.connect_sync("fyrehose://")
    for message in backbone:
        assert_type(message, Message)
    spp = headrace.connect_sync("spp://")
    with spp.subscribe("fleet/42", "json") as service:
        assert_type(service.value, dict[str, Any] | None)
        for change in service:
            assert_type(change, dict[str, Any])


def a_hub_of_ones_own() -> None:
    with Hub({"services.auto": True}) as hub:
        assert_type(hub.connect("sdk://"), SdkClient)
        assert_type(hub.connect_sync("tube://"), SyncLinkClient)
        assert_type(hub.wait_for(1), list[Message])


def a_url_that_is_known_later(client: Client) -> Mapping[str, str]:
    if isinstance(client, LinkClient):
        assert_type(client, LinkClient)
        return {"log": client.log}
    return {}


async def errors() -> int:
    try:
        async with headrace.connect() as link:
            await link.publish(b"x")
    except TrimmedError as trimmed:
        return trimmed.oldest
    except headrace.RefusedError as refused:
        print(refused.code)
    except headrace.HeadraceError as error:
        print(error)
    return 0


async def mistakes(url: str) -> None:
    headrace.connect("spp://").follow()  # type: ignore[attr-defined]
    await headrace.connect("tube://").publish("text", topic=5)  # type: ignore[arg-type]
    headrace.connect_sync("fyrehose://").publish(b"x", topic="t")  # type: ignore[call-arg]
    headrace.connect_sync().head(first=1)  # type: ignore[call-arg]
    headrace.connect(url).publish(b"x")  # type: ignore[attr-defined]
    LinkClient.at(url, patience=5.0)  # type: ignore[call-arg]
