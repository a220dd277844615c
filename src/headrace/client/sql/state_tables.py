"""The tables of a log's state: services, consumers and subscriptions, from its files or over the link."""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

from headrace.client.link.client import LinkClient
from headrace.errors import UsageError
from headrace.hub.consumers.cursors import lag_facts
from headrace.hub.state_parts import StateParts
from headrace.log import Log

MAX_ASKED: Final = 10_000
"""Services whose objects are asked for over the link, one by one."""

_SERVICES: Final = pa.schema(
    [("service", pa.string()), ("kind", pa.string()), ("seq", pa.int64()), ("value", pa.binary())]
)
_CONSUMERS: Final = pa.schema(
    [
        ("consumer", pa.string()),
        ("floor", pa.int64()),
        ("behind", pa.int64()),
        ("behind_exact", pa.bool_()),
        ("dead", pa.int64()),
        ("lost", pa.int64()),
    ]
)
_SUBSCRIPTIONS: Final = pa.schema([("client", pa.string()), ("name", pa.string()), ("fields", pa.string())])


def state_of_files(log: Log) -> dict[str, pa.Table]:
    """Restore the state from a log's files, as a hub that starts does."""
    parts = StateParts()
    parts.state().restore(log)
    services = [
        {"service": each.id, "kind": each.kind.value, "seq": each.seq, "value": each.snapshot}
        for each in parts.services
    ]
    consumers = [
        {
            "consumer": each.name,
            "floor": each.floor,
            **lag_facts(parts.consumers.lag(each, log.head)),
            "dead": each.dead,
            "lost": each.lost,
        }
        for each in parts.consumers
    ]
    subscriptions = [
        {
            "client": client.hex(),
            "name": part.name,
            "fields": msgspec.json.encode(
                {name: msgspec.Raw(field) for name, field in part.fields.items()}
            ).decode(),
        }
        for client, each in parts.subscriptions
        for part in each.parts(client).values()
    ]
    return {
        "services": pa.Table.from_pylist(services, _SERVICES),
        "consumers": pa.Table.from_pylist(consumers, _CONSUMERS),
        "subscriptions": pa.Table.from_pylist(subscriptions, _SUBSCRIPTIONS),
    }


async def services_of_link(link: LinkClient) -> pa.Table:
    """Ask a hub for its services."""
    found = await link.services()
    if len(found) > MAX_ASKED:
        raise UsageError(f"{len(found)} services are too many to ask for one by one: use data (--data)")
    rows = [
        {
            "service": each["id"],
            "kind": each["kind"],
            "seq": each["seq"],
            "value": await link.service(each["id"]),
        }
        for each in found
    ]
    return pa.Table.from_pylist(rows, _SERVICES)


async def consumers_of_link(link: LinkClient) -> pa.Table:
    """Ask a hub for its consumers."""
    rows = [{name: each[name] for name in _CONSUMERS.names} for each in await link.consumers()]
    return pa.Table.from_pylist(rows, _CONSUMERS)
