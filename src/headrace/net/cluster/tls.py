"""TLS between nodes: each shows a certificate that the others' authority has signed."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from headrace.config import Settings
from headrace.errors import ConfigError


class Contexts(NamedTuple):
    """For those who accept and those who dial; None without TLS."""

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None


def contexts(settings: Settings) -> Contexts:
    """What ``cluster.tls_cert``, ``cluster.tls_key`` and ``cluster.tls_ca`` say: all of them, or none."""
    cluster = settings.cluster
    given = {"tls_cert": cluster.tls_cert, "tls_key": cluster.tls_key, "tls_ca": cluster.tls_ca}
    if not any(given.values()):
        return Contexts()
    for name, value in given.items():
        if value is None:
            key = f"cluster.{name}"
            expected = "a file: tls_cert, tls_key and tls_ca belong together"
            raise ConfigError(key, None, source=settings.source(key), expected=expected)
    made = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        try:
            context = ssl.create_default_context(purpose, cafile=cluster.tls_ca)
            context.load_cert_chain(str(cluster.tls_cert), str(cluster.tls_key))
        except (OSError, ssl.SSLError) as error:
            key = "cluster.tls_cert"
            expected = f"a certificate, its key and an authority that can be read ({error})"
            source = settings.source(key)
            raise ConfigError(key, str(cluster.tls_cert), source=source, expected=expected) from None
        # Both ends show theirs: a node is nobody's anonymous client.
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        made.append(context)
    return Contexts(*made)
