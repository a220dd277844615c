"""TLS on the dialling side: which certificates to trust, which to present, and what a failed handshake means.

Strategy: a peer is always verified, by the authority that signed its certificate and by its host's name, or by the one
certificate that is expected (a *pin*, for hubs of the same machine). There is no way to switch that off. Files are read
again when they have changed, so that a renewed certificate needs no restart (:class:`RenewedContext`, which the hub's
doors use as well).
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypedDict

from headrace.config import Address
from headrace.config.sources import CA_VARIABLE, CERT_KEY_VARIABLE, CERT_VARIABLE, PIN_VARIABLE
from headrace.errors import UsageError
from headrace.protocols import is_tls, with_tls

OLDEST: Final = ssl.TLSVersion.TLSv1_2
"""The oldest version of TLS that is spoken, on either side."""

SHUTDOWN_SECONDS: Final = 2.0
"""Seconds allowed for closing a TLS connection: a peer that hangs must not hold up a shutdown."""

_UNKNOWN_AUTHORITY: Final = (2, 18, 19, 20, 21, 24, 27)
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_OTHER_NAME: Final = (62, 64)
"""OpenSSL's codes of why a certificate is refused."""

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_OUR_CERTIFICATE: Final = (
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
)
_ENDED: Final = "the connection ended in the TLS handshake: the server there may not speak TLS"
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"

logger = logging.getLogger("headrace")


class TlsOptions(TypedDict, total=False):
    """The options of clients whose scheme says TLS. Each is a file in PEM format."""

    ca: str | os.PathLike[str] | None
    """The authority that signed the hub's certificate; by default ``HEADRACE_CA``, or those that the system trusts."""
    cert: str | os.PathLike[str] | None
    """This client's own certificate, for a hub that asks for one; by default ``HEADRACE_CERT``."""
    cert_key: str | os.PathLike[str] | None
    """The certificate's key, if it is not in the same file; by default ``HEADRACE_CERT_KEY``."""
    pin: str | os.PathLike[str] | None
    """The hub's own certificate, by default ``HEADRACE_PIN``: then neither authority nor name is checked."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificates that a client trusts and presents: files in PEM format."""

    ca: Path | None = None
    cert: Path | None = None
    cert_key: Path | None = field(default=None, repr=False)
    pin: Path | None = None

    @classmethod
    def of(cls, options: TlsOptions | Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> TlsFiles:
        """Take the files from a client's options, and any not given there from the environment."""

        def given(name: str, variable: str | None = None) -> Path | None:
            found: Any = options.get(name) or (environ.get(variable) if variable is not None else None)
            return Path(found).expanduser() if found else None

        cert = given("cert", CERT_VARIABLE)
        key = given("cert_key", CERT_KEY_VARIABLE)
        if key is not None and cert is None:
            raise UsageError("a certificate's key without the certificate: give cert too")
        pin = given("pin") if options.get("ca") else given("pin", PIN_VARIABLE)
        return cls(given("ca", CA_VARIABLE), cert, key, pin)

    def context(self) -> ssl.SSLContext:
        """Make the context to dial with; :class:`~headrace.errors.UsageError` if a file cannot be used."""
        try:
            if self.pin is not None:
                context = ssl.create_default_context(cadata=first_certificate(self.pin))
                context.check_hostname = False
            else:
                context = ssl.create_default_context(cafile=self.ca)
            # A named certificate is trusted as it is, even if another authority has signed it.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.pin or self.ca}: no certificates to trust ({told(error)})") from None
        context.minimum_version = OLDEST
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.cert_key, password=_no_password)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"{self.cert}: no certificate with its key (cert_key, if that is another file), in PEM without a"
                    f" password ({told(error)})"
                ) from None
        return context

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file."""
        return tuple(each for each in (self.ca, self.cert, self.cert_key, self.pin) if each is not None)


class RenewedContext:
    """A TLS context that is made again when one of its files has changed; if that fails, the last one stays."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Sequence[Path]) -> None:
        self._make = make
        self._files = tuple(files)
        self._stamps = self._look()
        self._context = make()

    def current(self) -> ssl.SSLContext:
        """Return the context for the next handshake."""
        self.renew()
        return self._context

    @property
    def latest(self) -> ssl.SSLContext:
        """The context as it was when the files were last looked at."""
        return self._context

    def renew(self) -> bool:
        """Look at the files; return whether there is a new context."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        try:
            self._context = self._make()
        except (UsageError, OSError, ValueError) as error:
            if self._stamps is not None:
                logger.warning("a renewed certificate cannot be used, the last one stays: %s", error)
            # A file may be half written: it is tried again when it changes, and reported once.
            self._stamps = stamps
            return False
        self._stamps = stamps
        return True

    def _look(self) -> tuple[tuple[int, int, int], ...] | None:
        try:
            found = [file.stat() for file in self._files]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)


class ClientTls(RenewedContext):
    """The TLS of one client."""

    def __init__(self, files: TlsFiles) -> None:
        super().__init__(files.context, files.all)
        self.files = files


def client_tls(scheme: str, options: dict[str, Any]) -> ClientTls | None:
    """Take the TLS options out of a client's options; ``None`` for a scheme without TLS."""
    names = [name for name in TlsOptions.__annotations__ if options.get(name) is not None]
    given: dict[str, Any] = {name: options.pop(name, None) for name in TlsOptions.__annotations__}
    if is_tls(scheme):
        return ClientTls(TlsFiles.of(given))
    if names:
        raise UsageError(
            f"{names[0]} is for TLS, which {scheme}:// does not use: connect to {with_tls(scheme)}://"
        )
    return None


