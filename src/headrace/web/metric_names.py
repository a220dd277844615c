"""The meaning of each metric, for ``/metrics`` and the documentation, which promises their names.

Every counter has a line here: tests search the code for names without one, and compare the documentation's table with
:func:`reference`.
"""

from __future__ import annotations

from typing import Final

LEVELS: Final = {
    "head": "Number of the last committed message.",
    "tail": "Number of the last appended message.",
    "first": "Number of the oldest message kept.",
    "log_bytes": "Bytes of the log on disk.",
    "log_segments": "Segments of the log, the open tail included.",
    "connections": "Open connections.",
    "ready": "1 when every door accepts.",
    "subscriptions": "Content subscriptions.",
    "subscriptions_here": "Subscriptions that are matched here.",
    "subscription_bytes": "Memory of their index.",
    "upstream_connected": "1 while the upstream hub answers (at a frontend).",
    "upstream_lag": "Messages that the upstream hub has and this one not yet (at a frontend).",
    "upstream_waiting_bytes": "Bytes on their way to the upstream hub (at a frontend).",
    "outbox_messages": "Messages that a frontend keeps until its upstream hub is back.",
    "outbox_bytes": "Their bytes, with those of messages set aside.",
    "outbox_most_bytes": "The most bytes that it keeps (upstream.store_bytes).",
}
"""Gauges by name."""

CONSUMER_LEVELS: Final = {
    "consumer_behind": "Messages that a durable consumer has not acknowledged, or at most so many.",
    "consumer_behind_exact": "1 if it is that number, 0 if it is at most so many: not all were looked at.",
}
"""Gauges of each durable consumer, by name."""

ALERT: Final = (
    "1 for each thing that is wrong now: its kind, what it is about, and whether messages are at risk."
)
"""The gauge ``headrace_alert``."""

