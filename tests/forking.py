"""``headrace`` processes that start quickly: forked from a process that has imported everything.

    process = forked(["serve", "--data", "data"], cwd=directory, environ=os.environ, stderr=directory / "stderr.txt")
    process.pid, process.poll(), process.wait(10), process.kill(), process.send_signal(signal.SIGTERM)

    done = completed(["log", "info", "--data", "data"], seconds=60)
    done.returncode, done.stdout, done.stderr

    with piped("sub", "--url", url) as process:
        process.stdout.readline(), process.communicate(timeout=60), process.returncode

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
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Forked:
    """A forked process, with the methods of :class:`subprocess.Popen` that tests use."""

    def __init__(self, parent: _Parent, pid: int) -> None:
        self.pid = pid
        self._parent = parent
        self._ending = os.pidfd_open(pid)
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit status, once somebody has waited for it."""
        return self._code

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

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.send_signal(signal.SIGKILL)

    def _over(self, timeout: float | None) -> bool:
        return self._code is None and bool(select.select([self._ending], [], [], timeout)[0])


class Piped(Forked):
    """A forked process whose standard files are pipes, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, process: Forked, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        super().__init__(process._parent, process.pid)
        os.close(process._ending)
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr

    def communicate(self, given: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Write to its stdin and close it; return all that it prints until it ends."""
        found: dict[IO[bytes], bytes] = {self.stdout: b"", self.stderr: b""}
        readers = [
            threading.Thread(target=lambda file=file: found.update({file: file.read()}), daemon=True)
            for file in found
            if not file.closed
        ]
        for reader in readers:
            reader.start()
        with self.stdin:
            self.stdin.write(given)
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return found[self.stdout], found[self.stderr]


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
    group: bool = False,
    soft_limits: Mapping[int, int] | None = None,
) -> Forked:
    """A process that runs ``headrace`` with these arguments; what it writes is added to the files.

    ``preload`` is a library that stands between the process and the C library, as ``LD_PRELOAD`` has it. ``group``
    makes it the leader of a process group. ``soft_limits`` are the process's own.
    """
    with _making:
        if preload not in _parents:
            _parents[preload] = _Parent(preload)
        parent = _parents[preload]
    question: dict[str, Any] = {
        "arguments": ["headrace", *arguments],
        "cwd": str(cwd),
        "environ": dict(environ),
        "files": [str(cwd / file) for file in (stdin, stdout, stderr)],
        "group": group,
        # A child inherits limits from its parent, which does not have those that a test sets for itself.
        "limits": [(kind, _limit(kind, soft_limits or {})) for kind in LIMITS],
    }
    return Forked(parent, parent.ask(question))


def _limit(kind: int, soft_limits: Mapping[int, int]) -> tuple[int, int]:
    soft, hard = resource.getrlimit(kind)
    return soft_limits.get(kind, soft), hard


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


Process = Any
"""A :class:`Piped`, or a :class:`subprocess.Popen` of bytes."""


@contextmanager
def piped(*arguments: object, cwd: Path | None = None) -> Iterator[Process]:
    """Run ``headrace`` with its standard files in pipes; kill it if it still runs in the end.

    ``HEADRACE_SOAK=1`` starts it as users do.
    """
    words = [str(argument) for argument in arguments]
    with ExitStack() as closing:
        if os.environ.get("HEADRACE_SOAK", "0") not in ("", "0"):
            line, pipe = [sys.executable, "-m", "headrace", *words], subprocess.PIPE
            started = subprocess.Popen(line, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe)
            closing.enter_context(started)
            closing.callback(started.kill)
            yield started
            return
        ends = [os.pipe() for _ in range(3)]
        stdin, stdout, stderr = ends
        # The parent opens its own ends of them, by the names they have here.
        names = [Path(f"/proc/{os.getpid()}/fd/{end}") for end in (stdin[0], stdout[1], stderr[1])]
        ours = [os.fdopen(stdin[1], "wb"), os.fdopen(stdout[0], "rb"), os.fdopen(stderr[0], "rb")]
        for file in ours:
            closing.callback(_close, file)
        process = forked(
            words, cwd=cwd or Path.cwd(), environ=os.environ, stdin=names[0], stdout=names[1], stderr=names[2]
        )
        for end in (stdin[0], stdout[1], stderr[1]):
            os.close(end)
        running = Piped(process, *ours)
        closing.callback(running.wait)
        closing.callback(running.kill)
        yield running


def _close(file: IO[bytes]) -> None:
    # What is left to write is for nobody.
    with suppress(BrokenPipeError):
        file.close()


def _main() -> None:
    from typer.testing import CliRunner

    import headrace.cli.app
    import headrace.net.server.process
    import headrace.web  # and with them all that a hub is made of

    # Clients, and what is imported only when a command runs.
    for name in headrace.__all__:
        getattr(headrace, name)
    CliRunner().invoke(headrace.cli.app.app, ["pub", "--url", "tube://"])

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
            # Before the answer: whoever asks may close its own ends of pipes then.
            files = [
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND if standard else os.O_RDONLY, 0o644)
                for standard, path in enumerate(question["files"])
            ]
            answer = os.fork()
            if answer == 0:
                become(question, files)
                run(headrace.cli.main)
            for file in files:
                os.close(file)
        print(answer, flush=True)


def run(main: Callable[[], object]) -> NoReturn:
    """Run a program in this child, and exit as Python does, but for freeing each object.

    That would write to every page which the child shares with its parent, and so copy it.
    """
    code: object = None
    try:
        main()
    except SystemExit as exit_:
        code = exit_.code
    except BaseException:  # noqa: BLE001 -- as Python itself does
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(int(code or 0) & 0xFF)


def become(question: dict[str, Any], files: Sequence[int]) -> None:
    """Turn this child into the process that was requested."""
    if question["group"]:
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(question["cwd"])
    os.environ.clear()
    os.environ.update(question["environ"])
    for kind, (soft, hard) in question["limits"]:
        resource.setrlimit(kind, (soft, hard))
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    # The old stdin is for requests, and has a buffer; whether the others are buffered depends on what they are.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- for the life of the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = list(question["arguments"])


if __name__ == "__main__":
    _main()
