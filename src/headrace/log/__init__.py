"""The log: every message that entered, in one order, on disk.

``frame``      the open tail's framing: one compact, checksummed frame per batch
``tail``       the files of frames, appended by ``write()``
``sealed``     sealed segments: plain Arrow IPC files and the index that vouches for their bytes
``sealing``    from one to the other
``snapshot``   the hub's state at a sequence number
``recovery``   what a directory holds after a crash, and what to do about it
``retention``  what may be removed, as a pure function
``store``      :class:`Log`, which holds them together
``survey``     what every file holds, good and bad
``verify``     whether all of it is as it was written
``remedy``     what would make a damaged log whole again
``repair``     doing that

``docs/log.md`` is the reference of the files.
"""

from headrace.log.store import Log

__all__ = ["Log"]
