"""Proof between nodes that they know the cluster's key: a tag after each parcel, where the document leaves room.

After its DscReq a node sends a *hello*: a nonce and the cluster's name (hashed); after the DscRes the other one does
the same. Both nonces and the key make the connection's own key. From then on every parcel has a tag after its bulk:
HMAC-SHA256 over its place in the stream, its bytes and its bulk. So nothing can be made up, changed, left out, repeated
or brought from another connection. Without a key there are hellos and no tags: nodes of another cluster are still told
apart.

A peer that sends no hello speaks the document alone. It is answered, unless there is a key, and has no vote.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from typing import Final

from headrace.errors import MalformedError
from headrace.wire.parcel.body import Body
from headrace.wire.parcel.stream import Parcel, serialize_head

TAG_BYTES: Final = 32
NONCE_BYTES: Final = 16
NAME_BYTES: Final = 8
HELLO_BYTES: Final = NONCE_BYTES + NAME_BYTES


class ParcelTags:
    """The tags of one connection. ``dialled`` tells its ends apart."""

    def __init__(self, cluster: str, key: str, *, dialled: bool) -> None:
        self._key = key.encode()
        self._name = sha256(cluster.encode()).digest()[:NAME_BYTES]
        self._dialled = dialled
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._session: bytes | None = None
        self._sent = 0
        self._received = 0
        self.greeted = False
        """Whether the peer has said hello: it is a node of this cluster."""

    @property
    def tag(self) -> int:
        """Size of a tag."""
        return TAG_BYTES if self._key else 0

    @property
    def hello(self) -> int:
        """Size of the bulk after a DscReq or DscRes."""
        return HELLO_BYTES + self.tag

    def greet(self, node: int, body: Body) -> bytes:
        """Encode a DscReq or DscRes with its hello."""
        return self._sealed(node, body, self._nonce + self._name)

    def head(self, node: int, body: Body, bulk: bytes) -> bytes:
        """Encode a parcel without its bulk and tag: the same on every connection between nodes."""
        return serialize_head(node, body, len(bulk) + self.tag)

    def seal(self, head: bytes, bulk: bytes) -> list[bytes]:
        """Return a parcel as the pieces that go on the stream."""
        if not self._key:
            return [head, bulk]
        return [head, bulk, self._tag_of(self._dialled, head, bulk)]

    def open(self, parcel: Parcel, *, hello: bool = False) -> Parcel:
        """Check a received parcel's tag, and return it without that; a wrong or missing tag raises."""
        bulk = parcel.bulk
        if hello and not bulk and not self._key:
            return parcel
        if self._key:
            if len(bulk) < TAG_BYTES:
                raise MalformedError(
                    "parcel", "tag", bulk[:4], "the cluster's key is needed here (cluster.key)"
                )
            head = serialize_head(parcel.id, parcel.body, len(bulk))
            bulk, tag = bulk[:-TAG_BYTES], bulk[-TAG_BYTES:]
            if hello:
                self._meet(bulk)
            if not hmac.compare_digest(tag, self._tag_of(not self._dialled, head, bulk)):
                # All of the bytes would leave no room for the reason, which is not in them.
                raise MalformedError("parcel", "tag", tag[:4], "it was made with another key (cluster.key)")
        elif hello:
            self._meet(bulk)
        return Parcel(parcel.id, parcel.body, bulk)

    def _meet(self, hello: bytes) -> None:
        if len(hello) == HELLO_BYTES + TAG_BYTES and not self._key:
            raise MalformedError("parcel", "tag", hello[-4:], "there is no key here (cluster.key)")
        if len(hello) != HELLO_BYTES:
            raise MalformedError("parcel", "hello", hello[:4], f"must have {HELLO_BYTES} bytes")
        nonce, name = hello[:NONCE_BYTES], hello[NONCE_BYTES:]
        if name != self._name:
            raise MalformedError("parcel", "cluster", name, "it is of another cluster (cluster.name)")
        self.greeted = True
        # The DscReq comes before both nonces are known, so it is tagged with the cluster's key alone.
        if self._dialled:
            self._session = self._derived(self._nonce + nonce)
        else:
            self._peer_nonce = nonce

    def _sealed(self, node: int, body: Body, bulk: bytes) -> bytes:
        if not self._dialled and self._key:
            self._session = self._derived(self._peer_nonce + self._nonce)
        return b"".join(self.seal(self.head(node, body, bulk), bulk))

    def _derived(self, nonces: bytes) -> bytes:
        return hmac.digest(self._key, b"headrace cluster" + nonces + self._name, "sha256")

    def _tag_of(self, dialler: bool, head: bytes, bulk: bytes) -> bytes:
        ours = dialler == self._dialled
        place = self._sent if ours else self._received
        if ours:
            self._sent += 1
        else:
            self._received += 1
        # The very first parcel comes before the connection has its own key.
        first = dialler and place == 0
        key = self._key if first or self._session is None else self._session
        tag = hmac.new(key, (b"D" if dialler else b"L") + place.to_bytes(8), "sha256")
        tag.update(head)
        tag.update(bulk)
        return tag.digest()
