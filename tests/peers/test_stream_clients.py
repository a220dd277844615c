"""Public clients of the Durable Streams protocol beside fyrehose, SPP and Spark, through one hub.

The clients are those of others, from their registries: JavaScript (``@durable-streams/client``), Python
(``durable-streams``), and a reactive database in JavaScript (``@durable-streams/state`` with ``@tanstack/db``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.hubprocess import HubProcess

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALLED = Path(__file__).parents[2] / ".durable-streams" / "clients"
PACKAGES = ("@durable-streams/client@0.2.7", "@durable-streams/state@0.3.1", "@tanstack/db")
PYTHON_PACKAGE = "durable-streams==0.1.0"
TOPIC = "people"
SECONDS = 120

APPEND_IN_JAVASCRIPT = """
import { DurableStream, IdempotentProducer } from "@durable-streams/client";
const stream = await DurableStream.create({ url: process.argv[2], contentType: "application/json" });
const producer = new IdempotentProducer(stream, "javascript", { autoClaim: true });
producer.append(JSON.stringify(
  { type: "person", key: "1", value: { id: "1", name: "Ada" }, headers: { operation: "insert" } }));
await producer.flush();
process.exit(0);
"""

READ_IN_JAVASCRIPT = """
import { stream } from "@durable-streams/client";
const found = await stream({ url: process.argv[2], offset: "-1", live: false });
console.log(JSON.stringify(await found.json()));
process.exit(0);
"""

READ_AS_DATABASE = """
import { createStateSchema } from "@durable-streams/state";
import { createStreamDB } from "@durable-streams/state/db";
const schema = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } };
const state = createStateSchema({ people: { schema, type: "person", primaryKey: "id" } });
const db = await createStreamDB({ streamOptions: { url: process.argv[2], contentType: "application/json" }, state });
await db.preload();
console.log(JSON.stringify([...db.collections.people.values()].map(({ name }) => name).sort()));
process.exit(0);
"""

APPEND_IN_PYTHON = """
import sys
from durable_streams import DurableStream

stream = DurableStream.connect(sys.argv[1])
stream.append({"type": "person", "key": "2", "value": {"id": "2", "name": "Grace"}, "headers": {"operation": "insert"}})
"""

READ_IN_PYTHON = """
import json, sys
from durable_streams import stream

with stream(sys.argv[1], offset="-1", live=False) as found:
    print(json.dumps(found.read_json()))
"""


@pytest.fixture(scope="module")
def clients() -> Path:
    """The folder where the clients are installed, once."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NO NPM: public stream clients are not tried. Install node and npm (apt install npm)")
    if not (INSTALLED / "complete").exists():
        INSTALLED.mkdir(parents=True, exist_ok=True)
        for command in (
            [npm, "install", "--no-audit", "--no-fund", "--prefix", str(INSTALLED), *PACKAGES],
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--target",
                str(INSTALLED / "python"),
                PYTHON_PACKAGE,
            ],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
            if done.returncode:
                pytest.skip(f"NO REGISTRY: public stream clients cannot be installed: {done.stderr[-500:]}")
        (INSTALLED / "complete").touch()
    return INSTALLED


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path) as hub:
        yield hub


def javascript(folder: Path, program: str, url: str) -> str:
    path = folder / "program.mjs"
    path.write_text(program)
    return _run(["node", str(path), url], folder)


def python(folder: Path, program: str, url: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(folder / 'python')!r})\n{program}"
    return _run([sys.executable, "-c", code, url], folder)


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def person(key: str, name: str) -> dict[str, Any]:
    value = {"id": key, "name": name}
    return {"type": "person", "key": key, "value": value, "headers": {"operation": "insert"}}


@pytest.mark.slow
def test_three_public_clients_fyrehose_spp_and_spark_share_one_stream(
    hub: HubProcess, clients: Path, spark: SparkSession
) -> None:
    url = f"http://{hub.doors['http']}/v1/stream/{TOPIC}"
    javascript(clients, APPEND_IN_JAVASCRIPT, url)
    python(clients, APPEND_IN_PYTHON, url)
    with headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp:
        spp.publish(person("3", "Edsger"), topic=TOPIC)
    with headrace.connect_sync(f"fyrehose://{hub.doors['fyrehose']}", from_seq=1) as backbone:
        told = [json.loads(next(backbone).payload) for _ in range(3)]
    servers = hub.doors["tube_tcp"]
    row = spark.createDataFrame([(TOPIC, json.dumps(person("4", "Barbara")).encode())], ["topic", "payload"])
    row.write.format("headrace").option("servers", servers).mode("append").save()
    everyone = ["Ada", "Barbara", "Edsger", "Grace"]

    def names(found: list[Any]) -> list[str]:
        return sorted(each["value"]["name"] for each in found)

    flat = [each for some in told for each in (some if isinstance(some, list) else [some])]
    assert names(flat) == ["Ada", "Edsger", "Grace"]
    assert names(json.loads(javascript(clients, READ_IN_JAVASCRIPT, url))) == everyone
    assert names(json.loads(python(clients, READ_IN_PYTHON, url))) == everyone
    assert json.loads(javascript(clients, READ_AS_DATABASE, url)) == everyone
    messages = spark.read.format("headrace").option("servers", servers).load()
    assert messages.where(f"topic = '{TOPIC}'").count() == 4
