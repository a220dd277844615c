"""A checkpoint says what its signer said, or it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.log.proof.copies import LOG, history, rows

from headrace.errors import ForgedError, UsageError
from headrace.log.proof import chain as module
from headrace.log.proof.chain import Chain
from headrace.log.proof.checkpoint import Checkpoint, new_key, private_key, public_key, sign

PRIVATE, PUBLIC = new_key()
KEY = private_key(PRIVATE, "key")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)


def chain(count: int = 20) -> Chain:
    return Chain(LOG).extended([rows(history(count))], count)


def test_it_comes_back_as_it_was_signed() -> None:
    trusted = public_key(PUBLIC, "pub")
    assert public_key(PRIVATE, "key") == trusted
    for given in (None, trusted):
        found = Checkpoint.parse(sign(chain(), KEY, 5), "file", given)
        assert (found.log, found.head, found.time, found.blocks) == (LOG, 20, 5, 2)
        assert (found.digests, found.open_digest) == (chain().digests, chain().open_digest)
        assert found.key == trusted


FORGERIES: list[dict[str, Any]] = [
    {"head": 21}, {"head": 19}, {"blocks": 1}, {"time": 6}, {"log": "11234567-89ab-cdef-0123-456789abcdef"},
    {"chain": "00" * 32}, {"open": "00" * 32}, {"chain": "00"}, {"signature": "00" * 64}, {"signature": ""},
    {"key": "00" * 32}, {"key": "00"}, {"digests": ""}, {"digests": "AAAA"}, {"head": -1},
]  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_changed_one_is_refused(forgery: dict[str, Any]) -> None:
    file = json.loads(sign(chain(), KEY, 5))
    assert file != {**file, **forgery}
    with pytest.raises(ForgedError):
        Checkpoint.parse(json.dumps({**file, **forgery}).encode(), "file")


def test_digests_that_are_not_the_chains_are_refused() -> None:
    file, other = json.loads(sign(chain(), KEY, 5)), json.loads(sign(chain(19), KEY, 5))
    assert file["digests"] == other["digests"]
    file["digests"] = "A" + file["digests"][1:] if file["digests"][0] != "A" else "B" + file["digests"][1:]
    with pytest.raises(ForgedError, match="chain does not match its digests"):
        Checkpoint.parse(json.dumps(file).encode(), "file")


def test_one_by_another_key_is_refused_where_a_key_is_trusted() -> None:
    other = private_key(new_key()[0], "other")
    with pytest.raises(ForgedError, match="signed by the key"):
        Checkpoint.parse(sign(chain(), other, 5), "file", public_key(PUBLIC, "pub"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"kind": 1}',
        b'"x"',
        sign(Chain(LOG), KEY, 5).replace(b"checkpoint", b"note"),
    ],
)
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        Checkpoint.parse(data, "file")


def test_what_is_no_key_is_refused() -> None:
    wrong = ec.generate_private_key(ec.SECP256R1())
    pem = wrong.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = wrong.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for read, data in (
        (private_key, pem),
        (private_key, b"x"),
        (private_key, PUBLIC),
        (public_key, public),
        (public_key, b""),
    ):
        with pytest.raises(UsageError):
            read(data, "key")


def test_a_log_without_its_past_has_nothing_to_sign() -> None:
    late = Chain.beginning_at(LOG, 12).extended([rows(history(20)[11:])], 20)
    with pytest.raises(UsageError, match="messages 1 to 16 are not known"):
        sign(late, KEY, 5)
