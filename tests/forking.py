"""``headrace`` processes that start quickly: forked from a process that has imported everything.

    process = forked(["serve", "--data", "data"], cwd=directory, environ=os.environ, stderr=directory / "stderr.txt")
    process.pid, process.poll(), process.wait(10), process.kill(), process.send_signal(signal.SIGTERM)

    done = completed(["log", "info", "--data", "data"], seconds=60)
    done.returncode, done.stdout, done.stderr

A command spends nearly all of its start on imports, and tests start hundreds of commands. So each test process keeps a
parent process (this module, run as a program) that has imported all that a hub needs. On request the parent forks; the
child takes the given arguments, directory, environment, limits and files, and runs the command to its end. It is a
process like any other: it has its own memory, files and sockets, and can be killed.

Test process and parent exchange lines of JSON, one answer per request. The parent exits when its stdin is closed.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Forked:
    """A forked process, with the methods of :class:`subprocess.Popen` that tests use."""

    def __init__(self, parent: _Parent, pid: int) -> None:
        self.pid = pid
        self._parent = parent
        self._ending = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit status, once it has ended; negative when a signal ended it."""
        return self.wait(0) if self._over(0) else self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self._code is None:
            if not self._over(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._code = self._parent.ask({"wait": self.pid})
            os.close(self._ending)
        return self._code

    def send_signal(self, signum: int) -> None:
        """Send it a signal, if it runs."""
        if self._code is None:
            signal.pidfd_send_signal(self._ending, signum)

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.send_signal(signal.SIGKILL)

    def _over(self, timeout: float | None) -> bool:
        return self._code is None and bool(select.select([self._ending], [], [], timeout)[0])


class _Parent:
    """The process that has everything imported and forks."""

    def __init__(self, preload: Path | None) -> None:
        environ = dict(os.environ) if preload is None else {**os.environ, "LD_PRELOAD": str(preload)}
        # From the project's root, as pytest runs: both import modules under the same names.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking"], env=environ,
            cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._asking = threading.Lock()
        atexit.register(self.close)

    def ask(self, question: Mapping[str, Any]) -> int:
        """Send a request; return its answer, a number."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._asking:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            return int(stdout.readline())

    def close(self) -> None:
        """Close its stdin and wait for its exit."""
        with self._process:
            pass


_parents: dict[Path | None, _Parent] = {}
"""The parents, by the library that their children have loaded before all others."""
_making = threading.Lock()


def forked(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    stderr: Path,
    stdin: Path = Path(os.devnull),
    stdout: Path = Path(os.devnull),
    preload: Path | None = None,
) -> Forked:
    """A process that runs ``headrace`` with these arguments; what it writes is added to the files.

    ``preload`` is a library that stands between the process and the C library, as ``LD_PRELOAD`` has it.
    """
    with _making:
        if preload not in _parents:
            _parents[preload] = _Parent(preload)
        parent = _parents[preload]
    question: dict[str, Any] = {
        "arguments": list(arguments),
        "cwd": str(cwd),
        "environ": dict(environ),
        "files": [str(stdin), str(stdout), str(stderr)],
        # A child inherits limits from its parent, which does not have those that a test sets for itself.
        "limits": [(kind, resource.getrlimit(kind)) for kind in _LIMITS],
    }
    return Forked(parent, parent.ask(question))


def completed(
    arguments: Sequence[str], *, stdin: bytes = b"", seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run ``headrace`` to its end, here and with this environment; kill it when it takes longer."""
    with tempfile.TemporaryDirectory(prefix="command-") as directory:
        given, out, err = (Path(directory, name) for name in ("stdin", "stdout", "stderr"))
        given.write_bytes(stdin)
        process = forked(arguments, cwd=Path.cwd(), environ=os.environ, stdin=given, stdout=out, stderr=err)
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        return subprocess.CompletedProcess(["headrace", *arguments], code, out.read_bytes(), err.read_bytes())


def _main() -> None:
    from typer.testing import CliRunner

    import headrace.cli
    import headrace.net.server.process
    import headrace.web  # and with them all that a hub is made of

    # Clients, and what is imported only when a command runs.
    for name in headrace.__all__:
        getattr(headrace, name)
    CliRunner().invoke(headrace.cli.app, ["pub", "--url", "tube://"])

    # Ctrl-C is for the test process, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Children share these objects' pages until their garbage collector would write to them.
    gc.collect()
    gc.freeze()
    while line := sys.stdin.readline():
        question = json.loads(line)
        if "wait" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _become(question)
                headrace.cli.main()
        print(answer, flush=True)


def _become(question: dict[str, Any]) -> None:
    """Turn this child into the process that was requested."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(question["cwd"])
    os.environ.clear()
    os.environ.update(question["environ"])
    for kind, (soft, hard) in question["limits"]:
        resource.setrlimit(kind, (soft, hard))
    for standard, path in enumerate(question["files"]):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if standard else os.O_RDONLY
        used = os.open(path, flags, 0o644)
        os.dup2(used, standard)
        os.close(used)
    # The old one is for requests, and has a buffer.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- for the life of the process
    sys.argv = ["headrace", *question["arguments"]]


if __name__ == "__main__":
    _main()
