"""Feeds the sessions of a connector: live by their paths, or from the log until that is possible.

The rules of :mod:`headrace.hub.routing.client_session` are applied here to all sessions. A message is encoded once for
all of them. For a session that is behind, the owner's ``read`` searches some of the log at a time, and only while its
client has room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import LimitError, StorageError, TrimmedError
from headrace.hub.cursor import EncodedCache, cut_off_reason
from headrace.hub.routing.batch_pushes import FindPart, find_pushes, is_ready
from headrace.hub.routing.client_session import ClientSession, FoundRows, PushSource, Rows
from headrace.hub.routing.local_matcher import add_row
from headrace.hub.routing.subscription_parts import (
    UNNAMED,
    Label,
)
from headrace.hub.sequence import Hub
from headrace.matching import Matches
from headrace.message import Batch, Run
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, seq_of
from headrace.wire.sdk import commands as sdk

Found: TypeAlias = list[tuple[Batch, Rows]]
"""Batches of the log, and what in each is for a client."""

Then: TypeAlias = Callable[[Found | StorageError], None]
Read: TypeAlias = Callable[[bytes, int, int, Then], None]
"""Looks through some of the log for a client, from the first number to at most the last, and calls ``Then``."""


FEW: Final = 32
"""Most matches of a batch that are delivered one by one, which is then quicker than making arrays."""

CACHE_BYTES: Final = 1 << 20
"""Bytes of the newest messages' pushes that are kept encoded."""

_FRAME_OVERHEAD: Final = 128
"""Bytes that a push takes in addition to its payload, for its head and the objects around it."""


class PushFrames(NamedTuple):
    """The pushes of messages ``first`` to ``last``, by sequence number, each encoded when it is first wanted."""

    first: int
    last: int
    size: int
    frames: dict[int, bytes]


def _push_frames(batches: Sequence[Batch]) -> PushFrames:
    size = sum(batch.size + _FRAME_OVERHEAD * len(batch) for batch in batches)
    return PushFrames(batches[0].first, batches[-1].last, size, {})


