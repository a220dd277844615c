from __future__ import annotations

import json
import resource
import subprocess
import sys

BURSTS = """
import json, resource
from headrace.net.heap import keep_memory

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

burst()
print(json.dumps([told, burst()]))
"""


def test_memory_that_was_used_is_not_asked_for_again() -> None:
    done = subprocess.run([sys.executable, "-c", BURSTS], check=True, capture_output=True)
    told, faults = json.loads(done.stdout)
    # Without it, nearly every page of the second 50 MiB is fetched anew.
    assert not told or faults < (50 << 20) // resource.getpagesize() / 10
