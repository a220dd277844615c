"""How long the turns of a hub's event loop compute, as ``turns.c`` measures it in the hub's process."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from tests.preloading import compiled

_PAGE = struct.Struct("<qqqq")


class Turns:
    """The turns of the process that has :attr:`environ`."""

    def __init__(self, directory: Path) -> None:
        path = directory / "turns"
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environ: Mapping[str, str] = {
            "LD_PRELOAD": str(compiled(Path(__file__).with_name("turns.c"))),
            "TURNS_PAGE": str(path),
        }

    @property
    def longest(self) -> float:
        """Seconds that the longest turn has computed since :meth:`forget`."""
        longest, _, _, _ = _PAGE.unpack_from(self._page)
        return float(longest) / 1e9

    @property
    def longest_of_all(self) -> float:
        """Seconds that all threads together have computed in a turn at most: the loop waits for none of them longer."""
        _, _, _, longest = _PAGE.unpack_from(self._page)
        return float(longest) / 1e9

    @property
    def count(self) -> int:
        """Turns so far."""
        _, turns, _, _ = _PAGE.unpack_from(self._page)
        return int(turns)

    def forget(self) -> None:
        """Look for the longest turn anew."""
        for place in (0, 24):
            struct.pack_into("<q", self._page, place, 0)
