"""Run ``headrace`` as ever, and tell whoever asks how many tasks its event loop has.

    FAULTS_TALLY=/tmp/tally python -m tests.faults.launch serve ...

Each connection to the Unix socket gets one line of JSON. A hub has no need to say this; a soak has.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from pathlib import Path

import uvloop

import headrace.cli

_loops: list[asyncio.AbstractEventLoop] = []
"""The event loops that were made; a hub has one."""


def _tell(listening: socket.socket) -> None:
    while True:
        asker, _ = listening.accept()
        with asker:
            tasks = sum(len(asyncio.all_tasks(loop)) for loop in _loops)
            asker.sendall(json.dumps({"tasks": tasks, "threads": threading.active_count()}).encode() + b"\n")


def main() -> None:
    path = Path(os.environ["FAULTS_TALLY"])
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    threading.Thread(target=_tell, args=(listening,), daemon=True).start()
    make = uvloop.new_event_loop

    def made() -> uvloop.Loop:
        _loops.append(loop := make())
        return loop

    uvloop.new_event_loop = made
    headrace.cli.main()


if __name__ == "__main__":
    main()
