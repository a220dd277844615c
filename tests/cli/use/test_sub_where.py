"""``sub --where`` and ``pub --door publisher`` against doors that do as they are told."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import SECONDS, Command
from tests.cli.pseudo_terminal import Terminal
from tests.client.connectors import PublisherSession, Session, connector, elsewhere, publisher_door
from tests.forking import piped
from tests.hubprocess import HubProcess

from headrace.wire.attribute.publish import Publish
from headrace.wire.sdk.auth import Auth, is_signed
from headrace.wire.sdk.commands import Push
from headrace.wire.sdk.predicate import Between, Equals
from headrace.wire.sdk.subscribe import Subscribe

CLIENT, KEY = "00112233445566778899aabb", "a key of nobody"


class Connector:
    """A connector that notes who comes, and pushes two messages."""

    def __init__(self) -> None:
        self.auths: list[Auth] = []
        self.subs: list[Subscribe] = []

    async def script(self, session: Session) -> None:
        self.auths.append(await session.welcome())
        self.subs.append(await session.subscription())
        session.send(Push(7, b"hello\x1b"), Push(9, b"\xff"))
        await session.stay()


@pytest.fixture
def hub() -> Connector:
    return Connector()


def test_in_a_pipe(hub: Connector, command: Command) -> None:
    with elsewhere(lambda: connector(hub.script, piece=3)) as url:
        done = command("sub", "--where", "x=0..10", "-w", "city=Praha", "--count", 2, "--url", url)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"seq": 7, "payload": "hello\x1b"},
        {"seq": 9, "payload_base64": "/w=="},
    ]
    assert hub.subs == [Subscribe({"x": Between(0, 10), "city": Equals("Praha")})]
    assert hub.auths[0].after is None


def test_on_a_terminal(hub: Connector) -> None:
    with (
        elsewhere(lambda: connector(hub.script)) as url,
        Terminal("sub", "--where", "city", "--url", url) as terminal,
    ):
        terminal.read_until("7  hello\\x1b\n")
        terminal.read_until("9  0xff\n")
        terminal.interrupt()
        assert terminal.wait() == 130


@pytest.mark.parametrize(("begin", "after"), [("earliest", 0), (1, 0), (8, 7)])
def test_from_a_place_on(hub: Connector, command: Command, begin: int | str, after: int) -> None:
    with elsewhere(lambda: connector(hub.script)) as url:
        done = command("sub", "--where", "city", "--from", begin, "--count", 1, "--raw", "--url", url)
    assert (done.returncode, done.stdout) == (0, b"\xff\n" if after else b"hello\x1b\n")
    assert hub.auths[0].after == after


@pytest.mark.parametrize("variable", ["HEADRACE_KEY", f"HEADRACE_AUTH__CLIENTS__{CLIENT.upper()}"])
def test_a_key_from_the_environment(
    hub: Connector, command: Command, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, KEY)
    with elsewhere(lambda: connector(hub.script)) as url:
        done = command("sub", "--where", "city", "--client-id", CLIENT.upper(), "--count", 1, "--url", url)
    assert (done.returncode, done.stderr) == (0, b"")
    assert is_signed(hub.auths[0], KEY.encode())


def test_a_client_that_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(session: Session) -> None:
        await session.command()
        session.refuse()

    monkeypatch.setenv("HEADRACE_KEY", KEY)
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    with elsewhere(lambda: connector(script)) as url:
        done = command("sub", "--where", "city", "--client-id", CLIENT, "--url", url)
    assert done.returncode == 1
    assert f"does not accept client {CLIENT}: check its id, its key and this clock" in done.stderr.decode()
    assert KEY not in done.stderr.decode()


def test_a_subscription_is_withdrawn_by_whoever_ends_it(hub: Connector) -> None:
    async def script(session: Session) -> None:
        sessions.append(session)
        await hub.script(session)

    sessions: list[Session] = []
    with (
        elsewhere(lambda: connector(script)) as url,
        piped("sub", "--where", "city", "--url", url) as process,
    ):
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 143
        assert process.stderr.read() == b""
    assert [session.withdrawn for session in sessions] == [True]


def test_a_reader_that_goes_away(hub: Connector) -> None:
    with (
        elsewhere(lambda: connector(hub.script)) as url,
        piped("sub", "--where", "city", "--url", url) as process,
    ):
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(SECONDS) == 141


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--where", "x=10..0"], "the first is above the second"),
        (["--where", "=5"], "expected NAME=VALUE"),
        (["--where", "x", "--transport", "udp"], "--transport, --translated and --fetch are fyrehose's"),
        (["--where", "x", "--url", "fyrehose://127.0.0.1"], "expected sdk://host:port"),
        (["--where", "x", "--client-id", "me"], "client_id 'me': expected 24 hex digits"),
        (["--url", "sdk://127.0.0.1"], "the sdk door needs --where"),
        (["--client-id", CLIENT], "--client-id is for --where"),
    ],
)
def test_asked_for_wrongly(command: Command, arguments: list[str], complaint: str) -> None:
    done = command("sub", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert complaint in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_published_and_subscribed_at_a_hub(tmp_path: Path, command: Command) -> None:
    with HubProcess.start(tmp_path, "listen.http=off") as process:
        for door, place in (("tube", "Praha"), ("publisher", "Praha"), ("tube", "Brno")):
            address = process.doors["tube_tcp" if door == "tube" else door]
            done = command(
                "pub", door, "--attr", "x=5", "--attr", f"city={place}", "--url", f"{door}://{address}"
            )
            assert (done.returncode, done.stderr) == (0, b"")
        arguments = ["sub", "--from", 1, "--url", process.url("sdk"), "--text"]
        for asked, numbers in (
            (["x=0..10", "city=Praha"], [1, 2]),
            (["x=5", "city!=Praha"], [3]),
            (["city^=Br", "!topic"], [3]),
            (["city=Brno|Praha", "x"], [1, 2, 3]),
        ):
            wheres = [part for each in asked for part in ("--where", each)]
            done = command(*arguments, "--count", len(numbers), *wheres)
            assert (done.returncode, done.stderr) == (0, b"")
            assert [int(line.split(b"\t")[0]) for line in done.stdout.splitlines()] == numbers


class TestPublisherDoor:
    def test_attributes_and_payloads(self, command: Command) -> None:
        async def script(session: PublisherSession) -> None:
            while True:
                published.append(await session.publish())

        published: list[Publish] = []
        arguments = ["pub", "one", "two", "--attr", "x=5", "--attr", "city=Praha", "--attr", 'zip="7"']
        with elsewhere(lambda: publisher_door(script)) as url:
            done = command(*arguments, "--url", url)
            assert (done.returncode, done.stderr) == (0, b"")
            assert json.loads(done.stdout) == {"url": url, "sent": 2, "bytes": 6}
            assert len(published) == 2
            done = command(*arguments, "--count", 600, "--door", "publisher", "--url", url)
            assert json.loads(done.stdout) == {"url": url, "sent": 1200, "bytes": 3600}
        attributes = {"x": 5.0, "city": "Praha", "zip": "7"}
        assert published == [Publish(attributes, b"one"), Publish(attributes, b"two")] * 601

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["x", "--topic", "t"], "carries no --topic"),
            (["x", "--transport", "udp"], "--transport is fyrehose's"),
            (["x", "--url", "tube://127.0.0.1"], "name different doors"),
            (["x" * 1990, "--attr", "x=5"], "message 1 has more than 1985 bytes"),
            (["x", "--attr", "x=" + "y" * 2000], "the attributes alone have more bytes"),
            (["x", "--attr", "x"], "expected NAME=VALUE"),
            (["x", "--attr", "x=1e999"], "--attr x=1e999: x is too large a number to send"),
        ],
    )
    def test_asked_for_wrongly(self, command: Command, arguments: list[str], complaint: str) -> None:
        done = command("pub", "--door", "publisher", *arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert complaint in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
