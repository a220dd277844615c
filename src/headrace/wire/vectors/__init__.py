"""Golden bytes: one exact example of every frame of every protocol, by its title in ``docs/protocols/``.

They are kept here once. The codecs' tests read and write them, the protocol pages explain them byte by byte, and the
conformance kit sends them to any server.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

PROTOCOLS: Final = ("fyrehose", "spp", "parcel", "attribute", "sdk", "tube", "link")
"""The protocols that have golden bytes; each one's are in a file of that name."""


@cache
def golden(protocol: str) -> MappingProxyType[str, bytes]:
    """Return a protocol's golden bytes by title, in the order of its file."""
    text = files(__name__).joinpath(f"{protocol}.toml").read_text(encoding="utf-8")
    return MappingProxyType({title: bytes.fromhex(wire) for title, wire in tomllib.loads(text).items()})
