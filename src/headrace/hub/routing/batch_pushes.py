"""The pushes of a matched batch to a connector's sessions, as arrays, without a Python object per match or message.

A client's matches are joined: it gets a message once, with the labels of all its parts that the message satisfies.
Compiled code does everything that grows with the number of matches; Python looks up each client and part once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.hub.routing.client_session import ClientSession
from headrace.hub.routing.subscription_parts import UNNAMED, Label
from headrace.matching import Matches, owners
from headrace.matching.index import grouping
from headrace.matching.index.grouping import radix_order
from headrace.matching.owners import number_ids, number_owners
from headrace.message import MAX_SEQUENCE, Batch, Run
from headrace.wire.numba_kernels import is_loaded, load_in_thread
from headrace.wire.sdk import push_labels
from headrace.wire.sdk.push_labels import encode_labels, label_pushes

FindPart: TypeAlias = Callable[[bytes], tuple[bytes, Label]]
"""Returns the client that a part belongs to, and the label that the client gets."""

CHUNK_BYTES: Final = 1 << 22
"""Bytes of pushes that are written at a time, or one session's."""

_KERNELS: Final = (owners.__name__, grouping.__name__, push_labels.__name__)

Ints = npt.NDArray[np.int32]
Wide = npt.NDArray[np.int64]


class BatchPushes(NamedTuple):
    """Pushes of a batch to sessions: ``begins[i]`` up to ``begins[i + 1]`` are those of session ``i``, in order."""

    sessions: list[ClientSession]
    begins: Ints
    rows: Ints
    """The message of each push, by its place in the batch."""
    first_label: Wide
    codes: Ints
    labels: list[Label]
    """The labels of push ``p`` are ``codes[first_label[p]:first_label[p + 1]]``."""
    repeats: int
    """Number of messages that are left out, since their sessions had them already."""

    def write(self, first: int, rows: list[int], pushes: Run) -> Iterator[tuple[ClientSession, Wide, Run]]:
        """Yield each session's sequence numbers and pushes.

        ``pushes`` are those of the messages ``rows``, which have no labels yet; the batch's first is number ``first``.
        """
        if not self.sessions:
            return
        place = np.empty(rows[-1] + 1, np.int32)
        place[rows] = np.arange(len(rows))
        labels = encode_labels(self.labels)
        places = place[self.rows]
        ends = np.cumsum(np.diff(pushes.offsets)[places], dtype=np.int64)
        session = 0
        while session < len(self.sessions):
            begin = int(self.begins[session])
            enough = int(np.searchsorted(ends, (ends[begin - 1] if begin else 0) + CHUNK_BYTES))
            some = max(session + 1, int(np.searchsorted(self.begins, enough, side="right")) - 1)
            end = int(self.begins[some])
            written = label_pushes(
                pushes, places[begin:end], self.first_label[begin : end + 1], self.codes, labels
            )
            seqs = first + self.rows[begin:end].astype(np.int64)
            edges = (self.begins[session : some + 1] - begin).tolist()
            for each, (own, other) in zip(self.sessions[session:some], pairwise(edges), strict=True):
                yield each, seqs[own:other], written.slice(own, other)
            session = some


def is_ready() -> bool:
    """Whether compiled code is there for it; if not, a thread loads it."""
    if all(map(is_loaded, _KERNELS)):
        return True
    load_in_thread(*_KERNELS)
    return False


def find_pushes(
    batch: Batch, matches: Matches, sessions: Mapping[bytes, ClientSession], find_part: FindPart
) -> BatchPushes:
    """Find the messages of a batch that are for live sessions."""
    clients, numbers = number_owners(matches)
    ids = [client.tobytes() for client in clients]
    found = [sessions.get(client) for client in ids]
    last = np.array([each.last if each is not None and each.live else MAX_SEQUENCE for each in found])
    rows = np.repeat(np.arange(len(matches), dtype=np.int32), np.diff(matches.offsets))
    hits = np.flatnonzero(last[numbers] < MAX_SEQUENCE)
    parts, part_of = number_ids(matches.clients[hits])
    owner_of = np.empty(len(parts), np.int32)
    owner_of[part_of] = numbers[hits]
    told = [find_part(part.tobytes()) for part in parts]
    labels = sorted({UNNAMED, *(label for _, label in told)})
    code_of = {label: code for code, label in enumerate(labels)}
    # A part that was withdrawn since has no client any more.
    kept = np.array([told[at][0] == ids[owner] for at, owner in enumerate(owner_of.tolist())], np.bool_)
    hits, part_of = hits[kept[part_of]], part_of[kept[part_of]]
    fresh = batch.first + rows[hits] > last[numbers[hits]]
    repeated = hits[~fresh]
    repeats = len(np.unique(numbers[repeated].astype(np.int64) * len(matches) + rows[repeated]))
    hits, part_of = hits[fresh], part_of[fresh]
    codes = np.array([code_of[label] for _, label in told], np.int32)[part_of]
    # By client, message and label, so that what a client is told of a message is side by side.
    pushes = numbers[hits].astype(np.uint64) * np.uint64(len(matches)) + rows[hits].astype(np.uint64)
    order = radix_order(
        pushes * np.uint64(len(labels)) + codes.astype(np.uint64), np.arange(len(hits), dtype=np.int32)
    )
    pushes, hits, codes = pushes[order], hits[order], codes[order]
    firsts = np.flatnonzero(np.diff(pushes, prepend=~np.uint64(0)))
    owner = numbers[hits[firsts]]
    begins = np.flatnonzero(np.diff(owner, prepend=-1))
    return BatchPushes(
        [each for number in owner[begins].tolist() if (each := found[number]) is not None],
        np.append(begins, len(firsts)).astype(np.int32),
        rows[hits[firsts]],
        np.append(firsts, len(hits)),
        codes,
        labels,
        repeats,
    )