def first_certificate(path: Path) -> bytes:
    """Return the first certificate of a PEM file in DER; if a chain follows, the first is the holder's own."""
    text = path.read_text(encoding="ascii", errors="strict")
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin < 0 or end < 0:
        raise ValueError("there is none")
    return ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])


def explain(error: ssl.SSLError | ConnectionError, host: str) -> str:
    """Say why a handshake with ``host`` failed, and what to do about it."""
    if not isinstance(error, ssl.SSLError):
        return _ENDED
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return (
                "its certificate is signed by an authority that is not known here: pass ca=FILE"
                " (--ca FILE, HEADRACE_CA), the authority's certificate"
            )
        if error.verify_code in _OTHER_NAME:
            return (
                f"its certificate is not for {host}: connect by a name that is in the certificate,"
                " or have one made with this name"
            )
        if error.verify_code == _EXPIRED:
            return "its certificate has expired: renew it at the hub"
        if error.verify_code == _NOT_YET:
            return "its certificate is not valid yet: check both clocks"
        return f"its certificate is refused ({error.verify_message})"
    reason = error.reason or ""
    if reason in _NO_TLS:
        return (
            "the server there does not speak TLS: use the scheme without TLS, or the hub's setting tls.cert"
        )
    if reason in _OUR_CERTIFICATE:
        return (
            "the hub does not accept our certificate: pass cert=FILE and cert_key=FILE (--cert, --cert-key),"
            " signed by the authority in its tls.ca"
        )
    if isinstance(error, ssl.SSLEOFError) or reason == "UNEXPECTED_EOF_WHILE_READING":
        return _ENDED
    return f"TLS failed ({told(error)})"


def told(error: Exception) -> str:
    """Describe an error of the ssl module or of a file, without the file's contents."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error)


def dial_arguments(tls: ClientTls | RenewedContext | None, address: Address) -> dict[str, Any]:
    """Return the arguments of ``create_connection`` for a connection to ``address``, with TLS or without."""
    if tls is None:
        return {}
    return {
        "ssl": tls.current(),
        "server_hostname": address.host,
        "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
    }


def _no_password() -> str:
    """Refuse to ask at the terminal: a client has none."""
    raise UsageError("the key is protected by a password: give one without")
