"""The auth JSON and its token."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LimitError, MalformedError
from headrace.message import MAX_SEQUENCE
from headrace.wire.sdk.auth import (
    Auth,
    client_id_text,
    is_signed,
    parse_auth,
    parse_client_id,
    serialize_auth,
    sign,
)

CLIENT = bytes.fromhex("5f3c0a10b1e24d7780c1a201")
KEY = b"mill stone"


def auth_json(**changes: object) -> bytes:
    members: dict[str, object] = {"client_id": CLIENT.hex(), "timestamp": "1700000000", "token": "00"}
    members |= changes
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


def test_auth() -> None:
    assert parse_auth(auth_json()) == Auth(CLIENT, "1700000000", "00")
    assert parse_auth(auth_json(after=1000)) == Auth(CLIENT, "1700000000", "00", 1000)
    assert parse_auth(auth_json(after=0)).after == 0
    assert parse_auth(auth_json(after=None)).after is None
    assert parse_auth(auth_json(client_id=CLIENT.hex().upper())).client_id == CLIENT
    assert parse_auth(auth_json(token="", version=[2])).token == ""


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (b"1700000000", "1700000000"),
        (b"1700000000.50", "1700000000.50"),
        (b"0.1", "0.1"),
        (b'"1700000000.50"', "1700000000.50"),
        (b'"0017"', "0017"),
        (b'"\\u0031"', "1"),
        (b"12345678901234567890.12345678901234567890", "12345678901234567890.12345678901234567890"),
    ],
)
def test_a_timestamp_keeps_its_text(timestamp: bytes, text: str) -> None:
    json = b'{"client_id": "%b", "timestamp": %b , "token": ""}' % (CLIENT.hex().encode(), timestamp)
    auth = parse_auth(json)
    assert auth.timestamp == text
    assert auth.seconds == float(text)
    assert parse_auth(serialize_auth(auth)) == auth


@pytest.mark.parametrize(
    "timestamp",
    [b"-1", b"1.7e9", b"1E3", b"true", b"null", b"[1]", b"{}", b'""', b'"-1"', b'"1.7e9"', b'" 1"', b'"1."', b'".5"',
     b'"1\\n"', b'"nan"', b'"inf"', '"\u0661"'.encode(), b'"\xff"', b"1" * 21, b'"' + b"1" * 5000 + b'"'],
)  # fmt: skip
def test_what_is_no_timestamp(timestamp: bytes) -> None:
    json = b'{"client_id": "%b", "timestamp": %b, "token": ""}' % (CLIENT.hex().encode(), timestamp)
    with pytest.raises(MalformedError) as caught:
        parse_auth(json)
    assert (caught.value.protocol, caught.value.field) == ("sdk", "timestamp")


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        auth_json(client_id=...),
        auth_json(timestamp=...),
        auth_json(token=...),
        auth_json(client_id=7),
        auth_json(client_id=""),
        auth_json(client_id=CLIENT.hex()[:-1]),
        auth_json(client_id=CLIENT.hex() + "0"),
        auth_json(client_id=CLIENT.hex()[:-1] + "g"),
        auth_json(client_id=CLIENT.hex(" ")[:24]),
        auth_json(client_id="\u0663" * 24),
        auth_json(token=7),
        auth_json(after=-1),
        auth_json(after=1.5),
        auth_json(after="1"),
        auth_json(after=True),
        auth_json(after=MAX_SEQUENCE + 1),
        auth_json(after=10**400),
        auth_json()[:-1],
        auth_json() + b"{}",
        auth_json()[:-1] + b', "deep": ' + b"[" * 9000,
    ],
)
def test_what_is_refused(wrong: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_auth(wrong)
    assert caught.value.protocol == "sdk"


@pytest.mark.parametrize(
    "wrong",
    [
        Auth(b"short", "1", ""),
        Auth(CLIENT, "soon", ""),
        Auth(CLIENT, "1", "\ud800"),
        Auth(CLIENT, "1", "", -1),
        Auth(CLIENT, "1", "", MAX_SEQUENCE + 1),
    ],
)
def test_what_is_not_written(wrong: Auth) -> None:
    with pytest.raises((MalformedError, LimitError)):
        serialize_auth(wrong)


def test_client_ids_have_one_text() -> None:
    assert parse_client_id(CLIENT.hex().upper()) == CLIENT
    assert client_id_text(CLIENT) == "5f3c0a10b1e24d7780c1a201"


# Tokens


@pytest.mark.parametrize("digest", ["sha256", "sha1"])
def test_a_token_is_an_hmac_over_id_and_timestamp(digest: str) -> None:
    signed = b"5f3c0a10b1e24d7780c1a201" + b"1700000000.50"
    expected = hmac.new(KEY, signed, getattr(hashlib, digest)).hexdigest()
    assert sign(KEY, CLIENT, "1700000000.50", digest) == expected  # type: ignore[arg-type]


def test_only_the_right_token_is_good() -> None:
    good = sign(KEY, CLIENT, "17")
    assert is_signed(Auth(CLIENT, "17", good), KEY)
    assert is_signed(Auth(CLIENT, "17", good.upper()), KEY)
    assert not is_signed(Auth(CLIENT, "17", good), b"another key")
    assert not is_signed(Auth(CLIENT, "17.0", good), KEY)
    assert not is_signed(Auth(bytes(12), "17", good), KEY)
    for wrong in ("", good[:-1], good + "0", "é" * 64, "\ud800"):
        assert not is_signed(Auth(CLIENT, "17", wrong), KEY)


def test_sha1_is_good_only_where_it_is_allowed() -> None:
    old = Auth(CLIENT, "17", sign(KEY, CLIENT, "17", "sha1"))
    assert not is_signed(old, KEY)
    assert is_signed(old, KEY, allow_sha1=True)
    assert is_signed(Auth(CLIENT, "17", sign(KEY, CLIENT, "17")), KEY, allow_sha1=True)
    assert not is_signed(Auth(CLIENT, "17", ""), KEY, allow_sha1=True)


AUTHS = st.builds(
    Auth,
    st.binary(min_size=12, max_size=12),
    st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,20})?", fullmatch=True),
    st.text(max_size=70),
    st.none() | st.integers(0, MAX_SEQUENCE),
)


@given(AUTHS)
def test_what_is_written_is_read_back(auth: Auth) -> None:
    assert parse_auth(serialize_auth(auth)) == auth


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_auth(text)
