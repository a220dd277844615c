"""Where a hub's door is, and who knocks: what every command that asks a hub is given.

A hub whose ``auth.required`` is on wants to know who a client is: an id, and a key that proves it. The key is never an
option, for the command lines of a machine are no secret there.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from headrace.client.link.client import LinkClient
    from headrace.client.spp.client import SppClient


@dataclass(frozen=True, slots=True)
class Client:
    """Who knocks."""

    id: str
    key: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The same for an http door: the value of ``Authorization``."""
        return f"Basic {b64encode(f'{self.id}:{self.key}'.encode()).decode()}"


class Proof(TypedDict):
    """An id and its key, or neither."""

    client_id: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Access:
    """A door's URL, and who knocks, if they say."""

    url: str
    client: Client | None = None

    @property
    def proof(self) -> Proof:
        """Who knocks, as clients take it."""
        if self.client is None:
            return {"client_id": None, "key": None}
        return {"client_id": self.client.id, "key": self.client.key}

    def link(self, name: str) -> LinkClient:
        """A client of the link, to be opened."""
        from headrace.client.link.client import LinkClient

        return LinkClient.at(self.url, name=name, **self.proof)

    def spp(self) -> SppClient:
        """A client of services, to be opened."""
        from headrace.client.spp.client import SppClient

        return SppClient.at(self.url, **self.proof)


def unknown(client: Client | None) -> str:
    """What to do where a hub does not know us."""
    if client is None:
        return "its auth.required is on, so say who you are with --client-id, and the key in HEADRACE_KEY"
    return f"check the id {client.id} and its key"
