"""What one peer may have, over all its connections."""

from __future__ import annotations

import pytest

from headrace.config import Settings, load
from headrace.hub.access.accounts import MOST_IDLE, Accounts, Rate, Resource
from headrace.hub.access.principal import Principal

GATEWAY = Principal("gateway")
NOBODY = Principal("anonymous", anonymous=True)


def settings(*sets: str) -> Settings:
    return load(environ={}, sets=sets)


def test_a_principal_has_one_account_and_an_unknown_peer_that_of_its_address() -> None:
    accounts = Accounts(settings())
    assert accounts.of(GATEWAY, "10.0.0.1") is accounts.of(GATEWAY, "10.0.0.2")
    assert accounts.of(NOBODY, "10.0.0.1") is accounts.of(NOBODY, "10.0.0.1")
    assert accounts.of(NOBODY, "10.0.0.1") is not accounts.of(NOBODY, "10.0.0.2")


def test_more_than_the_budget_is_refused_and_what_is_given_back_may_be_taken_again() -> None:
    account = Accounts(settings("limits.connections_per_client=2")).of(GATEWAY, "")
    assert [account.take(Resource.CONNECTIONS) for _ in range(2)] == [None, None]
    refusal = account.take(Resource.CONNECTIONS)
    assert refusal == "gateway has 2 connections of 2 (limits.connections_per_client)"
    account.give_back(Resource.CONNECTIONS)
    assert account.take(Resource.CONNECTIONS) is None
    assert account.lacks(Resource.CONNECTIONS) is not None
    assert account.facts()["refused"] == 2


def test_a_principal_may_have_a_budget_of_its_own() -> None:
    own = settings(
        "access.gateway.limits=connections 1,state_bytes 1MiB", "access.gateway.addresses=10.0.0.0/8"
    )
    accounts = Accounts(own)
    budget = accounts.of(GATEWAY, "").budget
    assert (budget.connections, budget.state_bytes) == (1, 1 << 20)
    assert budget.subscriptions == own.limits.subscriptions_per_client
    assert accounts.of(NOBODY, "10.0.0.1").budget.connections == own.limits.connections_per_client
    accounts.reload(settings("access.gateway.limits=connections 7", "access.gateway.addresses=10.0.0.0/8"))
    assert accounts.of(GATEWAY, "").budget.connections == 7


def test_a_rate_allows_a_seconds_worth_at_once_and_then_makes_wait() -> None:
    rate = Rate(100)
    rate.add(100, 5.0)
    assert rate.wait(5.0) == 0
    rate.add(50, 5.0)
    assert rate.wait(5.0) == 0.5
    assert rate.wait(5.25) == 0.25
    assert rate.wait(6.0) == 0
    rate.add(100, 100.0)
    assert rate.wait(100.0) == 0


def test_messages_and_bytes_have_rates_and_without_any_nobody_waits() -> None:
    account = Accounts(settings("limits.messages_per_second=10", "limits.bytes_per_second=1000")).of(
        GATEWAY, ""
    )
    account.receive(100, 20, 0.0)
    assert account.wait(0.0) == 1.0
    account.receive(4000, 0, 0.0)
    assert account.wait(0.0) == pytest.approx(3.1)
    free = Accounts(settings()).of(GATEWAY, "")
    free.receive(1 << 40, 1 << 40, 0.0)
    free.send(1 << 40, 0.0)
    assert (free.rated, free.wait(0.0), free.wait_to_send(0.0)) == (False, 0.0, 0.0)


def test_accounts_of_peers_that_have_nothing_are_forgotten() -> None:
    accounts = Accounts(settings())
    kept = accounts.of(NOBODY, "kept")
    kept.state_bytes = 5
    for number in range(3 * MOST_IDLE):
        accounts.of(NOBODY, f"address {number}")
    assert len(accounts) <= MOST_IDLE
    assert accounts.of(NOBODY, "kept") is kept


def test_a_reload_leaves_those_whom_nobody_knows_their_own_budget() -> None:
    own = settings("access.anonymous.limits=connections 1", "access.anonymous.allow=read **")
    accounts = Accounts(own)
    account = accounts.of(NOBODY, "10.0.0.1")
    accounts.reload(own)
    assert account.budget.connections == 1