COUNTS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "received": (("origin",), "Messages in, by protocol."),
    "delivered": (("door", "transport"), "Messages out."),
    "consumers_expired": ((), "Durable consumers that were removed because nobody used them."),
    "memory_shortages": ((), "Times the hub took more memory than limits.memory, and made publishers wait."),
    "slow_turns": ((), "Turns of the event loop over 100 ms; the hub's log names what took so long."),
    "rate_pauses": (("door",), "Times a client had to wait because it sent more a second than it may."),
    "refused": (("door", "reason"), "Requests and frames of peers that were refused."),
    "refused_access": (
        ("door", "action", "reason"),
        "Actions that a principal may not do, and peers that did not prove who they are.",
    ),
    "audit_dropped": ((), "Records that the audit log has no room or no disk for."),
    "refused_messages": (("origin", "reason"), "Messages that were refused."),
    "entries": ((), "Entries of the hub's own bookkeeping that were logged; they take no sequence number."),
    "from_archive": ((), "Messages read from the archive, since the log no longer has them."),
    "followed": ((), "Messages taken from the hub that numbers them."),
    # Repairs and losses
    "requests": (("door", "transport"), "Times a subscriber asked for messages it lacks."),
    "challenges": (("door",), "Times an address was asked to show that it receives."),
    "forwards": (("door",), "Times a peer was asked to repair what the hub no longer has."),
    "repaired": (("door",), "Messages sent again to subscribers that lacked them."),
    "skipped": (("door",), "Messages a subscriber was moved past because it was too far behind."),
    "unavailable": (("door",), "Messages asked for that nobody has."),
    "undeliverable": (("door",), "Messages that could not be delivered: gone, damaged, or no room for them."),
    "cut_off": (("door",), "Messages not sent to a subscriber that took nothing and was cut off."),
    "dropped": (("door", "reason"), "Datagrams' messages dropped under load."),
    "hollow": (("door", "transport"), "Messages too long for a subscriber's transport, delivered empty."),
    "conflated": (("door",), "Changes of services that were merged into later ones."),
    "outbox_kept": ((), "Messages acknowledged as kept while the upstream hub was away (at a frontend)."),
    "outbox_sent": ((), "Kept messages that the upstream hub has taken since."),
    "outbox_aside": ((), "Kept messages that the upstream hub refused for good; they are set aside."),
    "upstream_lost": ((), "Messages that the upstream hub could not deliver (at a frontend)."),
    # Subscribers
    "subscribed": (("door", "transport"), "Subscriptions to the backbone."),
    "lapsed": (("door", "transport"), "Subscriptions to the backbone that ended without a keepalive."),
    "ignored": (("door",), "Frames of a known protocol that mean nothing here."),
    "unauthenticated": (("door",), "Frames of clients that had not authenticated."),
    "not_offered": (("door",), "Subscriptions to services that do not exist."),
    # Content routing
    "matched": (("what",), "Messages matched against content subscriptions, and clients found for them."),
    "unmatched": ((), "Messages that could not be matched."),
    "untracked": ((), "Earlier messages that fences could not look at."),
    "dispatched": ((), "Pushes passed on to connectors."),
    "unvouched": (("door",), "Pushes withheld from connectors that could not have placed them."),
    "absent": (("door",), "Pushes for clients that are not connected."),
    "repeats": (("door",), "Messages a client had already."),
    "ahead": (("door",), "Pushes of messages that the sequence has not reached."),
    "replay_cut": (("door",), "Messages a client missed while it was away that are no longer searched for."),
    "subscriptions_expired": ((), "Content subscriptions withdrawn because their client stayed away."),
    "rebuild_failures": ((), "Failed rebuilds of the matcher's index."),
    # Consumers and Spark's sink
    "consumer_expired": ((), "Deliveries to durable consumers that were not acknowledged in time."),
    "consumer_dead": ((), "Messages a durable consumer was given up on."),
    "consumer_lost": ((), "Messages retention removed before a durable consumer had them."),
    "reader_lost": (
        (),
        "Messages that were gone before a Spark query read them; the query went on after them.",
    ),
    "repeated": ((), "Messages that publishers sent again and that were in the log already."),
    "stages_expired": ((), "Staged pieces discarded after a day in which their query was silent."),
    # The log
    "segments_sealed": ((), "Segments turned into Arrow files."),
    "trimmed": ((), "Messages removed by retention."),
    "holds_broken": ((), "Messages removed although a hold asked for them."),
    "torn_tails": ((), "Starts at which a half-written batch was cut off."),
    "damaged_snapshots": ((), "Snapshots that could not be read at the start."),
    "sync_failures": ((), "Failed syncs of the disk: look at once."),
    "upkeep_failures": ((), "Failed sealing, trimming or snapshots."),
    "damaged_tails": ((), "Unsealed files with a bad frame: set aside, the rest of the log goes on."),
    "background_failures": ((), "Mistakes in Headrace that it survived: please report."),
    # Between hubs
    "dial_failures": (("door",), "Attempts to reach another hub that failed."),
    "parcels_dropped": ((), "Parcels to other nodes dropped for lack of room."),
    "snapshots_refused": ((), "Times another node wanted one more snapshot soon after the last."),
    "cluster_failures": ((), "Times this node left its cluster for a moment, for its disk or a mistake."),
    "cut_back": ((), "Messages never committed, cut off because the cluster went on without them."),
    # Sockets
    "socket_errors": (("door", "error"), "Errors of a socket."),
    "segmentation_off": (("error",), "Times sending several datagrams at once was given up."),
}
"""Counters by name: their labels, and what they count."""


def reference() -> str:
    """Write the table of all metrics in Markdown."""
    levels = [f"| `headrace_{name}` | {_plain(text)} |" for name, text in LEVELS.items()]
    levels += [
        f"| `headrace_{name}{{consumer}}` | {_plain(text)} |" for name, text in CONSUMER_LEVELS.items()
    ]
    levels.append(f"| `headrace_alert{{alert, about, grave}}` | {_plain(ALERT)} |")
    counts = [
        f"| `headrace_{name}_total{'{' + ', '.join(labels) + '}' if labels else ''}` | {_plain(text)} |"
        for name, (labels, text) in COUNTS.items()
    ]
    return "\n".join(["| metric | meaning |", "|---|---|", *levels, *counts])


def _plain(sentence: str) -> str:
    """Write a sentence for a table.

    >>> _plain("Messages in, by protocol.")
    'messages in, by protocol'
    """
    return f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"
