"""The address of a hub's door, and the credentials to show there.

A hub whose ``auth.required`` is on asks for a client id and a key. The key is never an option, because other users of a
machine see its command lines.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

if TYPE_CHECKING:
    from headrace.client.link.client import LinkClient
    from headrace.client.spp.client import SppClient

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client's id and key."""

    id: str
    key: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an HTTP request's ``Authorization``."""
        return f"Basic {b64encode(f'{self.id}:{self.key}'.encode()).decode()}"


class ClientOptions(TypedDict):
    """Credentials as the clients take them: an id and its key, or neither."""

    client_id: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class HubAccess:
    """A door's URL, and the credentials for it, if there are any."""

    url: str
    credentials: Credentials | None = None

    @property
    def client_options(self) -> ClientOptions:
        """The credentials as keyword arguments of a client."""
        if self.credentials is None:
            return {"client_id": None, "key": None}
        return {"client_id": self.credentials.id, "key": self.credentials.key}

    def link(self, name: str) -> LinkClient:
        """Make a client of the link, to be opened."""
        from headrace.client.link.client import LinkClient

        return LinkClient.at(self.url, name=name, **self.client_options)

    def spp(self) -> SppClient:
        """Make a client of the services, to be opened."""
        from headrace.client.spp.client import SppClient

        return SppClient.at(self.url, **self.client_options)

    def ask(self, name: str, request: Callable[[LinkClient], Awaitable[R]]) -> R:
        """Make one request over the link, in an event loop of its own."""

        async def ask() -> R:
            async with self.link(name) as link:
                return await request(link)

        return run_client(ask())


def run_client(work: Coroutine[Any, Any, R]) -> R:
    """Run a client in an event loop of its own; its warnings look like the command's errors."""
    from headrace.cli.terminal.event_loop import run_until_done
    from headrace.cli.terminal.stderr import log_briefly

    log_briefly()
    return run_until_done(lambda: work)


def remedy_for_refusal(credentials: Credentials | None) -> str:
    """Return what to do when a hub does not accept the credentials."""
    if credentials is None:
        return "its auth.required is on: add --client-id, and put the key into HEADRACE_KEY"
    return f"check the id {credentials.id} and its key"
