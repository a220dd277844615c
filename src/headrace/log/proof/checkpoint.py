"""A checkpoint: the head of a chain, signed with an Ed25519 key.

It says that somebody saw this history: a log's uuid, its last message, the chain over all full blocks, and the digest
of the open part. Whoever trusts the key can prove later that a copy extends it. The digests of the blocks come along
unsigned, since the chain vouches for them; they tell where a copy differs first.

The signature is over ``"headrace checkpoint 1"``, the uuid (16 bytes), the last message (u64), the number of full
blocks (u64) and the time in µs (i64), little-endian, then the chain and the open part's digest (32 bytes each).
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from headrace.errors import ForgedError, UsageError
from headrace.log.proof.chain import DIGEST_BYTES, Chain, blocks_in, chain_start, chained, end_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_TAG: Final = b"headrace checkpoint 1"
_FACTS: Final = struct.Struct("<16sQQq32s32s")
_KIND: Final = "headrace checkpoint"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A checkpoint as JSON; bytes are hex, the digests base64."""

    kind: str
    version: int
    log: str
    head: int
    blocks: int
    time: int
    chain: str
    open: str
    key: str
    signature: str
    digests: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed statement about a history, whose signature was checked against the key it names."""

    log: UUID
    head: int
    """The last message that it covers."""
    time: int
    """When it was signed, in µs since 1970."""
    digests: bytes
    """The digests of all full blocks."""
    open_digest: bytes
    """The digest of the messages after the full blocks."""
    key: bytes
    """The public key that signed it."""

    @property
    def blocks(self) -> int:
        """How many blocks are full."""
        return len(self.digests) // DIGEST_BYTES

    @classmethod
    def parse(cls, data: bytes, name: str, trusted: bytes | None = None) -> Checkpoint:
        """Parse a checkpoint and check its signature; with ``trusted``, only by that public key."""
        try:
            file = msgspec.json.decode(data, type=_File)
            if (file.kind, file.version) != (_KIND, 1):
                raise UsageError(f"{name} is {file.kind} {file.version}, not {_KIND} 1")
            uuid, digests = UUID(file.log), base64.b64decode(file.digests, validate=True)
            chain, open_digest, key, signature = map(
                bytes.fromhex, (file.chain, file.open, file.key, file.signature)
            )
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
            raise UsageError(f"{name} is not a checkpoint ({error})") from None
        if trusted is not None and key != trusted:
            raise ForgedError(name, f"it is signed by the key {key.hex()}, not by {trusted.hex()}")
        signed = _signed(uuid, file.head, file.blocks, file.time, chain, open_digest)
        if signed is None or not _is_signature(key, signature, signed):
            raise ForgedError(name, "its signature does not match its content")
        if file.blocks != blocks_in(file.head) or len(digests) != file.blocks * DIGEST_BYTES:
            raise ForgedError(name, "its digests do not match its number of blocks")
        if chained(chain_start(uuid), digests) != chain:
            raise ForgedError(name, "its chain does not match its digests")
        return cls(uuid, file.head, file.time, digests, open_digest, key)


def sign(chain: Chain, key: Ed25519PrivateKey, time: int) -> bytes:
    """Make a checkpoint file of a chain; ``time`` in µs."""
    value, open_digest = chain.value, chain.open_digest
    if value is None or open_digest is None:
        raise UsageError(
            f"the digests of messages 1 to {end_of(chain.base)} are not known here, so there is no chain to sign:"
            " ask a copy that has them"
        )
    signed = _signed(chain.uuid, chain.through, chain.blocks, time, value, open_digest)
    assert signed is not None  # noqa: S101 -- a chain's own values fit
    file = _File(
        kind=_KIND,
        version=1,
        log=str(chain.uuid),
        head=chain.through,
        blocks=chain.blocks,
        time=time,
        chain=value.hex(),
        open=open_digest.hex(),
        key=key.public_key().public_bytes_raw().hex(),
        signature=key.sign(signed).hex(),
        digests=base64.b64encode(chain.digests).decode(),
    )
    return msgspec.json.format(msgspec.json.encode(file)) + b"\n"


def new_key() -> tuple[bytes, bytes]:
    """Make a signing key: the private and the public half, as PEM."""
    ed25519, serialization = _cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(pem, form, plain), public


def private_key(pem: bytes, name: str) -> Ed25519PrivateKey:
    """Read a signing key."""
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} is not a private key without a password ({error})") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"{name} is not an Ed25519 key: make one with headrace keys signing")
    found: Ed25519PrivateKey = key
    return found


def public_key(pem: bytes, name: str) -> bytes:
    """Read the public half of a signing key, from its own file or from the private half's."""
    ed25519, serialization = _cryptography()
    try:
        if b"PRIVATE KEY" in pem:
            found: Ed25519PublicKey = private_key(pem, name).public_key()
        else:
            found = serialization.load_pem_public_key(pem)
    except ValueError as error:
        raise UsageError(f"{name} is not a public key ({error})") from None
    if not isinstance(found, ed25519.Ed25519PublicKey):
        raise UsageError(f"{name} is not an Ed25519 key")
    raw: bytes = found.public_bytes_raw()
    return raw


def _signed(log: UUID, head: int, blocks: int, time: int, chain: bytes, open_digest: bytes) -> bytes | None:
    """Return the bytes that a signature covers; ``None`` if a value does not fit."""
    if (len(chain), len(open_digest)) != (DIGEST_BYTES, DIGEST_BYTES):
        return None
    try:
        return _TAG + _FACTS.pack(log.bytes, head, blocks, time, chain, open_digest)
    except struct.error:
        return None


def _is_signature(key: bytes, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    ed25519, _ = _cryptography()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError(
            "checkpoints are signed with the library cryptography, which is not installed: pip install 'headrace[tls]'"
        ) from None
    return ed25519, serialization
