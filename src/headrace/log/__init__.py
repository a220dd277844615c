"""The log: every message that entered, in one order, on disk.

``store``                 :class:`Log`: append, commit, sync; ``reading`` reads it, ``maintained`` seals and trims it
``tail``, ``frame_file``  the open tail: files of compact, checksummed frames (``frame``), one per batch
``tail_writer``           writing to the tail, and cutting it back
``sealed``                sealed segments: plain Arrow IPC files, each with an index of checksums
``topics``                which segments and frames hold which topics
``proof``                 digests of the messages, chained from the first
``snapshots``             the hub's state at a sequence number, and logs that begin after one
``past``                  older messages that only an archive still has
``recovery``              opening a directory: the states a crash can leave, and the answer to each
``retention``             what may be removed, as a pure function
``replication_frames``    batches as bytes from node to node
``damage``                inspect, verify and repair a log

``docs/log.md`` describes every file.
"""

from headrace.log.store import Log

__all__ = ["Log"]
