"""The facts of ``/api/status`` and of the link's ``status``: a small answer, however much the hub stores."""

from __future__ import annotations

from heapq import nlargest, nsmallest
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from headrace import __version__
from headrace.errors import WireError
from headrace.hub.access.accounts import Account, Accounts
from headrace.hub.consumers.cursors import lag_facts
from headrace.hub.services.objects import Service, Services
from headrace.wire.link.message import parse, serialize

if TYPE_CHECKING:
    from headrace.net.server.process import Server

CONSUMERS_SHOWN: Final = 64
"""Most durable consumers that are named, those furthest behind first."""

ACCOUNTS_SHOWN: Final = 16
"""Most clients that are named with what they use."""

MEASURED: Final = ("second", "minute", "hour")
"""The ``measure/…`` services that are shown."""

MEASURED_BYTES: Final = 16 << 10
"""Largest such service that is shown; the job itself publishes a tenth of that."""


def facts_of(server: Server) -> dict[str, object]:
    """Gather all facts as they are now."""
    hub, log, parts, settings = server.hub, server.hub.log, server.parts, server.settings
    furthest_behind = nsmallest(CONSUMERS_SHOWN, parts.consumers, key=lambda consumer: consumer.floor)
    room = server.maintenance.room
    return {
        # First, so that none can replace a fact of the hub's own.
        **server.reports.facts(monotonic()),
        "version": __version__,
        "log": str(log.uuid),
        "first": log.first,
        "first_here": log.first_here,
        "archive": None if server.past is None else server.past.facts(),
        "head": log.head,
        "tail": log.tail,
        "node": {"name": settings.node.name, "id": hub.node},
        "mode": server.mode,
        "upstream": server.upstream,
        "cluster": server.cluster,
        "problems": server.problems,
        "doors": server.doors,
        "insecure": server.exposed,
        "tls": server.entrance.tls.facts(server.doors),
        "counters": hub.counters.as_dict(),
        "uptime": round(time() - server.started, 3),
        "fsync": log.fsync,
        "disk": {
            "bytes": log.size,
            "segments": len(log.segments),
            "last_time": log.last_time,
            "free": room.free,
            "size": room.size,
        },
        "holds": {
            **hub.state.holds,
            **{f"consumer/{consumer.name}": consumer.floor + 1 for consumer in furthest_behind},
        },
        "consumers": {
            consumer.name: {
                "floor": consumer.floor,
                **lag_facts(parts.consumers.lag(consumer, log.head)),
                "dead": consumer.dead,
                "lost": consumer.lost,
            }
            for consumer in furthest_behind
        },
        "lost": parts.losses.facts(),
        "subscribers": server.subscribers,
        "matching": {
            "engine": settings.matching.engine,
            "subscriptions": len(parts.subscriptions),
            "matchers": list(parts.matchers.ring.matchers),
        },
        "connections": server.connections,
        "loop": server.watch.facts(),
        "memory": {"bytes": server.memory.used, "most_bytes": server.memory.most},
        "unfinished": {"bytes": server.unfinished.total, "waiting": server.unfinished.waiting},
        "accounts": accounts_shown(server.accounts),
        "state": {"bytes": parts.services.total_bytes, "most_bytes": parts.services.policy.most_bytes},
        "measure": measured(parts.services),
    }


def accounts_shown(accounts: Accounts) -> dict[str, object]:
    """Return the clients that were refused or made to wait most, then those that use most."""

    def burden(account: Account) -> tuple[int, int, int]:
        return (
            account.refused + account.paused,
            account.state_bytes,
            account.received_bytes + account.sent_bytes,
        )

    return {account.name: account.facts() for account in nlargest(ACCOUNTS_SHOWN, accounts, key=burden)}


def measured(services: Services) -> dict[str, object]:
    """Return the services of the pipeline's job ``measure``, by the length of its windows.

    Any publisher may put something else there, so values that are too long or cannot be encoded are left out.
    """
    found = {span: services.get(f"measure/{span}") for span in MEASURED}
    return {
        span: service.value
        for span, service in found.items()
        if service is not None and not isinstance(service.value, bytes) and _can_be_shown(service)
    }


def _can_be_shown(service: Service) -> bool:
    if service.weight > MEASURED_BYTES:
        return False
    try:
        parse(serialize({"status": {"measure": service.value}}))
    except (WireError, OverflowError):
        return False
    return True