class SessionFeed:
    """Sends messages to the sessions of a connector."""

    def __init__(
        self, hub: Hub, sessions: Mapping[bytes, ClientSession], read: Read, find_part: FindPart
    ) -> None:
        self._hub = hub
        self._sessions = sessions
        self._find_part = find_part
        self._read = read
        self._delivered = hub.counters.counter("delivered", door="sdk")
        self._repeats = hub.counters.counter("repeats", door="sdk")
        self._behind: dict[ClientSession, None] = {}
        self._cache = EncodedCache(_push_frames, max_bytes=CACHE_BYTES)

    def __len__(self) -> int:
        """The number of sessions that are fed from the log."""
        return len(self._behind)

    def fell_behind(self, session: ClientSession) -> None:
        """Feed a session with a cursor from the log, beginning with the next :meth:`advance` or :meth:`pump`."""
        self._behind[session] = None

    def forget(self, session: ClientSession) -> None:
        """Stop feeding a session."""
        self._behind.pop(session, None)

    def deliver(self, batch: Batch, matches: Matches | None) -> None:
        """Push what this process's matcher found to live sessions."""
        if matches is None or not len(matches.clients) or not self._sessions:
            return
        if len(matches.clients) > FEW and is_ready() and self._deliver_many(batch, matches):
            return
        for session, rows in self._concerned(matches).items():
            fresh = _fresh(session, batch, rows)
            self._repeats.value += len(rows) - len(fresh)
            if fresh:
                self._push(session, batch, fresh)

    def pushed(
        self, source: PushSource, msg_id: bytes, payload: bytes, parts: Iterable[bytes], *, relying: bool
    ) -> None:
        """Push what a dispatcher brings to the clients whose ids, or parts, it names.

        A client with a subscription is fed by its own path alone, or by the log: another source may be ahead of that.
        A client without one gets what is pushed, unless it is ``relying`` on matchers elsewhere: then it gets it once
        the state here has its subscription. A MsgId that is not of our form has no sequence number, so it never
        counts as a repeat.
        """
        seq = seq_of(msg_id)
        if seq is not None:
            source.seen = max(source.seen, seq)
        frame: bytes | None = None
        concerned: dict[ClientSession, Rows] = {}
        for part in parts:
            client, label = self._find_part(part)
            session = self._sessions.get(client)
            if session is None:
                self._hub.counters.add("absent", door="sdk")
            else:
                add_row(concerned.setdefault(session, {}), 0, label)
        for session, rows in concerned.items():
            if seq is not None and seq <= session.last:
                self._repeats.value += 1
                continue
            if session.reads is not None:
                # Only the log has the message's topic.
                if seq is None:
                    detail = "the client may read part of the topics"
                    self._hub.counters.report_foreign("undeliverable", msg_id, detail, door="sdk")
                continue
            fed = session.live and source.vouches_for(session.path)
            if seq is not None and (session.wants or relying) and not fed:
                continue  # The client gets it by its own path or from the log, if it wants it.
            if frame is None:
                frame = self._encode(seq, payload, msg_id)
                if frame is None:
                    return
            labelled = _labelled(frame, rows[0])
            if seq is not None:
                self._sent(session, [seq], Run.one(labelled))
            elif session.outlet.room > 0:
                session.outlet.send(labelled)
                session.sent += 1
                self._delivered.value += 1
            else:
                self._hub.counters.report_foreign("undeliverable", msg_id, "a client is full", door="sdk")

    def advance(self) -> None:
        """Feed the sessions that are behind, since the log has grown or there is a new path."""
        for session in tuple(self._behind):
            self.pump(session)

    def pump(self, session: ClientSession) -> None:
        """Read on for a session that is behind, or let it go live."""
        if session.cursor is None or session.place.reading:
            return
        if session.outlet.room <= 0:
            session.outlet.later()
            return
        if session.catch_on():
            self._behind.pop(session, None)
            return
        wanted = session.place.step(self._hub.log.head).read
        if wanted is not None:
            self._read(session.client, *wanted, lambda outcome: self._was_read(session, outcome))

    def _deliver_many(self, batch: Batch, matches: Matches) -> bool:
        """Push by arrays; ``False`` if that cannot be, since a message is too long for a push."""
        found = find_pushes(batch, matches, self._sessions, self._find_part)
        rows = np.unique(found.rows).tolist()
        frames = self._frames(batch, rows)
        if len(frames) < len(rows):
            return False
        self._repeats.value += found.repeats
        for session, seqs, pushes in found.write(batch.first, rows, Run.of(frame for _, frame in frames)):
            self._sent(session, seqs, pushes)
        return True

    def _concerned(self, matches: Matches) -> dict[ClientSession, Rows]:
        """Return which messages of the batch are for each live session."""
        found: dict[ClientSession, Rows] = {}
        ids = matches.clients.tobytes()
        for row, (begin, end) in enumerate(pairwise((matches.offsets * CLIENT_ID_BYTES).tolist())):
            for at in range(begin, end, CLIENT_ID_BYTES):
                client, label = self._find_part(ids[at : at + CLIENT_ID_BYTES])
                session = self._sessions.get(client)
                if session is None or not session.live:
                    continue
                rows = found.setdefault(session, {})
                if label is UNNAMED:
                    rows.setdefault(row, ())
                else:
                    add_row(rows, row, label)
        return found

    def _push(self, session: ClientSession, batch: Batch, rows: Rows) -> None:
        frames = [
            (seq, _labelled(frame, rows[seq - batch.first])) for seq, frame in self._frames(batch, rows)
        ]
        if len(frames) == 1:
            self._sent(session, [frames[0][0]], Run.one(frames[0][1]))
        elif frames:
            self._sent(session, [seq for seq, _ in frames], Run.of(frame for _, frame in frames))

    def _sent(self, session: ClientSession, seqs: Sequence[int] | npt.NDArray[np.int64], frames: Run) -> None:
        self._delivered.value += session.push(seqs, frames)
        if session.cursor is not None:
            self._behind[session] = None
            session.outlet.later()

    def _frames(self, batch: Batch, rows: Iterable[int]) -> list[tuple[int, bytes]]:
        """Encode messages of a batch as pushes, each once while it is among the newest."""
        encoded = self._cache.find(batch.first)
        if encoded is None or encoded.last < batch.last:
            encoded = _push_frames([batch])
            self._cache.add(encoded)
        frames = []
        for seq in (batch.first + row for row in rows):
            frame = encoded.frames.get(seq)
            if frame is None:
                frame = self._encode(seq, batch.run[seq - batch.first])
                if frame is None:
                    continue
                encoded.frames[seq] = frame
            frames.append((seq, frame))
        return frames

    def _encode(self, seq: int | None, payload: bytes, msg_id: bytes = b"") -> bytes | None:
        """Encode a push; one without a number is known by its MsgId."""
        try:
            return sdk.serialize(sdk.Push(sdk.UNPLACED if seq is None else seq, payload))
        except LimitError as error:
            if seq is None:
                self._hub.counters.report_foreign("undeliverable", msg_id, str(error), door="sdk")
            else:
                self._hub.counters.report("undeliverable", seq, seq, str(error), door="sdk")
            return None

    def _was_read(self, session: ClientSession, outcome: Found | StorageError) -> None:
        if isinstance(outcome, StorageError):
            lost = session.place.read_failed(outcome)
            if lost is not None:
                self._cannot_read(session, lost.first, outcome)
                return
        else:
            session.place.was_read(FoundRows(outcome[0][0].first, outcome[-1][0].last, outcome))
            # What has no room is read again later: kept, it would cost every slow client a chunk of memory.
            found = session.place.pop()
            if found is not None and not all(self._feed(session, *rows) for rows in found.batches):
                return
        self.pump(session)

    def _feed(self, session: ClientSession, batch: Batch, rows: Rows) -> bool:
        """Send a session its messages of a batch from the log; ``False`` if there is no room for all."""
        fresh = _fresh(session, batch, rows)
        if fresh and session.reads is not None:
            fresh = {row: fresh[row] for row in session.reads(batch, list(fresh))}
        if fresh:
            session.cursor = None
            self._push(session, batch, fresh)
            if not session.live:
                return False
        session.cursor = batch.last + 1
        session.last = max(session.last, batch.last)
        return True

    def _cannot_read(self, session: ClientSession, first: int, error: StorageError) -> None:
        lost = error.oldest - 1 if isinstance(error, TrimmedError) else self._hub.log.head
        self._hub.counters.report("undeliverable", first, lost, str(error), door="sdk")
        session.outlet.part(cut_off_reason(error), str(error))


def _labelled(frame: bytes, labels: tuple[Label, ...]) -> bytes:
    """Add the labels of its client to a push."""
    if not labels:
        return frame
    events: dict[str, list[str]] = {}
    for label in labels:
        if label.event:
            events.setdefault(label.name, []).append(label.event)
    names = dict.fromkeys(label.name for label in labels if label.name)
    return sdk.label_push(frame, tuple(names), {name: tuple(each) for name, each in events.items()})


def _fresh(session: ClientSession, batch: Batch, rows: Rows) -> Rows:
    """Return the messages that the session has not been sent."""
    return {row: labels for row, labels in rows.items() if batch.first + row > session.last}
