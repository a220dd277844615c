"""The hub that has a log open, if one has: who it is, and what it answers at its http door.

The lock tells that somebody writes, the lock file who, and where its doors are. Tools read a live log's files beside
the hub; how far it is committed, only the hub can say.
"""

from __future__ import annotations

import fcntl
import http.client
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.cli.access import Client, unknown
from headrace.config import Address
from headrace.errors import HeadraceError, RefusedError, UnreachableError, UsageError
from headrace.log.files import holder

_ANSWER_SECONDS: Final = 5.0
_SEAL_SECONDS: Final = 300.0
"""Sealing is disk work: as long as a segment takes on a slow one."""


@dataclass(frozen=True, slots=True)
class LiveHub:
    """A process that has a log open for writing."""

    pid: int | None
    doors: dict[str, str]
    client: Client | None = None
    """Who we are to it."""

    def __str__(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"

    def head(self) -> int | None:
        """How far the log is committed; ``None`` where the hub cannot be asked."""
        try:
            head = self._call("GET", "/api/status", _ANSWER_SECONDS).get("head")
        except HeadraceError:
            return None
        return head if isinstance(head, int) else None

    def seal(self) -> int:
        """Have it seal what is committed; return how many segments that made."""
        sealed = self._call("POST", "/api/log/seal", _SEAL_SECONDS).get("sealed")
        return sealed if isinstance(sealed, int) else 0

    def vouch(self) -> None:
        """Have a node of a cluster go on with what it has."""
        self._call("POST", "/api/cluster/vouch", _ANSWER_SECONDS)

    def _call(self, method: str, path: str, seconds: float) -> dict[str, Any]:
        if "http" not in self.doors:
            raise UsageError(
                f"{self} has the log open and no http door to ask at: stop it, or open listen.http"
            )
        address = self.doors["http"]
        where = Address.parse(address)
        connection = http.client.HTTPConnection(where.host, where.port, timeout=seconds)
        try:
            headers = {"X-Headrace": "1"}
            if self.client is not None:
                headers["Authorization"] = self.client.basic
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            answer = msgspec.json.decode(response.read(), type=dict[str, Any])
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"http://{address}", str(error) or type(error).__name__) from None
        except msgspec.DecodeError:
            raise UnreachableError(f"http://{address}", "what answers there is not a hub") from None
        finally:
            connection.close()
        if response.status == http.client.UNAUTHORIZED:
            raise RefusedError(
                "auth", f"the hub at http://{address} does not let us in: {unknown(self.client)}"
            )
        if response.status != http.client.OK:
            raise RefusedError(str(response.status), str(answer.get("error", response.reason)))
        return answer


def find(directory: Path, client: Client | None = None) -> LiveHub | None:
    """Who writes the log in ``directory``, if anybody does."""
    path = directory / "lock"
    told = holder(path)
    # A hub that stops empties the file, one that is killed cannot: then only the lock itself tells. It is not tried
    # otherwise, because a hub that starts at that moment would find it taken.
    if not told or not _locked(path):
        return None
    pid, doors = told.get("pid"), told.get("doors")
    return LiveHub(
        pid if isinstance(pid, int) else None,
        {str(door): str(address) for door, address in doors.items()} if isinstance(doors, dict) else {},
        client,
    )


def _locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
