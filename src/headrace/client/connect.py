"""From a URL to a client.

A scheme names a protocol and, where that has a choice, its transport. Type checkers cannot dispatch on the beginning
of a string, so a URL that is just a scheme (``"spp://"``) is what tells them the client's class; the hosts are a second
argument. ADR 0012 has the reasons. Clients are imported when they are first needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, cast, overload

from headrace.client.base import Client, scheme_of

if TYPE_CHECKING:
    from headrace.client.fyrehose.client import FyrehoseClient, FyrehoseOptions
    from headrace.client.link.client import LinkClient, LinkOptions
    from headrace.client.publisher.client import PublisherClient, PublisherOptions
    from headrace.client.sdk.client import SdkClient, SdkOptions
    from headrace.client.spp.client import SppClient, SppOptions
    from headrace.client.sync import (
        SyncClient,
        SyncFyrehoseClient,
        SyncLinkClient,
        SyncPublisherClient,
        SyncSdkClient,
        SyncSppClient,
    )

LinkScheme: TypeAlias = Literal["tube://", "ws://", "tube+tls://", "wss://"]
FyrehoseScheme: TypeAlias = Literal["fyrehose://", "fyrehose+udp://", "fyrehose+tls://"]
SppScheme: TypeAlias = Literal["spp://", "spp+tls://"]
SdkScheme: TypeAlias = Literal["sdk://", "sdk+tls://"]
PublisherScheme: TypeAlias = Literal["publisher://", "publisher+tls://"]

_CLIENTS = {
    "fyrehose": ("fyrehose", "FyrehoseClient"),
    "fyrehose+udp": ("fyrehose", "FyrehoseClient"),
    "tube": ("link", "LinkClient"),
    "ws": ("link", "LinkClient"),
    "spp": ("spp", "SppClient"),
    "sdk": ("sdk", "SdkClient"),
    "publisher": ("publisher", "PublisherClient"),
}
_CLIENTS |= {
    **{f"{scheme}+tls": _CLIENTS[scheme] for scheme in ("tube", "fyrehose", "spp", "sdk", "publisher")},
    "wss": _CLIENTS["ws"],
}


@overload
def connect(url: LinkScheme = ..., hosts: str | None = ..., **options: Unpack[LinkOptions]) -> LinkClient: ...
@overload
def connect(
    url: FyrehoseScheme, hosts: str | None = ..., **options: Unpack[FyrehoseOptions]
) -> FyrehoseClient: ...
@overload
def connect(url: SppScheme, hosts: str | None = ..., **options: Unpack[SppOptions]) -> SppClient: ...
@overload
def connect(url: SdkScheme, hosts: str | None = ..., **options: Unpack[SdkOptions]) -> SdkClient: ...
@overload
def connect(
    url: PublisherScheme, hosts: str | None = ..., **options: Unpack[PublisherOptions]
) -> PublisherClient: ...
@overload
def connect(url: str, hosts: str | None = ..., **options: object) -> Client: ...


def connect(url: str = "tube://", hosts: str | None = None, **options: Any) -> Client:
    """Make a client of the hub at ``url``, to be opened with ``async with``.

    >>> link = connect()
    >>> backbone = connect("fyrehose://", from_seq=1)
    >>> elsewhere = connect("tube://", "10.0.0.7:8081,10.0.0.8")
    >>> the_same = connect("tube://10.0.0.7:8081,10.0.0.8")
    >>> through_a_proxy = connect("ws://", "hub.example")
    >>> routed = connect("sdk://", client_id="00112233445566778899aabb", key="secret")
    >>> secured = connect("tube+tls://", "hub.example")

    Without hosts, the hub is this machine's, at the door's default port unless the settings (from the environment, and
    from the file that ``HEADRACE_CONFIG`` names) change it. Several hosts are tried in turn until one answers.

    ===================  ====================================  =========================================
    scheme               client                                for
    ===================  ====================================  =========================================
    ``tube://``          :class:`~headrace.LinkClient`         the link: acknowledged publishes, reading
    ``ws://``            :class:`~headrace.LinkClient`         the same over WebSocket
    ``fyrehose://``      :class:`~headrace.FyrehoseClient`     the backbone: the whole sequence
    ``fyrehose+udp://``  :class:`~headrace.FyrehoseClient`     the same over UDP
    ``spp://``           :class:`~headrace.SppClient`          services: named live objects
    ``sdk://``           :class:`~headrace.SdkClient`          messages by content
    ``publisher://``     :class:`~headrace.PublisherClient`    publishing with attributes
    ===================  ====================================  =========================================

    ``tube+tls://``, ``fyrehose+tls://``, ``spp+tls://``, ``sdk+tls://``, ``publisher+tls://`` and ``wss://`` are the
    same under TLS. The hub's certificate and its name are verified; ``ca=FILE`` names an authority that the system does
    not know, ``cert=FILE`` and ``cert_key=FILE`` the client's own certificate.

    The classes describe their options. A type checker knows the class if the scheme stands alone, as in
    ``connect("spp://", hosts)``; for a whole URL, use the class: ``SppClient.at(url)``.
    """
    return cast("Client", _client_class(url).at(url, hosts, **options))


@overload
def connect_sync(
    url: LinkScheme = ..., hosts: str | None = ..., **options: Unpack[LinkOptions]
) -> SyncLinkClient: ...
@overload
def connect_sync(
    url: FyrehoseScheme, hosts: str | None = ..., **options: Unpack[FyrehoseOptions]
) -> SyncFyrehoseClient: ...
@overload
def connect_sync(url: SppScheme, hosts: str | None = ..., **options: Unpack[SppOptions]) -> SyncSppClient: ...
@overload
def connect_sync(url: SdkScheme, hosts: str | None = ..., **options: Unpack[SdkOptions]) -> SyncSdkClient: ...
@overload
def connect_sync(
    url: PublisherScheme, hosts: str | None = ..., **options: Unpack[PublisherOptions]
) -> SyncPublisherClient: ...
@overload
def connect_sync(url: str, hosts: str | None = ..., **options: object) -> SyncClient[Client]: ...


def connect_sync(url: str = "tube://", hosts: str | None = None, **options: Any) -> SyncClient[Any]:
    """Make the same client for code without an event loop: its methods block.

    It opens on first use and closes when the program ends, or with ``with`` at the end of the block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, connect_sync(hub.url("tube")) as link:
    ...     link.publish(b"hello", topic="greetings").first
    1
    """
    from headrace.client import sync

    blocking = getattr(sync, f"Sync{_client_class(url).__name__}")
    return cast("SyncClient[Any]", blocking.at(url, hosts, **options))


def _client_class(url: str) -> Any:
    package, name = _CLIENTS[scheme_of(url, _CLIENTS)]
    return getattr(import_module(f"headrace.client.{package}.client"), name)
