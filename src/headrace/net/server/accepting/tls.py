"""A hub's TLS: which doors speak it, their certificates, whom they trust, and how this hub dials others.

Strategy: each door asks for its context at every handshake, and the files are looked at each second: a renewed
certificate serves the next handshake, and open connections stay. What this hub does at its own door, it expects of the
same door elsewhere: a dispatcher dials connectors with TLS if its own ``router`` door had TLS, whether open or not.

With ``tls.ca`` a client may show a certificate, which must then be one of that authority's; its subject's name is what
rights are given to. Nodes of a cluster always show theirs to each other, and each is bound to the name of its node.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.client.tls import OLDEST, RenewedContext, TlsFiles, told
from headrace.config import DOORS, Settings
from headrace.errors import ConfigError, UsageError
from headrace.protocols import is_tls

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the files."""


NO_DATAGRAMS: Final = "the backbone serves TCP only: it speaks TLS, which datagrams would pass by"


class NodeTls(NamedTuple):
    """TLS between the nodes of a cluster, for accepting and for dialling; None without TLS."""

    server: RenewedContext | None = None
    client: RenewedContext | None = None


class HubTls:
    """The TLS contexts of one hub."""

    def __init__(self, settings: Settings) -> None:
        """:class:`~headrace.errors.ConfigError` if a file cannot be used."""
        tls = settings.tls
        self._settings = settings
        self._kept: list[RenewedContext] = []
        self._looked = 0.0
        if tls.cert is None:
            for name, value in (("key", tls.key), ("doors", tls.doors)):
                if value:
                    raise _misconfigured(settings, f"tls.{name}", "nothing, as long as there is no tls.cert")
        self.doors: frozenset[str] = frozenset((tls.doors or DOORS) if tls.cert is not None else ())
        """The doors that speak TLS, by their names in ``listen``."""
        self._server = self._keep(self._make_server, "tls.cert") if tls.cert is not None else None
        self._client: RenewedContext | None = None

    def accepts(self, door: str) -> RenewedContext | None:
        """Return the TLS of a door of this hub, if it has any."""
        return self._server if door in self.doors else None

    def dials(self, door: str) -> RenewedContext | None:
        """Return the TLS to dial this door elsewhere with, if it has any."""
        return self._dialling() if door in self.doors else None

    def dials_url(self, url: str) -> RenewedContext | None:
        """Return the TLS to dial a hub's URL with, if its scheme says so."""
        return self._dialling() if is_tls(url.partition("://")[0]) else None

    def between_nodes(self) -> NodeTls:
        """Return the TLS between a cluster's nodes: ``cluster.tls_cert`` and the like, or else the hub's own."""
        files = self._node_files()
        if files is None:
            return NodeTls()
        return NodeTls(
            self._keep(lambda: _node_context(files, ssl.Purpose.CLIENT_AUTH), "cluster.tls_cert", files.all),
            self._keep(lambda: _node_context(files, ssl.Purpose.SERVER_AUTH), "cluster.tls_cert", files.all),
        )

    def told(self, doors: Iterable[str]) -> dict[str, object]:
        """Tell commands on this machine which doors speak TLS, and where their certificate is."""
        spoken = sorted(self.doors.intersection(doors))
        return (
            {"tls": {"doors": spoken, "cert": str(Path(str(self._settings.tls.cert)).absolute())}}
            if spoken
            else {}
        )

    def facts(self, doors: Iterable[str]) -> dict[str, object]:
        """Return the status' facts: the doors that speak TLS, and those shut because of it."""
        spoken = sorted(self.doors.intersection(doors))
        return {"doors": spoken, "shut": {"fyrehose/udp": NO_DATAGRAMS} if "fyrehose" in spoken else {}}

    def tick(self, now: float) -> None:
        """Look for renewed certificates."""
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self.renew()

    def renew(self) -> None:
        """Look for renewed certificates now."""
        for each in self._kept:
            each.renew()

    def _dialling(self) -> RenewedContext:
        if self._client is None:
            tls = self._settings.tls
            files = TlsFiles(tls.ca, tls.cert, tls.key)
            self._client = self._keep(files.context, "tls.ca", files.all)
        return self._client

    def _make_server(self) -> ssl.SSLContext:
        tls = self._settings.tls
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca)
        context.load_cert_chain(str(tls.cert), tls.key, password=_no_password)
        context.minimum_version = OLDEST
        # A publisher that never reads would close with the tickets unread: that resets the connection, and loses what
        # is on its way.
        context.num_tickets = 0
        if tls.ca is not None:
            # A peer without a certificate is anonymous; rights decide what it may do.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _node_files(self) -> TlsFiles | None:
        settings, cluster, tls = self._settings, self._settings.cluster, self._settings.tls
        given = {"tls_cert": cluster.tls_cert, "tls_key": cluster.tls_key, "tls_ca": cluster.tls_ca}
        if any(given.values()):
            for name, value in given.items():
                if value is None:
                    expected = "a file: tls_cert, tls_key and tls_ca belong together"
                    raise _misconfigured(settings, f"cluster.{name}", expected)
            return TlsFiles(cluster.tls_ca, cluster.tls_cert, cluster.tls_key)
        if "parcel" not in self.doors:
            return None
        if tls.ca is None:
            expected = "a file: the nodes of a cluster show each other certificates that it has signed"
            raise _misconfigured(settings, "tls.ca", expected)
        return TlsFiles(tls.ca, tls.cert, tls.key)

    def _keep(
        self, make: Callable[[], ssl.SSLContext], key: str, files: tuple[Path, ...] | None = None
    ) -> RenewedContext:
        tls = self._settings.tls
        if files is None:
            files = tuple(each for each in (tls.cert, tls.key, tls.ca) if each is not None)
        try:
            kept = RenewedContext(make, files)
        except (OSError, ValueError, UsageError) as error:
            detail = str(error) if isinstance(error, UsageError) else told(error)
            expected = f"a certificate, its key and an authority that can be read ({detail})"
            raise _misconfigured(self._settings, key, expected) from None
        self._kept.append(kept)
        return kept


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a peer's verified certificate, as the ssl module gives it: its subject's name first.

    >>> certificate_names({"subject": ((("commonName", "gateway-7"),),), "subjectAltName": (("DNS", "g7.example"),)})
    ('gateway-7', 'g7.example')
    """
    if not certificate:
        return ()
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return tuple(dict.fromkeys([*subject, *others]))


def _node_context(files: TlsFiles, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=files.ca)
    context.load_cert_chain(str(files.cert), files.cert_key, password=_no_password)
    # Both ends show a certificate: no node is an anonymous client.
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _no_password() -> str:
    """Refuse to ask at the terminal: a hub starts by itself."""
    raise UsageError("the key is protected by a password: give one without")


def _misconfigured(settings: Settings, key: str, expected: str) -> ConfigError:
    return ConfigError(key, settings.as_dict()[key], source=settings.source(key), expected=expected)
