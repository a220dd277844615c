"""A certificate authority in a directory: enough to try TLS, or to run it where there is no other authority."""

from __future__ import annotations

import platform
import re
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from headrace.cli.operate.keys.secret_files import write_new
from headrace.errors import UsageError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise UsageError(
        "certificates are made with the library cryptography, which is not installed: pip install 'headrace[tls]'"
    ) from None

AUTHORITY_DAYS: Final = 3650
_EARLIER: Final = timedelta(hours=1)
"""How long before now a certificate begins: clocks differ."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_HERE: Final = ("localhost", "127.0.0.1", "::1")


class CertificateFiles(NamedTuple):
    """A certificate, and its key."""

    certificate: Path
    key: Path


class LocalAuthority:
    """The authority of a directory, made if there is none."""

    def __init__(self, directory: Path, days: int) -> None:
        self._directory = directory.absolute()
        self._days = days
        self.certificate = self._directory / "ca.pem"
        key_file = self._directory / "ca.key"
        if not self.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            name = _named(f"Headrace authority of {platform.node() or 'this machine'}"[:64])
            usage = x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            )
            made = (
                _builder(name, name, key.public_key(), AUTHORITY_DAYS)
                # It signs certificates, and no other authorities.
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(usage, critical=True)
                .sign(key, hashes.SHA256())
            )
            write_new(key_file, _private(key))
            write_new(self.certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
        try:
            self._own = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            loaded = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"the authority in {directory} cannot be read: {error}") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{key_file} is not a key made by this command")
        self._key = loaded

    def hub(self, hosts: list[str]) -> CertificateFiles:
        """Make the hub's certificate; one that is there stays, unless it is for other ``hosts`` now."""
        files = self._files("hub")
        if files.certificate.exists():
            if not hosts:
                return files
            files.certificate.unlink()
            files.key.unlink(missing_ok=True)
        names = list(dict.fromkeys([*hosts, platform.node(), *_HERE]))
        return self._sign(files, names[0] or "localhost", names, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, name: str) -> CertificateFiles:
        """Make a client's certificate."""
        if not _NAME.fullmatch(name) or name in ("hub", "ca"):
            raise UsageError(
                f"{name!r} is not a client's name: expected letters, digits, and . - _, not hub or ca"
            )
        return self._sign(self._files(name), name, [name], ExtendedKeyUsageOID.CLIENT_AUTH)

    def _files(self, name: str) -> CertificateFiles:
        return CertificateFiles(self._directory / f"{name}.pem", self._directory / f"{name}.key")

    def _sign(
        self, files: CertificateFiles, name: str, names: list[str], purpose: x509.ObjectIdentifier
    ) -> CertificateFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        # A hub that dials others, a frontend or a node, shows its certificate as a client, too.
        purposes = [purpose, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            _builder(_named(name), self._own.subject, key.public_key(), self._days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(list(dict.fromkeys(purposes))), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_general(each) for each in names if each]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        write_new(files.key, _private(key))
        write_new(files.certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
        return files


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise UsageError(f"{name!r} is not a host name") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
