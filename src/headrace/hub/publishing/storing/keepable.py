"""Decides what a frontend can keep while its upstream hub is away: messages, and new services that they need.

Every other entry changes the hub's state and depends on the sequence: a cursor, a hold, a subscription, a stream. To
acknowledge one without its place would be a promise that nobody can keep.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.hub.publishing.relaying.passed import column_texts
from headrace.hub.sequencer import Submission, tied_groups
from headrace.message import Batch


class Keepable:
    """Decides what can be kept; ``services`` is the name of the services' part of the state."""

    def __init__(self, services: str) -> None:
        self._prefix = f"{services}/"

    def groups(self, submitted: Sequence[Submission]) -> tuple[list[Submission], list[list[Submission]]]:
        """Separate one turn's submissions that can be kept from groups that cannot.

        A service is kept only for a message of the same turn. A service that is created by itself must exist when its
        creator is answered.
        """
        needed = {
            f"{self._prefix}{topic}"
            for each in submitted
            if not each.batch.is_entries
            for topic in column_texts(each.batch, "topic")
        }
        fit: list[Submission] = []
        unfit: list[list[Submission]] = []
        for group in tied_groups(submitted):
            if all(self._is_kept(each.batch, needed) for each in group):
                fit += group
            else:
                unfit.append(group)
        return fit, unfit

    def rows(self, rows: Sequence[Batch]) -> bool:
        """Return whether all rows of a relayed request can be kept; the messages of services may be in another one."""
        return all(self._is_kept(batch, None) for batch in rows)

    def _is_kept(self, batch: Batch, needed: Collection[str] | None) -> bool:
        return not batch.is_entries or all(
            topic.startswith(self._prefix) and (needed is None or topic in needed)
            for topic in column_texts(batch, "topic")
        )
