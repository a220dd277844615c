"""Certificates: of the wrong host or time, renewed under load, shown by clients; and that no key is ever printed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.certificates import Authority, Certificate
from tests.tls.conftest import SECONDS, TlsHub
from tests.tls.test_doors import until

from headrace.client import tls as client_tls
from headrace.errors import ConfigError, UnreachableError, UsageError
from headrace.net.server.accepting.tls import HubTls
from headrace.testing import Hub

CLIENT = "0123456789abcdef01234567"


def hub_with(certificate: Certificate, **more: object) -> Hub:
    settings = {"tls.cert": str(certificate.cert), "tls.key": str(certificate.key)}
    return Hub({**settings, **{name.replace("__", "."): value for name, value in more.items()}})


@pytest.mark.parametrize("scheme", ["tube+tls", "fyrehose+tls"])
async def test_a_certificate_of_another_host(authority: Authority, scheme: str) -> None:
    told = r"its certificate is not for 127\.0\.0\.1"
    with (
        hub_with(authority.sign("elsewhere.example", ())) as hub,
        pytest.raises(UnreachableError, match=told),
    ):
        await hub.connect(scheme, ca=authority.ca).open()


@pytest.mark.parametrize("scheme", ["wss", "publisher+tls"])
async def test_an_expired_certificate(authority: Authority, scheme: str) -> None:
    with (
        hub_with(authority.sign("expired", days=-1)) as hub,
        pytest.raises(UnreachableError, match="has expired"),
    ):
        await hub.connect(scheme, ca=authority.ca).open()


async def test_renewal_under_load_loses_nothing(authority: Authority) -> None:
    """New handshakes get the new certificate at once; who is connected goes on, and so do messages."""
    certificate = authority.sign("renewed")
    with hub_with(certificate) as hub:
        async with (
            hub.connect("tube+tls://", ca=authority.ca) as publisher,
            hub.connect("tube+tls://", ca=authority.ca) as reader,
        ):
            stream = aiter(reader.follow(from_seq=1))
            sent = 0
            seen: list[bytes] = []
            first = shown(hub, authority)
            renewed = None
            async with asyncio.timeout(SECONDS):
                while renewed in (None, first) or sent < 300:
                    await publisher.publish([b"%d" % number for number in range(sent, sent + 10)])
                    sent += 10
                    if sent == 100:
                        authority.sign("renewed", replace=certificate)
                    if sent > 100:
                        renewed = await asyncio.to_thread(shown, hub, authority)
                    async with hub.connect("tube+tls://", ca=authority.ca) as newcomer:
                        assert (await newcomer.head()).head == sent
                while len(seen) < sent:
                    seen.append((await anext(stream)).payload)
            assert seen == [b"%d" % number for number in range(sent)]
            assert (publisher.connects, reader.connects) == (1, 1)


def test_a_renewed_file_that_is_no_certificate_changes_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = authority.sign("half-written")
    with hub_with(certificate) as hub:
        first = shown(hub, authority)
        certificate.cert.write_text("half of a")
        until("it is told", lambda: "the last one stays" in caplog.text)
        assert shown(hub, authority) == first
        authority.sign("half-written", replace=certificate)
        until("the next one is taken", lambda: shown(hub, authority) != first)
    assert caplog.text.count("the last one stays") == 1


def test_clients_take_a_renewed_authority(tmp_path: Path, certificate: Certificate, tls: TlsHub) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(Authority(tmp_path, "first").ca.read_bytes())
    kept = client_tls.ClientTls(client_tls.TlsFiles(ca=trusted))
    before = kept.current()
    assert kept.current() is before
    trusted.write_bytes(tls.authority.ca.read_bytes())
    assert kept.current() is not before


async def test_a_client_certificate_is_a_principal_where_there_is_no_login(
    authority: Authority, other_authority: Authority, certificate: Certificate
) -> None:
    known, stranger = authority.sign("gateway-7.example", ()), authority.sign("nobody.example", ())
    forged = other_authority.sign("gateway-7.example", ())
    settings = {
        "tls__ca": str(authority.ca),
        "auth__required": True,
        "access__gateway.certificate": "gateway-7.example",
        "access__gateway.allow": ["publish **", "read **", "service **"],
    }
    with hub_with(certificate, **settings) as hub:
        for scheme in ("fyrehose+tls", "publisher+tls", "spp+tls", "tube+tls"):
            files = {"ca": authority.ca, "cert": known.cert, "cert_key": known.key}
            async with hub.connect(scheme, **files) as client:
                if scheme != "spp+tls":
                    await client.publish(b"hello")  # type: ignore[attr-defined]
        hub.wait_for(3)
        counters = hub._running.hub.counters
        for shown_one in (None, stranger):
            sock = handshake(hub, "fyrehose", authority, shown_one)
            assert sock.recv(10) == b""
            sock.close()
        until("both are refused", lambda: sum_of(counters, "fyrehose", "not") >= 2)
        # A certificate of the same name by another authority is no certificate at all.
        sock = handshake(hub, "fyrehose", authority, forged)
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert sock.recv(10) == b""
        sock.close()
        until("it is refused", lambda: counters.get("refused", door="fyrehose", reason="handshake") == 1)
        assert len(hub.messages()) == 3


def test_keys_are_never_printed(
    authority: Authority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    certificate = authority.sign("secretive")
    secret = certificate.key.read_text().splitlines()[1]
    swapped = Certificate(certificate.key, certificate.cert)
    told = []
    for each in (
        swapped,
        Certificate(certificate.cert, authority.ca),
        Certificate(certificate.key, tmp_path),
    ):
        with pytest.raises(ConfigError) as refused:
            hub_with(each).start()
        told.append(str(refused.value))
        with pytest.raises(UsageError) as usage:
            client_tls.TlsFiles(cert=each.cert, cert_key=each.key).context()
        told.append(str(usage.value))
    with hub_with(certificate) as hub:
        told.append(str(hub.status))
        told.append(repr(client_tls.TlsFiles.of({"cert": certificate.cert, "cert_key": certificate.key})))
    assert secret not in "".join(told) + caplog.text


def test_nobody_is_asked_for_the_password_of_a_key(certificate: Certificate, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"swordfish"),
        )
    )
    with pytest.raises(UsageError, match="protected by a password"):
        client_tls.TlsFiles(cert=certificate.cert, cert_key=locked).context()
    with pytest.raises(ConfigError, match="protected by a password"):
        hub_with(Certificate(certificate.cert, locked)).start()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("tube://h", {"ca": "x"}, r"connect to tube\+tls://"),
        ("ws://h", {"pin": "x"}, "connect to wss://"),
        ("tube+tls://h", {"ca": "/nowhere.pem"}, "no certificates to trust"),
        ("tube+tls://h", {"cert_key": "/nowhere.pem"}, "give cert too"),
        ("tube+tls://h", {"key": "ada.key"}, "cert_key"),
        ("sdk+tls://h", {"key": "ada.key"}, "cert_key"),
        ("fyrehose+tls://h", {"cert": "/nowhere.pem"}, "cert_key"),
        ("fyrehose+tls://h", {"transport": "udp"}, "TLS needs TCP"),
    ],
)
def test_what_cannot_be_meant(url: str, options: dict[str, object], message: str) -> None:
    from headrace import connect

    with pytest.raises(UsageError, match=message):
        connect(url, **options)


def test_a_cluster_needs_an_authority(certificate: Certificate) -> None:
    from headrace.config import load

    sets = [*certificate.settings(), "cluster.peers=127.0.0.1:1"]
    with pytest.raises(ConfigError, match="show each other certificates"):
        HubTls(load(environ={}, sets=sets)).between_nodes()
    for name in ("tls_cert", "tls_key", "tls_ca"):
        alone = [f"cluster.{name}={certificate.cert}"]
        with pytest.raises(ConfigError, match="belong together"):
            HubTls(load(environ={}, sets=alone)).between_nodes()


def handshake(hub: Hub, door: str, authority: Authority, own: Certificate | None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=authority.ca)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    host, _, port = hub.doors[door].rpartition(":")
    sock = socket.create_connection((host, int(port)), SECONDS)
    return context.wrap_socket(sock, server_hostname="127.0.0.1")


def shown(hub: Hub, authority: Authority) -> bytes | None:
    """Return the certificate that a new connection is shown."""
    with handshake(hub, "http", authority, None) as sock:
        return sock.getpeercert(binary_form=True)


def sum_of(counters: object, door: str, reason: str) -> int:
    return sum(
        value
        for name, labels, value in counters  # type: ignore[attr-defined]
        if name == "refused" and labels["door"] == door and labels["reason"].startswith(reason)
    )
