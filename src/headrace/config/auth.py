"""The sections `auth` and `access`: who the clients are, how each proves it, and what it may do."""

# ruff: noqa: RUF009 -- every default that is a call below gives a dataclasses.field().
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from types import MappingProxyType

from headrace.config.declaring import setting
from headrace.config.limits import BUDGETS
from headrace.config.value_types import (
    Secret,
    access_rule,
    any_network,
    budget,
    client_id,
    flag,
    hex_digits,
    list_of,
    or_off,
    origin,
    path,
    secret,
    table_of,
    text,
)

ACTIONS = ("publish", "read", "service", "consume", "stage", "admin")
"""Actions that a principal may be allowed."""

EVERY_ACTION = "all"
"""The word for every action in a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """Authentication."""

    required: bool = setting(flag(), False, "Whether clients must prove who they are.")
    insecure: bool = setting(
        flag(),
        False,
        "Whether doors may listen beyond this machine without authentication; `--insecure` sets it."
        " The hub says so in every status.",
    )
    clients: Mapping[str, Secret] = setting(
        table_of(secret("a client id of 24 hex digits and a key that is not empty", 1), client_id),
        lambda: MappingProxyType({}),
        'Keys by client id: `auth.clients.<id> = "<key>"`. Each source adds to the weaker ones.',
    )
    first_key: Path | None = setting(
        or_off(path()),
        None,
        "The file with the first client's id and key, `ID:KEY`; that client may do everything. A hub for which no"
        " client is configured makes the file if there is none, and shows the key once.",
    )
    preauth: bool = setting(
        flag(),
        False,
        "Whether `/sdk/sub/preauth` answers under `auth.required`; it gives a token to anyone who asks.",
    )
    origins: tuple[str, ...] = setting(
        list_of(origin()),
        (),
        "Origins of web pages that may use `listen.tube_ws` and `/v1/` at `listen.http`, besides the hub's own.",
    )
    sha1: bool = setting(flag(), False, "Whether HMAC-SHA1 tokens, which old clients make, are accepted.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A principal: how it proves who it is, and what it may do. `anonymous` is everyone who proves nothing."""

    client_id: str = setting(hex_digits(24), "", "Its client id at the `sdk`, `spp` and `tube` doors.")
    key: Secret = setting(secret("text; empty for none", 0), Secret(""), "The key of its client id.")
    key_file: Path | None = setting(
        or_off(path()), None, "The file with that key, which nobody but its owner may read."
    )
    certificate: str = setting(
        text(0, 255), "", "The subject name of its client certificate, at any door with TLS."
    )
    token_sha256: str = setting(hex_digits(64), "", "The SHA-256 of its bearer token, at the `http` door.")
    addresses: tuple[IPv4Network | IPv6Network, ...] = setting(
        list_of(any_network()),
        (),
        "Where it comes from, for doors whose protocol has no login: `fyrehose`, `publisher`, `dispatcher`, `router`"
        " and `status`.",
    )
    allow: tuple[str, ...] = setting(
        list_of(access_rule((*ACTIONS, EVERY_ACTION), ("admin", EVERY_ACTION))),
        (),
        "What it may do; without this, nothing.",
    )
    deny: tuple[str, ...] = setting(
        list_of(access_rule((*ACTIONS, EVERY_ACTION), ("admin", EVERY_ACTION))),
        (),
        "What it may not do, even if `allow` says so.",
    )
    limits: tuple[tuple[str, int], ...] = setting(
        list_of(budget(BUDGETS)), (), "Its own limits, in place of those of all clients (`limits`)."
    )
