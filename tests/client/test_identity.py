"""Who a client is, and how it says so."""

from __future__ import annotations

import time

import pytest

from headrace.client.identity import Identity
from headrace.errors import UsageError
from headrace.wire.sdk.auth import is_signed, parse_auth, serialize_auth

CLIENT, KEY = "00112233445566778899AABB", "schlüssel"


def test_each_claim_is_signed_and_new_though_the_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_007)
    identity = Identity(CLIENT, KEY)
    claims = [identity.claim(), identity.claim(5), identity.claim()]
    assert [claim.timestamp for claim in claims] == [f"1700000000.00000000{last}" for last in (7, 8, 9)]
    assert [claim.after for claim in claims] == [None, 5, None]
    assert all(is_signed(claim, KEY.encode()) for claim in claims)
    assert [parse_auth(serialize_auth(claim)) for claim in claims] == claims
    monkeypatch.setattr(time, "time_ns", lambda: 1_600_000_000_000_000_000)
    assert identity.claim().timestamp == "1700000000.000000010"


def test_an_id_of_its_own_making() -> None:
    first, second = Identity(None, None), Identity(None, None)
    assert first.made_up
    assert first.client_id != second.client_id
    assert (len(first.client_id), first.claim().token) == (12, "")
    assert not Identity(CLIENT, None).made_up


@pytest.mark.parametrize(
    ("client_id", "key", "complaint"),
    [
        (None, KEY, "client_id and key belong together; the key of a certificate is cert_key"),
        ("0011", None, "client_id '0011': expected 24 hex digits"),
        (CLIENT, "\udcff", "the key is not text"),
    ],
)
def test_what_cannot_be(client_id: str | None, key: str | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Identity(client_id, key)
