"""The log: every message that entered, in one order, on disk.

``store``                 :class:`Log`, which holds the others together
``tail``, ``frame``       the open tail: files of compact, checksummed frames, one per batch
``tail_writer``           writing to the tail, and cutting it back
``sealed``, ``sealing``   sealed segments: plain Arrow IPC files, each with an index of checksums
``snapshot``              the hub's state at a sequence number
``start_after_snapshot``  logs that begin after a snapshot: copies, and nodes that fell behind
``recovery``              opening a directory: what a crash leaves, and what to do about it
``retention``             what may be removed, as a pure function
``replication_frames``    batches as bytes from node to node
``damage``                inspect, verify and repair a log

``docs/log.md`` is the reference of the files.
"""

from headrace.log.store import Log

__all__ = ["Log"]
