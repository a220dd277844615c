"""What a job keeps from micro-batch to micro-batch, beside its query's checkpoint.

Spark runs a micro-batch again if it was not done when something was killed. So what a job knows after batch N is a file
of its own, made of what it knew after batch N - 1: to run N again starts from there again and comes to the same.
"""

from __future__ import annotations

from headrace.spark.jobs.folder import Folder

_SUFFIX = ".kept"


class Kept:
    """The newest two of a job's memories."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def before(self, batch: int) -> bytes | None:
        """What was known before a micro-batch; ``None`` before the first."""
        earlier = [number for number in self._numbers() if number < batch]
        return self._folder.read(_name(max(earlier))) if earlier else None

    def after(self, batch: int, content: bytes) -> None:
        """Keep what is known after a micro-batch."""
        self._folder.write(_name(batch), content)
        for number in self._numbers():
            if number < batch - 1:
                self._folder.remove(_name(number))

    def _numbers(self) -> list[int]:
        names = self._folder.names()
        return [int(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)]


def _name(batch: int) -> str:
    return f"{batch:012d}{_SUFFIX}"
