"""The hub that has a log open, if there is one: its process, and what it answers at its http door.

The lock shows that a process writes the log; the lock file names it and its doors. Tools read the files of a live log
beside the hub, but only the hub knows how far the log is committed.
"""

from __future__ import annotations

import http.client
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.cli.hubs.access import Credentials, remedy_for_refusal
from headrace.config import Address
from headrace.errors import HeadraceError, RefusedError, UnreachableError, UsageError
from headrace.log.files import holder
from headrace.platforms import lock_file

_ANSWER_SECONDS: Final = 5.0
_SEAL_SECONDS: Final = 300.0
"""Sealing is disk work: this is enough for a segment on a slow disk."""


@dataclass(frozen=True, slots=True)
class RunningHub:
    """A process that has a log open for writing."""

    pid: int | None
    doors: dict[str, str]
    credentials: Credentials | None = None
    certificate: str | None = None
    """The file of the certificate that its http door shows, if that speaks TLS."""

    def __str__(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"

    def status(self) -> dict[str, Any]:
        """Ask for its status."""
        return self._call("GET", "/api/status", _ANSWER_SECONDS)

    def head(self) -> int | None:
        """Ask for the head of the log; ``None`` if the hub does not answer."""
        try:
            head = self.status().get("head")
        except HeadraceError:
            return None
        return head if isinstance(head, int) else None

    def seal(self) -> int:
        """Ask it to seal what is committed; return the number of new segments."""
        sealed = self._call("POST", "/api/log/seal", _SEAL_SECONDS).get("sealed")
        return sealed if isinstance(sealed, int) else 0

    def vouch(self) -> None:
        """Ask a node of a cluster to continue with the messages it has."""
        self._call("POST", "/api/cluster/vouch", _ANSWER_SECONDS)

    def _call(self, method: str, path: str, seconds: float) -> dict[str, Any]:
        if "http" not in self.doors:
            raise UsageError(
                f"{self} has the log open and no http door to ask at: stop it, or open listen.http"
            )
        address = self.doors["http"]
        where = Address.parse(address)
        connection = http.client.HTTPConnection(where.host, where.port, timeout=seconds)
        if self.certificate is not None:
            from headrace.client.tls import TlsFiles

            # It is expected to be this very hub, whatever name stands in its certificate.
            context = TlsFiles(pin=Path(self.certificate)).context()
            connection = http.client.HTTPSConnection(where.host, where.port, timeout=seconds, context=context)
        try:
            headers = {"X-Headrace": "1"}
            if self.credentials is not None:
                headers["Authorization"] = self.credentials.basic
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
            remedy = remedy_for_refusal(self.credentials)
            raise RefusedError("auth", f"the hub at http://{address} does not let us in: {remedy}")
        if response.status != http.client.OK:
            raise RefusedError(str(response.status), str(answer.get("error", response.reason)))
        return answer


def find_running_hub(directory: Path, credentials: Credentials | None = None) -> RunningHub | None:
    """Find the process that writes the log in ``directory``, if there is one."""
    path = directory / "lock"
    found = holder(path)
    # A hub that stops empties the file, a killed one cannot: then only the lock itself tells. With an empty file the
    # lock is not tried, because a hub that starts at that moment would find it taken.
    if not found or not _locked(path):
        return None
    pid, doors, tls = found.get("pid"), found.get("doors"), found.get("tls")
    speaks_tls = isinstance(tls, dict) and "http" in tls.get("doors", ())
    return RunningHub(
        pid if isinstance(pid, int) else None,
        {str(door): str(address) for door, address in doors.items()} if isinstance(doors, dict) else {},
        credentials,
        str(tls["cert"]) if isinstance(tls, dict) and speaks_tls else None,
    )


def _locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        lock_file(fd, shared=True)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
