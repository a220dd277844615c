"""The conformance kit: checks that a server, ours or any other, does what the protocol's document says.

Each protocol has a module with its cases. A case sends golden bytes (:mod:`headrace.wire.vectors`) or hostile ones to a
server it knows only by address, and compares what comes back with a sentence of the document. The kit speaks in raw
bytes and shares no codec and no client with the hub: a mistake in those would otherwise be on both sides.
"""

from __future__ import annotations

from headrace.conform.case import Basis, Case, Outcome, Result
from headrace.conform.run import PROTOCOLS, cases_of, run_cases
from headrace.conform.target import Target

__all__ = ["PROTOCOLS", "Basis", "Case", "Outcome", "Result", "Target", "cases_of", "run_cases"]
