from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from headrace.net.server.machine import malloc_tuning

BURSTS = """
import json, resource, threading
from headrace.net.server.machine.malloc_tuning import keep_memory

told = keep_memory()
part = bytes(256 << 10)

def burst():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = []
    for _ in range(25):
        message = bytearray()
        for _ in range(8):
            message += part
        held.append(message)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

burst()
faults = burst()
before = resident()
threads = [threading.Thread(target=burst) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([told, faults, resident() - before]))
"""


def bursts(**environ: str) -> tuple[bool, int, int]:
    """Whether memory is kept, pages fetched for what was used before, pages kept of what threads have used."""
    unsaid = {name: value for name, value in os.environ.items() if name not in malloc_tuning._VARIABLES}
    command = [sys.executable, "-c", BURSTS]
    done = subprocess.run(command, check=True, capture_output=True, env={**unsaid, **environ})
    told, faults, grown = json.loads(done.stdout)
    return told, faults, grown


def test_memory_that_was_used_is_kept_up_to_a_bound() -> None:
    told, faults, grown = bursts()
    page = resource.getpagesize()
    # Without it, nearly every page of the second 50 MiB is fetched anew.
    assert not told or faults < (50 << 20) // page / 10
    # What eight threads have used at a time, 400 MiB, is not kept by each of them.
    assert grown < (300 << 20) // page


def test_whoever_starts_the_hub_may_say_otherwise() -> None:
    assert not bursts(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="65536")[0]
