"""A client is who it says if it has the key, the time is right, and nobody has used the token before."""

from __future__ import annotations

import pytest

from headrace.config import Secret
from headrace.hub.access import authentication as module
from headrace.hub.access.authentication import ADVICE, WINDOW_SECONDS, Authentication, Denied
from headrace.wire.sdk.auth import Auth, Digest, sign

CLIENT = bytes(range(12))
NOW = 1_700_000_000.0


def authentication(*, required: bool = True, allow_sha1: bool = False) -> Authentication:
    return Authentication({CLIENT.hex(): Secret("key")}, required=required, allow_sha1=allow_sha1)


def proof(at: float = NOW, *, key: bytes = b"key", client: bytes = CLIENT, digest: Digest = "sha256") -> Auth:
    timestamp = f"{at:.3f}"
    return Auth(client, timestamp, sign(key, client, timestamp, digest))


def test_a_good_one_is_good_once() -> None:
    judge = authentication().judge
    assert judge(proof(), NOW) is None
    assert judge(proof(), NOW) is Denied.REPEATED
    upper = Auth(CLIENT, proof().timestamp, proof().token.upper())
    assert judge(upper, NOW) is Denied.REPEATED
    assert judge(proof(NOW + 0.001), NOW) is None


@pytest.mark.parametrize("off", [WINDOW_SECONDS + 0.01, -WINDOW_SECONDS - 0.01])
def test_out_of_time(off: float) -> None:
    assert authentication().judge(proof(NOW + off), NOW) is Denied.STALE


@pytest.mark.parametrize("off", [WINDOW_SECONDS, -WINDOW_SECONDS])
def test_just_in_time(off: float) -> None:
    assert authentication().judge(proof(NOW + off), NOW) is None


def test_a_used_token_is_remembered_for_as_long_as_it_is_good() -> None:
    judge = authentication().judge
    early = proof(NOW + WINDOW_SECONDS)
    assert judge(early, NOW) is None
    assert judge(early, NOW + 2 * WINDOW_SECONDS) is Denied.REPEATED
    assert judge(early, NOW + 2 * WINDOW_SECONDS + 1) is Denied.STALE


def test_wrong_ones() -> None:
    judge = authentication().judge
    assert judge(proof(key=b"other"), NOW) is Denied.WRONG
    assert judge(proof(client=bytes(12)), NOW) is Denied.UNKNOWN
    assert judge(proof(client=bytes(12), key=b"unknown"), NOW) is Denied.UNKNOWN
    assert judge(proof(), NOW) is None, "a wrong one uses nothing up"


def test_there_is_advice_for_each_of_them() -> None:
    assert set(ADVICE) == set(Denied)


def test_sha1_only_where_it_is_allowed() -> None:
    old = proof(digest="sha1")
    assert authentication().judge(old, NOW) is Denied.WRONG
    assert authentication(allow_sha1=True).judge(old, NOW) is None


def test_where_nothing_is_required_everybody_is_believed() -> None:
    anyone = authentication(required=False)
    assert anyone.judge(proof(0.0, key=b"other", client=bytes(12)), NOW) is None
    assert anyone.judge(proof(0.0, key=b"other", client=bytes(12)), NOW) is None


def test_memory_is_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USED", 2)
    judge = authentication().judge
    assert judge(proof(NOW), NOW) is None
    assert judge(proof(NOW + 1), NOW) is None
    assert judge(proof(NOW + 2), NOW) is Denied.TOO_MANY
    later = NOW + WINDOW_SECONDS + 1.5
    assert judge(proof(later), later) is None


def test_who_uses_up_its_tokens_takes_none_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USED", 2)
    other = bytes(12)
    judge = Authentication({CLIENT.hex(): Secret("key"), other.hex(): Secret("other")}, required=True).judge
    for second in range(3):
        judge(proof(NOW + second), NOW)
    assert judge(proof(NOW + 3), NOW) is Denied.TOO_MANY
    assert judge(proof(client=other, key=b"other"), NOW) is None
