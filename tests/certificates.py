"""Certificates for tests: an authority, and what it signs, made when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = ("localhost", "127.0.0.1", "::1")
"""The names of this machine, for a hub's certificate."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, in two files."""

    cert: Path
    key: Path

    def settings(self, ca: Path | None = None) -> list[str]:
        """Return the settings that turn TLS on with it; with ``ca``, clients may show certificates."""
        sets = [f"tls.cert={self.cert}", f"tls.key={self.key}"]
        return sets if ca is None else [*sets, f"tls.ca={ca}"]


class Authority:
    """An authority that signs certificates into a directory."""

    def __init__(self, directory: Path, name: str = "tests") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority of {name}")
        made = _builder(self._name, self._name, self._key, 1, -1).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.ca = directory / f"{name}-ca.pem"
        self.ca.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def sign(
        self, name: str, also: Sequence[str] = HERE, *, days: int = 1, replace: Certificate | None = None
    ) -> Certificate:
        """Make a certificate of ``name`` that is valid for so many ``days`` from yesterday on; -1 is expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_san(each) for each in (name, *also)]
        made = _builder(_name(name), self._name, key, days, -2).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        found = replace or Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        # As a renewal does it: under another name, then both moved into their places.
        for path, content in (
            (
                found.key,
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            ),
            (found.cert, _pem(made.sign(self._key, hashes.SHA256()))),
        ):
            making = path.with_suffix(".making")
            making.write_bytes(content)
            making.chmod(0o600)
            making.replace(path)
        return found


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, since: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=since))
        .not_valid_after(now + timedelta(days=days))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
