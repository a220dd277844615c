"""The log's entries of services: they say which services exist, and by what policy messages may create them."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from headrace.errors import LimitError, UsageError
from headrace.hub.services.merge_patch import encode
from headrace.hub.state import entry
from headrace.message import Batch
from headrace.wire.spp import MAX_SERVICE

PART: Final = "service"
POLICY: Final = f"{PART}/"
"""The topic of an entry that sets the policy; only the hub that numbers messages writes one."""


class ServiceKind(StrEnum):
    """The kind of a service's object, and so of its changes."""

    JSON = "json"
    LAST = "last"


class ServicePolicy(msgspec.Struct, frozen=True):
    """Whether an unknown topic creates a ``last`` service, how many services there may be, and of how many bytes."""

    auto: bool = False
    max: Annotated[int, msgspec.Meta(ge=0, le=sys.maxsize)] = 100_000
    most_bytes: Annotated[int, msgspec.Meta(ge=0, le=sys.maxsize)] = msgspec.field(
        default=512 << 20, name="bytes"
    )


class Order(msgspec.Struct, frozen=True):
    """The payload of an entry that creates or removes a service."""

    create: ServiceKind | None = None
    remove: bool = False


def check_id(service_id: str) -> None:
    """Raise unless a service may have this id: 1 to 1,024 bytes of UTF-8."""
    try:
        size = len(service_id.encode())
    except UnicodeEncodeError:
        raise UsageError(f"a service's id is UTF-8 text, not {service_id!a}") from None
    if not size:
        raise UsageError("a service's id is not empty")
    if size > MAX_SERVICE:
        raise LimitError("spp", "service", size, MAX_SERVICE)


def create(service_id: str, kind: ServiceKind) -> Batch:
    """Make the log entry that creates a service or offers a removed id again; an existing one is left as it is."""
    check_id(service_id)
    return entry(PART, service_id, encode({"create": kind}))


def remove(service_id: str) -> Batch:
    """Make the log entry that removes a service."""
    check_id(service_id)
    return entry(PART, service_id, encode({"remove": True}))


def obey(policy: ServicePolicy) -> Batch:
    """Make the log entry that sets the policy."""
    return entry(PART, "", encode(policy))
