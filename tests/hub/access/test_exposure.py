from __future__ import annotations

import pytest

from headrace.config import DOORS, load
from headrace.hub.access.exposure import is_loopback, missing_guard


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "::1%lo", "::ffff:127.0.0.1"])
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", "203.0.113.9"]
)
def test_other_machines_too(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_wants_authentication(door: str) -> None:
    assert "headrace keys new" in str(missing_guard(door, load(environ={})))
    assert missing_guard(door, load(environ={}, sets=["auth.required=true"])) is None


def test_rights_that_somebody_wrote_for_everyone_will_do() -> None:
    assert missing_guard("spp", load(environ={}, sets=["access.anonymous.allow=read news/**"])) is None
    assert missing_guard("spp", load(environ={}, sets=["access.other.allow=read news/**"])) is not None


def test_a_node_wants_the_key_of_its_cluster() -> None:
    node = ["cluster.peers=10.0.0.1,10.0.0.2", "auth.required=true"]
    assert "cluster.key" in str(missing_guard("parcel", load(environ={}, sets=node)))
    assert missing_guard("parcel", load(environ={}, sets=[*node, "cluster.key=secret"])) is None
    assert missing_guard("parcel", load(environ={}, sets=[*node, "cluster.tls_ca=ca.pem"])) is None
    # The key of the cluster guards no other door.
    assert missing_guard("spp", load(environ={}, sets=[node[0], "cluster.key=secret"])) is not None
