"""A client is who it says if it has the key, the time is right, and nobody has used the token before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.config import Secret
from headrace.hub.access import used_tokens as module
from headrace.hub.access.authentication import (
    ADVICE,
    WINDOW_SECONDS,
    Authentication,
    Denied,
    Verdict,
)
from headrace.hub.access.login_attempts import FREE
from headrace.hub.access.used_tokens import UsedToken, UsedTokens
from headrace.wire.sdk.auth import Auth, Digest, is_signed, sign

CLIENT = bytes(range(12))
NOW = 1_700_000_000.0


def authentication(*, required: bool = True, allow_sha1: bool = False) -> Authentication:
    return Authentication({CLIENT.hex(): Secret("key")}, required=required, allow_sha1=allow_sha1)


def judging(one: Authentication) -> Callable[[Auth, float], Denied | None]:
    return lambda auth, now: one.judge(auth, now).denied


def proof(at: float = NOW, *, key: bytes = b"key", client: bytes = CLIENT, digest: Digest = "sha256") -> Auth:
    timestamp = f"{at:.3f}"
    return Auth(client, timestamp, sign(key, client, timestamp, digest))


def test_a_good_one_is_good_once() -> None:
    judge = judging(authentication())
    assert judge(proof(), NOW) is None
    assert judge(proof(), NOW) is Denied.REPEATED
    upper = Auth(CLIENT, proof().timestamp, proof().token.upper())
    assert judge(upper, NOW) is Denied.REPEATED
    assert judge(proof(NOW + 0.001), NOW) is None


@pytest.mark.parametrize("off", [WINDOW_SECONDS + 0.01, -WINDOW_SECONDS - 0.01])
def test_out_of_time(off: float) -> None:
    assert judging(authentication())(proof(NOW + off), NOW) is Denied.STALE


@pytest.mark.parametrize("off", [WINDOW_SECONDS, -WINDOW_SECONDS])
def test_just_in_time(off: float) -> None:
    assert judging(authentication())(proof(NOW + off), NOW) is None


def test_a_used_token_is_remembered_for_as_long_as_it_is_good() -> None:
    judge = judging(authentication())
    early = proof(NOW + WINDOW_SECONDS)
    assert judge(early, NOW) is None
    assert judge(early, NOW + 2 * WINDOW_SECONDS) is Denied.REPEATED
    assert judge(early, NOW + 2 * WINDOW_SECONDS + 1) is Denied.STALE


def test_wrong_ones() -> None:
    judge = judging(authentication())
    assert judge(proof(key=b"other"), NOW) is Denied.WRONG
    assert judge(proof(client=bytes(12)), NOW) is Denied.UNKNOWN
    assert judge(proof(client=bytes(12), key=b"unknown"), NOW) is Denied.UNKNOWN
    assert judge(proof(), NOW) is None, "a wrong one uses nothing up"


def test_there_is_advice_for_each_of_them() -> None:
    assert set(ADVICE) == set(Denied)


def test_sha1_only_where_it_is_allowed() -> None:
    old = proof(digest="sha1")
    assert judging(authentication())(old, NOW) is Denied.WRONG
    assert judging(authentication(allow_sha1=True))(old, NOW) is None


def test_where_nothing_is_required_everybody_is_believed() -> None:
    anyone = authentication(required=False)
    assert anyone.judge(proof(0.0, key=b"other", client=bytes(12)), NOW) == Verdict()
    assert anyone.judge(proof(0.0, key=b"other", client=bytes(12)), NOW) == Verdict()


def test_where_it_helps_who_proves_itself_is_known_and_others_are_nobody() -> None:
    asking = Authentication({CLIENT.hex(): Secret("key")}, required=False, useful=True)
    assert asking.judge(proof(), NOW) == Verdict(CLIENT.hex())
    assert asking.judge(proof(), NOW) == Verdict(), "a token that was used proves nothing"
    assert asking.judge(proof(key=b"other"), NOW) == Verdict()


def test_memory_is_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USED", 2)
    judge = judging(authentication())
    assert judge(proof(NOW), NOW) is None
    assert judge(proof(NOW + 1), NOW) is None
    assert judge(proof(NOW + 2), NOW) is Denied.TOO_MANY
    later = NOW + WINDOW_SECONDS + 1.5
    assert judge(proof(later), later) is None


def test_who_uses_up_its_tokens_takes_none_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USED", 2)
    other = bytes(12)
    judge = judging(
        Authentication({CLIENT.hex(): Secret("key"), other.hex(): Secret("other")}, required=True)
    )
    for second in range(3):
        judge(proof(NOW + second), NOW)
    assert judge(proof(NOW + 3), NOW) is Denied.TOO_MANY
    assert judge(proof(client=other, key=b"other"), NOW) is None


def answer(challenge: str, *, key: bytes = b"key", at: float = NOW) -> Auth:
    timestamp = f"{at:.3f}"
    return Auth(CLIENT, timestamp, sign(key, CLIENT, timestamp, challenge=challenge), challenge=challenge)


class TestChallenges:
    def test_what_signs_it_is_good_whatever_the_clock_says(self) -> None:
        one = authentication()
        for at in (NOW, 0.0):
            assert one.judge(answer("log/7", at=at), NOW, challenge="log/7") == Verdict(CLIENT.hex())

    def test_nothing_else_is(self) -> None:
        one = authentication()
        for wrong in (answer("log/8"), answer(""), proof()):
            assert one.judge(wrong, NOW, challenge="log/7").denied is Denied.UNBOUND
        assert one.judge(answer("log/7", key=b"other"), NOW, challenge="log/7").denied is Denied.WRONG
        stolen = Auth(CLIENT, proof().timestamp, proof().token, challenge="log/7")
        assert one.judge(stolen, NOW, challenge="log/7").denied is Denied.WRONG

    def test_it_is_good_at_no_door_that_gives_none(self) -> None:
        assert authentication().judge(answer("log/7"), NOW).denied is Denied.UNBOUND
        bare = Auth(CLIENT, answer("log/7").timestamp, answer("log/7").token)
        assert authentication().judge(bare, NOW).denied is Denied.WRONG


class TestRestarts:
    def test_what_was_used_before_is_refused(self) -> None:
        kept: list[UsedToken] = []

        class Memory:
            remember = staticmethod(kept.append)

        clients = {CLIENT.hex(): Secret("key")}
        before = Authentication(clients, required=True, used=UsedTokens((), Memory()))
        assert before.judge(proof(), NOW).denied is None
        after = Authentication(clients, required=True, used=UsedTokens(kept, Memory()))
        assert after.judge(proof(), NOW).denied is Denied.REPEATED
        assert after.judge(proof(NOW + 1), NOW).denied is None
        assert len(kept) == 2

    def test_where_that_is_not_known_all_that_was_signed_before_is_refused(self) -> None:
        clients = {CLIENT.hex(): Secret("key")}
        after = Authentication(clients, required=True, signed_after=NOW)
        assert after.judge(proof(NOW), NOW).denied is Denied.EARLIER
        assert after.judge(proof(NOW + 1), NOW).denied is None


def test_unknown_and_wrong_take_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def counting(auth: Auth, key: bytes, *, allow_sha1: bool = False) -> bool:
        done.append(len(key))
        return is_signed(auth, key, allow_sha1=allow_sha1)

    monkeypatch.setattr("headrace.hub.access.authentication.is_signed", counting)
    for client in (CLIENT, bytes(12)):
        for challenge in (None, "log/7"):
            authentication().judge(proof(key=b"guess", client=client), NOW, challenge=challenge)
    assert len(done) == 4


class TestFailures:
    def fail(self, one: Authentication, address: str, now: float) -> Denied | None:
        return one.judge(proof(now, key=b"guess"), now, address=address).denied

    def test_guessing_is_slowed_and_says_the_same_of_clients_that_do_not_exist(self) -> None:
        told = []
        for client in (CLIENT, bytes(12)):
            one = authentication()
            guess = proof(key=b"guess", client=client)
            told.append([one.judge(guess, NOW, address="10.0.0.1").denied for _ in range(8)])
        assert told[0][-1] is told[1][-1] is Denied.PAUSED
        assert [each is Denied.PAUSED for each in told[0]] == [each is Denied.PAUSED for each in told[1]]

    def test_the_right_key_waits_like_all_others_and_is_not_used_up(self) -> None:
        one = authentication()
        while self.fail(one, "10.0.0.1", NOW) is not Denied.PAUSED:
            pass
        right = proof(NOW)
        assert one.judge(right, NOW, address="10.0.0.1").denied is Denied.PAUSED
        assert one.judge(right, NOW + 61, address="10.0.0.1").denied is None

    def test_elsewhere_the_client_is_let_in(self) -> None:
        one = authentication()
        while self.fail(one, "10.0.0.1", NOW) is not Denied.PAUSED:
            pass
        assert one.judge(proof(), NOW, address="10.0.0.2").denied is None

    def test_a_wrong_clock_or_a_repeat_is_no_guess(self) -> None:
        one = authentication()
        one.judge(proof(), NOW)
        for _ in range(30):
            assert one.judge(proof(), NOW).denied is Denied.REPEATED
            assert one.judge(proof(NOW - 400), NOW).denied is Denied.STALE


def test_guessing_is_slowed_where_proving_oneself_is_only_useful() -> None:
    one = Authentication({CLIENT.hex(): Secret("key")}, required=False, useful=True)
    for _ in range(FREE):
        assert one.judge(proof(key=b"guess"), NOW, address="192.0.2.1") == Verdict()
    # The right key is not looked at while the pause lasts, so that trying tells nothing.
    assert one.judge(proof(), NOW, address="192.0.2.1") == Verdict()
    assert one.judge(proof(), NOW, address="192.0.2.2") == Verdict(CLIENT.hex())
    for _ in range(30):
        one.judge(proof(client=bytes(12)), NOW, address="192.0.2.3")
    assert one.judge(proof(NOW + 1), NOW, address="192.0.2.3") == Verdict(CLIENT.hex())
