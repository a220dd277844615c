from __future__ import annotations

import asyncio

import pytest
from tests.cli.conftest import Command
from tests.cli.pseudo_terminal import Terminal
from tests.cli.use.test_pub_link import facts, url
from tests.hubprocess import HubProcess

import headrace


def consume(hub: HubProcess, name: str, count: int) -> list[bytes]:
    """Take part in a consumer for so many messages, and acknowledge them."""

    async def taken() -> list[bytes]:
        payloads = []
        async with (
            headrace.connect(url(hub)) as link,
            link.consumer(name, from_seq=1, topic="consumed") as consumer,
        ):
            async for message in consumer:
                payloads.append(message.payload)
                await consumer.ack(message)
                if len(payloads) == count:
                    return payloads
        return payloads

    return asyncio.run(taken())


@pytest.mark.slow
def test_looking_and_moving(hub: HubProcess, command: Command) -> None:
    told = facts(command("pub", "one", "two", "--topic", "consumed", "--url", url(hub)))
    assert consume(hub, "billing", 2) == [b"one", b"two"]

    listed = facts(command("consumers", "list", "--url", url(hub)))
    assert [each["consumer"] for each in listed] == ["billing"]
    shown = facts(command("consumers", "show", "billing", "--url", url(hub)))
    assert shown["floor"] >= told["last"]
    assert shown["terms"]["topic"] == "consumed"

    done = command("consumers", "reset", "billing", "--to", told["last"], "--url", url(hub))
    assert facts(done) == {"consumer": "billing", "next": told["last"]}
    assert consume(hub, "billing", 1) == [b"two"]
    assert command("consumers", "reset", "billing", "--to", "-1h", "--url", url(hub)).returncode == 0
    assert consume(hub, "billing", 1) == [b"one"]
    assert command("consumers", "reset", "billing", "--to", "now", "--url", url(hub)).returncode == 0
    with Terminal("consumers", "reset", "billing", "--to", "earliest", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    assert terminal.shown == "billing continues with message 1\n"

    with Terminal("consumers", "list", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    assert "billing" in [line.split()[0] for line in terminal.shown.splitlines()]
    with Terminal("consumers", "show", "billing", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    assert ["topic", "consumed"] in [line.split() for line in terminal.shown.splitlines()]

    with Terminal("consumers", "remove", "billing", "--url", url(hub)) as terminal:
        terminal.read_until("Remove billing")
        terminal.write(b"n\n")
        assert terminal.wait() == 1
    assert "nothing was changed" in terminal.shown
    done = command("consumers", "remove", "billing", "--url", url(hub))
    assert (done.returncode, done.stderr) == (
        2,
        b"headrace: there is nobody to ask: add --yes to remove it\n",
    )
    done = command("consumers", "remove", "billing", "--yes", "--url", url(hub))
    assert facts(done) == {"consumer": "billing", "removed": True}
    with Terminal("consumers", "list", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    assert terminal.shown == "there are no consumers\n"


def test_what_is_not_there(hub: HubProcess, command: Command) -> None:
    for arguments in (["show", "x"], ["reset", "x", "--to", "1"], ["remove", "x", "--yes"]):
        done = command("consumers", *arguments, "--url", url(hub))
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"there is no consumer 'x'" in done.stderr
