"""What a matcher pushes for clients at connectors elsewhere: one push a message, and a mark behind each batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from headrace.hub.routing.subscriptions import Subscriptions
from headrace.matching import Matches
from headrace.message import Batch
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, MatcherPush, msg_id


def pushes(
    batch: Batch, matches: Matches, subscriptions: Subscriptions, *, without: bytes | None
) -> Iterator[MatcherPush]:
    """The pushes of a matched batch, in order; clients of the connector ``without`` are left out."""
    if not len(matches.clients):
        return
    get = subscriptions.get
    ids = matches.clients.tobytes()
    nodes = _nodes(batch)
    for row, (begin, end) in enumerate(pairwise((matches.offsets * CLIENT_ID_BYTES).tolist())):
        routes = []
        for at in range(begin, end, CLIENT_ID_BYTES):
            client = ids[at : at + CLIENT_ID_BYTES]
            kept = get(client)
            if kept is not None and kept.connector != without:
                routes.append(client + kept.connector)
        if routes:
            yield MatcherPush(msg_id(batch.first + row, nodes[row]), batch.run[row], b"".join(routes))


def mark(seq: int, node: int) -> MatcherPush:
    """A push to nobody: the matcher with this node id has pushed everything up to ``seq``."""
    return MatcherPush(msg_id(seq, node))


def _nodes(batch: Batch) -> list[int]:
    """The node that numbered each message."""
    if batch.columns is not None and "node" in batch.columns.schema.names:
        nodes: list[int] = batch.columns.column("node").to_pylist()
        return nodes
    return [batch.node] * len(batch)
