"""Headrace: five wire protocols in, one verified sequence in the middle, Spark pipelines out.

    async with headrace.connect("fyrehose://127.0.0.1:2323", from_seq=1) as backbone:
        await backbone.push(b"hello")
        async for message in backbone:
            print(message.seq, message.payload)

Whatever is named here is public; each name is imported when it is first used, so that importing the package is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.conditions import (
        any_of,
        at_least,
        at_most,
        between,
        equals,
        exists,
        missing,
        not_,
        one_of,
        starts_with,
        where,
    )
    from headrace.client.connect import connect, connect_sync
    from headrace.client.fyrehose.client import Backbone
    from headrace.errors import (
        ClosedError,
        ConfigError,
        HeadraceError,
        LimitError,
        LostRangeError,
        PeerError,
        RefusedError,
        StorageError,
        UnexpectedError,
        UnreachableError,
        UsageError,
        WireError,
    )
    from headrace.message import Batch, Message, Run

__version__ = "0.1.0"

__all__ = [
    "Backbone",
    "Batch",
    "ClosedError",
    "ConfigError",
    "HeadraceError",
    "LimitError",
    "LostRangeError",
    "Message",
    "PeerError",
    "RefusedError",
    "Run",
    "StorageError",
    "UnexpectedError",
    "UnreachableError",
    "UsageError",
    "WireError",
    "__version__",
    "any_of",
    "at_least",
    "at_most",
    "between",
    "connect",
    "connect_sync",
    "equals",
    "exists",
    "missing",
    "not_",
    "one_of",
    "starts_with",
    "where",
]

_HOMES = {
    "Backbone": "headrace.client.fyrehose.client",
    "connect": "headrace.client.connect",
    "connect_sync": "headrace.client.connect",
    "any_of": "headrace.client.conditions",
    "at_least": "headrace.client.conditions",
    "at_most": "headrace.client.conditions",
    "between": "headrace.client.conditions",
    "equals": "headrace.client.conditions",
    "exists": "headrace.client.conditions",
    "missing": "headrace.client.conditions",
    "not_": "headrace.client.conditions",
    "one_of": "headrace.client.conditions",
    "starts_with": "headrace.client.conditions",
    "where": "headrace.client.conditions",
    "Batch": "headrace.message",
    "Message": "headrace.message",
    "Run": "headrace.message",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "headrace.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
