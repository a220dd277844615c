"""From a URL to a client: ``scheme://host:port[,host:port …]``.

A scheme names a protocol, and where that has a choice of transports, one of them. Clients are imported when they are
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.client.fyrehose.client import Backbone, Options
    from headrace.client.link.client import LinkClient
    from headrace.client.publisher.client import Options as PublisherOptions
    from headrace.client.publisher.client import Publisher
    from headrace.client.sdk.client import Options as SdkOptions
    from headrace.client.sdk.client import Sdk
    from headrace.client.spp.client import Spp
    from headrace.client.sync import Sync


def connect(url: str, **options: Any) -> Any:
    """A client for the hub at ``url``, to be opened with ``async with``.

    >>> backbone = connect("fyrehose://127.0.0.1:2323", from_seq=1)
    >>> link = connect("tube://127.0.0.1:8081,127.0.0.1:8082")
    >>> through_a_proxy = connect("ws://127.0.0.1:8080")
    >>> services = connect("spp://127.0.0.1")
    >>> routed = connect("sdk://127.0.0.1", client_id="00112233445566778899aabb", key="secret")
    >>> publisher = connect("publisher://127.0.0.1")

    ``fyrehose://`` is the backbone over TCP, ``fyrehose+udp://`` the same over UDP (port 2323 unless the URL says
    otherwise): :class:`~headrace.client.fyrehose.client.Backbone` describes the options. ``tube://`` is the link
    (port 8081): :class:`~headrace.client.link.client.LinkClient` does; ``ws://`` is the same over WebSocket (port
    8080). ``spp://`` are the services (port 3002): :class:`~headrace.client.spp.client.Spp`. ``sdk://`` receives
    messages by what they say (port 7253): :class:`~headrace.client.sdk.client.Sdk`; ``publisher://`` publishes such
    (port 8000): :class:`~headrace.client.publisher.client.Publisher`. When one of several hosts does not answer, the
    next is tried.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise UsageError(f"{url!r} is no address of a hub: expected scheme://host:port")
    client = _CLIENTS.get(scheme.lower())
    if client is None:
        raise UsageError(f"{url!r}: unknown scheme {scheme!r}; known are {', '.join(_CLIENTS)}")
    return client(url, rest.removesuffix("/"), options)


def connect_sync(url: str, **options: Any) -> Sync[Any]:
    """The same client for code without an event loop, to be opened with ``with``: its methods block.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, connect_sync(hub.url("tube")) as link:
    ...     link.publish(b"hello", topic="greetings").first
    1
    """
    from headrace.client.sync import Sync

    return Sync(connect(url, **options))


def _backbone(url: str, hosts: str, options: Options) -> Backbone:
    from headrace.client.fyrehose.client import DEFAULT_PORT, Backbone
    from headrace.config import Address

    if not hosts:
        raise UsageError(f"{url!r} names no host: expected fyrehose://host:port")
    return Backbone([Address.parse(host.strip(), DEFAULT_PORT) for host in hosts.split(",")], **options)


def _backbone_udp(url: str, hosts: str, options: Options) -> Backbone:
    if options.setdefault("transport", "udp") != "udp":
        raise UsageError(f"{url!r} says udp and transport={options['transport']!r} says otherwise")
    return _backbone(url, hosts, options)


def _link(url: str, hosts: str, options: dict[str, Any]) -> LinkClient:
    from headrace.client.link.client import DEFAULT_PORT, LinkClient
    from headrace.config import Address

    if not hosts:
        raise UsageError(f"{url!r} names no host: expected tube://host:port")
    return LinkClient([Address.parse(host.strip(), DEFAULT_PORT) for host in hosts.split(",")], **options)


def _link_websocket(url: str, hosts: str, options: dict[str, Any]) -> LinkClient:
    from headrace.client.link.client import WEBSOCKET_PORT, LinkClient
    from headrace.config import Address

    if options.setdefault("transport", "websocket") != "websocket":
        raise UsageError(f"{url!r} is a WebSocket and transport={options['transport']!r} says otherwise")
    if not hosts:
        raise UsageError(f"{url!r} names no host: expected ws://host:port")
    return LinkClient([Address.parse(host.strip(), WEBSOCKET_PORT) for host in hosts.split(",")], **options)


def _spp(url: str, hosts: str, options: dict[str, Any]) -> Spp:
    from headrace.client.spp.client import DEFAULT_PORT, Spp
    from headrace.config import Address

    if not hosts:
        raise UsageError(f"{url!r} names no host: expected spp://host:port")
    return Spp([Address.parse(host.strip(), DEFAULT_PORT) for host in hosts.split(",")], **options)


def _sdk(url: str, hosts: str, options: SdkOptions) -> Sdk:
    from headrace.client.sdk.client import DEFAULT_PORT, Sdk
    from headrace.config import Address

    if not hosts:
        raise UsageError(f"{url!r} names no host: expected sdk://host:port")
    return Sdk([Address.parse(host.strip(), DEFAULT_PORT) for host in hosts.split(",")], **options)


def _publisher(url: str, hosts: str, options: PublisherOptions) -> Publisher:
    from headrace.client.publisher.client import DEFAULT_PORT, Publisher
    from headrace.config import Address

    if not hosts:
        raise UsageError(f"{url!r} names no host: expected publisher://host:port")
    return Publisher([Address.parse(host.strip(), DEFAULT_PORT) for host in hosts.split(",")], **options)


_CLIENTS: Final[dict[str, Callable[[str, str, Any], Any]]] = {
    "fyrehose": _backbone,
    "fyrehose+udp": _backbone_udp,
    "tube": _link,
    "ws": _link_websocket,
    "spp": _spp,
    "sdk": _sdk,
    "publisher": _publisher,
}
