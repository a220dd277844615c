"""Hubs among themselves over TLS: frontends, and the roles of content routing in processes of their own."""

from __future__ import annotations

import asyncio

import pytest
from tests.tls.conftest import SECONDS, TlsHub

import headrace
from headrace.errors import ConfigError
from headrace.testing import Hub


def settings_of(tls: TlsHub, **more: str) -> dict[str, object]:
    found = {
        "tls.cert": str(tls.certificate.cert),
        "tls.key": str(tls.certificate.key),
        "tls.ca": tls.ca,
    }
    return {**found, **{key.replace("__", "."): value for key, value in more.items()}}


@pytest.mark.parametrize("scheme", ["tube+tls", "fyrehose+tls"])
async def test_a_frontend_dials_its_hub_with_tls(tls: TlsHub, scheme: str) -> None:
    above = tls.hub.url(scheme)
    with Hub(settings_of(tls, node__upstream=above, node__name=f"front-{scheme}")) as front:
        async with (
            front.connect("fyrehose+tls://", ca=tls.ca) as here,
            tls.hub.connect("fyrehose+tls://", ca=tls.ca) as there,
            asyncio.timeout(SECONDS),
        ):
            await here.publish(b"through both")
            assert [message.payload async for message in first_of(there)] == [b"through both"]
            assert [message.payload async for message in first_of(here)] == [b"through both"]


async def test_a_frontend_needs_no_certificate_of_its_own(tls: TlsHub) -> None:
    above = tls.hub.url("tube+tls")
    with (
        Hub({"node.upstream": above, "tls.ca": tls.ca, "node.name": "front-plain"}) as front,
        front.connect_sync("tube://") as link,
    ):
        assert link.publish(b"passed on").first > 0


async def test_a_matcher_a_dispatcher_and_a_connector_apart(tls: TlsHub) -> None:
    """Each dials the other's door with TLS, because it has TLS at that door itself."""
    above = tls.hub.url("tube+tls")

    def role(name: str, roles: str, **more: str) -> Hub:
        wanted = {"node__name": name, "node__roles": f"tube,{roles}", "node__upstream": above}
        return Hub(settings_of(tls, **wanted, **more))

    with (
        role("connector", "connector") as connector,
        role("dispatcher", "dispatcher", dispatcher__connectors=connector.doors["router"]) as dispatcher,
        role("matcher", "publisher,matcher", matching__dispatchers=dispatcher.doors["dispatcher"]) as matcher,
    ):
        async with (
            connector.connect("sdk+tls://", ca=tls.ca) as client,
            matcher.connect("publisher+tls://", ca=tls.ca) as publisher,
            asyncio.timeout(SECONDS),
        ):
            await client.subscribe({"city": headrace.starts_with("Pr")})
            pushed = asyncio.ensure_future(anext(aiter(client)))
            while not pushed.done():
                # The subscription reaches the matcher through the log.
                await publisher.publish(b"hello", attributes={"city": "Praha"})
                await asyncio.wait([pushed], timeout=0.1)
            assert pushed.result().payload == b"hello"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tls.key": "/etc/hostname"}, "tls.key"),
        ({"tls.doors": "spp"}, "tls.doors"),
        ({"tls.cert": "/nowhere.pem"}, "no such file"),
        ({"tls.cert": "/etc/hostname"}, "can be read"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_start(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message), Hub(given):
        pass


async def test_some_doors_only(tls: TlsHub) -> None:
    with Hub(settings_of(tls, tls__doors="spp,http")) as hub:
        async with hub.connect("spp+tls://", ca=tls.ca) as services, hub.connect("tube://") as link:
            await services.publish({"a": 1}, topic="one")
            assert (await link.publish(b"plain")).first > 0


async def first_of(client):  # type: ignore[no-untyped-def]
    async for message in client:
        yield message
        return


def test_hubs_of_one_process_decrypt_into_memory_of_their_own(tls: TlsHub) -> None:
    # Each has an event loop in a thread of its own, and OpenSSL works without the interpreter's lock.
    with Hub(settings_of(tls)) as other:
        assert other._running.entrance.plaintext.obj is not tls.hub._running.entrance.plaintext.obj
