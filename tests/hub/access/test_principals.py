"""Principals: who a peer is, and what it may do."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from headrace.config import ACTIONS, Secret, Settings
from headrace.errors import ConfigError
from headrace.hub.access.principal import EVERYTHING, Action, Forbidden, Principal
from headrace.hub.access.principals import Principals

CLIENT = "0123456789abcdef01234567"
OTHER = "f" * 24


def principals(required: bool = True, **values: Any) -> Principals:
    given = {key.replace("__", "."): value for key, value in values.items()}
    settings = Settings().override({"auth.required": required, **given}, source="here")
    return Principals(settings, {name: entry.key for name, entry in settings.access.items() if entry.key})


def test_the_actions_are_those_of_the_settings() -> None:
    assert tuple(Action) == ACTIONS


class TestRights:
    def test_deny_wins(self) -> None:
        fleet = Principal("fleet", ["read fleet/**", "publish fleet/7/*"], ["read fleet/secret/**"])
        assert fleet.may(Action.READ, "fleet/7/door")
        assert fleet.verdict(Action.READ, "fleet/secret/key") is Forbidden.DENIED
        assert fleet.verdict(Action.READ, "town") is Forbidden.NOT_ALLOWED
        assert fleet.may(Action.PUBLISH, "fleet/7/door")
        assert not fleet.may(Action.PUBLISH, "fleet/7/door/handle")
        assert not fleet.may(Action.READ, "")

    def test_without_allow_nothing_is_allowed(self) -> None:
        nobody = Principal("nobody", [], ["read x"])
        for action in Action:
            assert not nobody.may(action)
            assert not nobody.may(action, "x")
            assert not nobody.may_something(action)
        assert (nobody.reads_everything, nobody.publishes_everything) == (False, False)

    def test_who_may_do_everything_says_so(self) -> None:
        root = Principal("root", EVERYTHING)
        assert root.reads_everything
        assert root.publishes_everything
        assert all(root.may_everything(action) and root.may(action, "x") for action in Action)
        assert not Principal("most", EVERYTHING, ["read x"]).reads_everything

    def test_a_word_for_every_action_has_a_pattern(self) -> None:
        town = Principal("town", ["all town/**"], ["all town/hall"])
        assert [town.may(action, "town/bridge") for action in Action] == [True] * 6
        assert [town.may(action, "town/hall") for action in Action] == [False] * 6
        assert not town.may(Action.ADMIN)

    def test_a_column_of_topics(self) -> None:
        fleet = Principal("fleet", ["read fleet/**", "read town"], ["read fleet/secret"])
        topics = pa.array(["fleet/1", "town", "fleet/secret", "", "sea"])
        assert fleet.mask(Action.READ, topics).tolist() == [True, True, False, False, False]

    def test_whoever_is_unknown_may_do_nothing(self) -> None:
        stranger = principals().anonymous
        assert stranger.verdict(Action.READ, "x") is Forbidden.UNKNOWN

    def test_its_words_tell_no_secret(self) -> None:
        table = principals(access__gw__client_id=CLIENT, access__gw__key="hunter2", access__gw__allow="all")
        principal = table.of_client_id(CLIENT)
        assert principal is not None
        assert "hunter2" not in repr(principal) + repr(principal.proofs)


class TestTable:
    def test_clients_of_before_may_do_everything(self) -> None:
        table = principals(**{f"auth__clients__{CLIENT}": "key"})
        principal = table.of_client_id(CLIENT)
        assert principal is not None
        assert (principal.name, principal.owner, principal.may(Action.ADMIN)) == (CLIENT, CLIENT, True)
        assert table.keys == {CLIENT: Secret("key")}

    def test_each_proof_leads_to_its_principal(self) -> None:
        table = principals(
            access__gw__client_id=CLIENT,
            access__gw__key="k",
            access__gw__certificate="gw.example",
            access__gw__token_sha256=hashlib.sha256(b"bearer").hexdigest(),
            access__gw__addresses="10.0.7.0/24,fd00::/8",
            access__gw__allow="read **",
        )
        gw = table.named("gw")
        assert gw is not None
        assert gw.owner == CLIENT
        assert table.of_client_id(CLIENT) is gw
        assert table.of_certificate("gw.example") is gw
        assert table.of_token("bearer") is gw
        assert table.of_address("10.0.7.9") is table.of_address("fd00::1%eth0") is gw
        assert table.of_address("::ffff:10.0.7.9") is gw
        assert (table.of_client_id(OTHER), table.of_certificate("x"), table.of_token("x")) == (None,) * 3
        assert table.of_certificate("") is table.of_address("10.0.8.1") is table.of_address("nowhere") is None

    def test_a_certificate_counts_more_than_an_address_and_that_more_than_nothing(self) -> None:
        table = principals(
            access__net__addresses="10.0.0.0/8",
            access__one__addresses="10.1.2.3",
            access__gw__certificate="gw",
        )
        assert table.of_peer("10.1.2.3", "gw").name == "gw"
        assert table.of_peer("10.1.2.3", "other").name == "one"
        assert table.of_peer("10.1.2.4").name == "net"
        assert table.of_peer("11.1.2.4") is table.anonymous

    def test_who_is_anonymous_may_do_what_is_written(self) -> None:
        assert principals(required=False).anonymous.may(Action.ADMIN)
        some = principals(required=False, access__anonymous__allow="read town/**").anonymous
        assert some.may(Action.READ, "town/x")
        assert not some.may(Action.READ, "x")
        assert not principals(required=True, access__anonymous__allow="all").anonymous.known

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"access.a.client_id": CLIENT}, "access.a.client_id"),
            ({"access.a.key": "k"}, "access.a.key"),
            (
                {
                    "access.a.client_id": CLIENT,
                    "access.a.key": "k",
                    "access.b.client_id": CLIENT,
                    "access.b.key": "k",
                },
                "access.b.client_id",
            ),
            (
                {f"auth.clients.{CLIENT}": "k", "access.b.client_id": CLIENT, "access.b.key": "k"},
                "access.b.client_id",
            ),
            ({"access.a.certificate": "x", "access.b.certificate": "x"}, "access.b.certificate"),
            ({"access.a.token_sha256": "0" * 64, "access.b.token_sha256": "0" * 64}, "access.b.token_sha256"),
        ],
    )
    def test_what_is_not_clear_is_refused(self, values: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError) as caught:
            principals(**values)
        assert caught.value.key == named

    def test_who_is_anonymous_proves_nothing(self) -> None:
        with pytest.raises(ConfigError, match="only allow and deny"):
            principals(required=False, access__anonymous__addresses="10.0.0.0/8")


class TestChange:
    BEFORE = Principal("gw", ["read a", "read b"], ["read c"], proofs=["key"])

    @pytest.mark.parametrize(
        ("after", "kept"),
        [
            (Principal("gw", ["read b", "read a"], ["read c"], proofs=["key"]), True),
            (Principal("gw", ["read a", "read b", "publish c"], [], proofs=["key", "more"]), True),
            (Principal("gw", ["read a"], ["read c"], proofs=["key"]), False),
            (Principal("gw", ["read a", "read b"], ["read c", "read a"], proofs=["key"]), False),
            (Principal("gw", ["read a", "read b"], ["read c"], proofs=["another"]), False),
        ],
    )
    def test_what_was_allowed_and_proven_must_still_be(self, after: Principal, kept: bool) -> None:
        assert after.keeps(self.BEFORE) is kept
