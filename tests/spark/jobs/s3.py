"""An S3 server on the loopback interface, as a process of its own, that can be told to refuse what it is asked.

Apart from the test's process: pyarrow may hold the interpreter while it waits for an answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

BUCKET = "mill"
KEYS = {
    "AWS_ACCESS_KEY_ID": "the-id",
    "AWS_SECRET_ACCESS_KEY": "the-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}

_SERVER = """
import sys
from pathlib import Path
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

refused = Path(sys.argv[1])
s3 = DomainDispatcherApplication(create_backend_app)

def kind(asked):
    if asked["REQUEST_METHOD"] == "DELETE" or "delete" in asked["QUERY_STRING"].split("&"):
        return "delete"
    if asked["REQUEST_METHOD"] not in ("PUT", "POST"):
        return "read"
    if "/_delta_log/" in asked["PATH_INFO"]:
        return "commit"
    return "upload" if ".parquet" in asked["PATH_INFO"] else "other"

def answer(asked, start):
    named = refused / kind(asked)
    if named.with_suffix(".lost").exists():
        # It is done, and nobody is told.
        named.with_suffix(".lost").unlink()
        list(s3(asked, lambda *_: None))
    elif not named.exists():
        return s3(asked, start)
    else:
        asked["wsgi.input"].read(int(asked.get("CONTENT_LENGTH") or 0))
    start("403 Forbidden", [("Content-Type", "application/xml")])
    return [b"<Error><Code>AccessDenied</Code><Message>not now</Message></Error>"]

server = make_server("127.0.0.1", 0, answer, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


class S3:
    """A bucket, and what is refused."""

    def __init__(self, address: str, refused: Path) -> None:
        self.address = address
        self._refused = refused
        self.system = fs.S3FileSystem(endpoint_override=address, scheme="http", allow_bucket_creation=True)
        self.system.create_dir(BUCKET)

    def uri(self, path: str) -> str:
        """A place in the bucket, as people name it."""
        return f"s3://{BUCKET}/{path}?scheme=http&endpoint_override={self.address}"

    def names(self, path: str) -> list[str]:
        """All objects below a place, those without content aside."""
        selector = fs.FileSelector(f"{BUCKET}/{path}", recursive=True, allow_not_found=True)
        found = self.system.get_file_info(selector)
        return sorted(each.path.removeprefix(f"{BUCKET}/{path}/") for each in found if each.is_file)

    @contextmanager
    def refusing(self, kind: str) -> Iterator[None]:
        """Refuse to ``read`` or to ``delete``, or to take an ``upload`` of data or a ``commit``; ``commit.lost`` takes
        one, but says that it did not."""
        (self._refused / kind).touch()
        try:
            yield
        finally:
            (self._refused / kind).unlink(missing_ok=True)


@contextmanager
def s3_server(directory: Path) -> Iterator[S3]:
    """A server whose keys are in the environment, as :data:`KEYS` has them."""
    refused = directory / "refused"
    refused.mkdir(parents=True)
    with (directory / "s3.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(refused)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **KEYS},
        )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, (directory / "s3.log").read_text()
        yield S3(f"127.0.0.1:{port}", refused)
    finally:
        server.kill()
        server.communicate()
