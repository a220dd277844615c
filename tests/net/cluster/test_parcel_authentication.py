"""Tags after parcels: what passes between two ends that share a key, and everything that does not."""

from __future__ import annotations

import pytest

from headrace.errors import MalformedError
from headrace.net.cluster.parcel_authentication import ParcelTags
from headrace.wire.parcel.body import DscReq, DscRes, Fault, Mode, NodeInfo, Ping, Prepare, ProtoError
from headrace.wire.parcel.stream import Parcel, ParcelDecoder, refusal

INFO = NodeInfo(7, Mode.DSC, "a", "127.0.0.1")


def parse(data: bytes) -> Parcel:
    [parcel] = ParcelDecoder().feed(data)
    return parcel


def ends(key: str = "secret", other: str = "secret", cluster: str = "mill") -> tuple[ParcelTags, ParcelTags]:
    """Two ends that have introduced themselves."""
    dialler, listener = ParcelTags("mill", key, dialled=True), ParcelTags(cluster, other, dialled=False)
    listener.open(parse(dialler.greet(7, DscReq(INFO))), hello=True)
    dialler.open(parse(listener.greet(8, DscRes((INFO,)))), hello=True)
    return dialler, listener


@pytest.mark.parametrize("key", ["", "secret"])
def test_both_ways(key: str) -> None:
    dialler, listener = ends(key, key)
    assert dialler.greeted
    assert listener.greeted
    prepare = Prepare(1, 1, 1, 0)
    for sender, receiver in ((dialler, listener), (listener, dialler), (dialler, listener)):
        sealed = b"".join(sender.seal(sender.head(7, prepare, b"batch"), b"batch"))
        assert receiver.open(parse(sealed)) == Parcel(7, prepare, b"batch")
        sealed = b"".join(sender.seal(sender.head(7, Ping(), b""), b""))
        assert receiver.open(parse(sealed)) == Parcel(7, Ping())


def test_another_key_or_cluster() -> None:
    with pytest.raises(MalformedError, match="another key"):
        ends(other="other")
    with pytest.raises(MalformedError, match="another cluster"):
        ends(cluster="other")
    with pytest.raises(MalformedError, match="another cluster"):
        ends(key="", other="", cluster="other")


@pytest.mark.parametrize(
    ("key", "other", "cluster", "setting"),
    [
        ("secret", "other", "mill", "cluster.key"),
        ("", "other", "mill", "cluster.key"),
        ("secret", "", "mill", "cluster.key"),
        ("", "", "other", "cluster.name"),
    ],
)
def test_who_is_refused_is_told_which_setting_is_wrong(
    key: str, other: str, cluster: str, setting: str
) -> None:
    with pytest.raises(MalformedError) as refused:
        ends(key, other, cluster)
    body = refusal(1, Fault.BAD_REQ, str(refused.value)).body
    assert isinstance(body, ProtoError)
    assert setting in body.reason


def test_changed_repeated_left_out_and_foreign() -> None:
    dialler, listener = ends()
    first = b"".join(dialler.seal(dialler.head(7, Prepare(1, 1, 1, 0), b"batch"), b"batch"))
    second = b"".join(dialler.seal(dialler.head(7, Prepare(1, 2, 2, 0), b"batch"), b"batch"))
    with pytest.raises(MalformedError):
        listener.open(parse(second))  # the first was left out
    dialler, listener = ends()
    with pytest.raises(MalformedError):
        listener.open(parse(first))  # of another connection
    dialler, listener = ends()
    sealed = b"".join(dialler.seal(dialler.head(7, Ping(), b""), b""))
    listener.open(parse(sealed))
    with pytest.raises(MalformedError):
        listener.open(parse(sealed))  # once more
    dialler, listener = ends()
    with pytest.raises(MalformedError):
        dialler.open(parse(b"".join(dialler.seal(dialler.head(7, Ping(), b""), b""))))  # sent back
    sealed = b"".join(dialler.seal(dialler.head(7, Prepare(1, 1, 1, 0), b"batch"), b"batch"))
    with pytest.raises(MalformedError):
        listener.open(parse(sealed.replace(b"batch", b"botch")))


def test_who_says_no_hello() -> None:
    bare = Parcel(7, DscReq(INFO))
    open_house = ParcelTags("mill", "", dialled=False)
    assert open_house.open(bare, hello=True) == bare
    assert not open_house.greeted
    with pytest.raises(MalformedError, match=r"cluster\.key"):
        ParcelTags("mill", "secret", dialled=False).open(bare, hello=True)
    with pytest.raises(MalformedError):
        ParcelTags("mill", "", dialled=False).open(Parcel(7, DscReq(INFO), b"short"), hello=True)
