"""Binding the doors' sockets: at the addresses in the settings, or on a free port if that is allowed."""

from __future__ import annotations

import errno
import os
import socket

from headrace.config import Address, Settings
from headrace.errors import ConfigError
from headrace.hub.access.exposure import is_loopback, missing_guard

_TRIES = 50
"""Tries to find a port that is free for both TCP and UDP."""


class DoorBinder:
    """Binds doors and remembers their addresses."""

    def __init__(self, settings: Settings, *, take_free_ports: bool) -> None:
        self._settings = settings
        self._take_free_ports = take_free_ports
        self.doors: dict[str, str] = {}
        """The address of each door, by name."""
        self.moved: dict[str, tuple[str, str]] = {}
        """Doors whose address was taken: the wanted and the actual address."""
        self._bound: list[socket.socket] = []
        self.exposed: list[str] = []
        """Doors that strangers can reach without authenticating: ``auth.insecure`` allows them."""

    def close(self) -> None:
        """Close the sockets of a hub that does not start after all, including those that no door has taken over."""
        for sock in self._bound:
            sock.close()

    def check(self, settings: Settings) -> None:
        """Refuse settings under which a door that strangers can reach would no longer authenticate them."""
        for door, where in self.doors.items():
            address = Address.parse(where)
            missing = None if is_loopback(address.host) else missing_guard(door, settings)
            if missing is not None and not settings.auth.insecure:
                raise self._unguarded(door, address, missing)

    def stream(self, door: str, wanted: Address) -> socket.socket:
        """Bind a TCP door."""
        sock = self._bind(door, wanted)
        self._opened(door, wanted, sock)
        return sock

    def stream_and_datagrams(self, door: str, wanted: Address) -> tuple[socket.socket, socket.socket | None]:
        """Bind TCP and, for IPv4, UDP to one port number; if any free one will do, look until both are free."""
        if ":" in wanted.host:
            return self.stream(door, wanted), None
        address = wanted
        for _ in range(_TRIES):
            tcp = self._bind(door, address)
            chosen = Address(address.host, tcp.getsockname()[1])
            try:
                udp = _bound(chosen, socket.SOCK_DGRAM)
            except OSError as error:
                tcp.close()
                fixed = address.port and not self._take_free_ports
                if error.errno != errno.EADDRINUSE or fixed:
                    raise self._cannot_listen(door, chosen, error) from error
                address = Address(address.host, 0)
            else:
                self._opened(door, wanted, tcp, udp)
                return tcp, udp
        raise self._cannot_listen(
            door, wanted, OSError(errno.EADDRINUSE, "no port is free for TCP and UDP both")
        )

    def _bind(self, door: str, address: Address) -> socket.socket:
        try:
            return _bound(address, socket.SOCK_STREAM)
        except OSError as error:
            if not (self._take_free_ports and error.errno == errno.EADDRINUSE):
                raise self._cannot_listen(door, address, error) from error
        return self._bind(door, Address(address.host, 0))

    def _opened(self, door: str, wanted: Address, sock: socket.socket, *others: socket.socket) -> None:
        self._bound += [sock, *others]
        host, port = sock.getsockname()[:2]
        where = Address(host, port)
        if not is_loopback(host) and (missing := missing_guard(door, self._settings)) is not None:
            if not self._settings.auth.insecure:
                raise self._unguarded(door, where, missing)
            self.exposed.append(door)
        self.doors[door] = str(where)
        if wanted.port not in (0, port):
            self.moved[door] = (str(wanted), str(where))

    def _unguarded(self, door: str, where: Address, missing: str) -> ConfigError:
        key = f"listen.{door}"
        expected = (
            f"{missing}; or an address of this machine alone, such as 127.0.0.1; --insecure continues without"
        )
        return ConfigError(key, str(where), source=self._settings.source(key), expected=expected)

    def _cannot_listen(self, door: str, address: Address, error: OSError) -> ConfigError:
        if error.errno == errno.EADDRINUSE:
            free = Address(address.host, 0)
            expected = f"a free address: something listens there already; try --set listen.{door}={free}"
        else:
            expected = f"an address of this machine ({os.strerror(error.errno or 0).lower()})"
        key = f"listen.{door}"
        return ConfigError(key, str(address), source=self._settings.source(key), expected=expected)


def _bound(address: Address, kind: socket.SocketKind) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:
            # A restart must not wait for the old connections' last packets.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((address.host, address.port))
    except BaseException:
        sock.close()
        raise
    return sock
