"""Errors of jobs in one sentence: Spark's own report of a failure is a page long."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from headrace.errors import HeadraceError, LostRangeError, PeerError, StorageError, UsageError
from headrace.spark.source.range_rows import GO_ON

logger = logging.getLogger("headrace")

_OURS: Final = re.compile(r"^headrace\.errors\.(\w+): (.+)$", re.MULTILINE)
_TRACE: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Interrupt): .+)$", re.MULTILINE)
"""The last line of a Python traceback."""
_CALLED: Final = "An error occurred while calling "
"""The beginning of py4j's errors."""
_THROWN: Final = re.compile(r"^: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^\s*Caused by: (?:[\w$]+\.)*([\w$]+(?:: .+)?)$", re.MULTILINE)

_ENDED: Final = frozenset({"Broken pipe", "Stream closed", "Connection reset", "Connection reset by peer"})
"""All that Spark says when a Python process dies that plans a query; those that do tasks are replaced."""


def failure_of(name: str, failure: BaseException | None, report: str) -> HeadraceError:
    """Find the cause of a query's failure: an error of ours, else Python's, else the first line of Spark's report."""
    if isinstance(failure, HeadraceError):
        return _named(name, failure)
    found = _OURS.findall(report)
    if found:
        kind, sentence = found[-1]
        if kind == LostRangeError.__name__:
            # The job sets the option, by its own parameter.
            sentence = sentence.removesuffix(GO_ON) + (
                f". To skip them, once: headrace pipeline run {name} --param fail_on_data_loss=false "
                f"(headrace up --param {name}.fail_on_data_loss=false)"
            )
        error = UsageError if kind in ("UsageError", "ConfigError") else PeerError
        return error(f"{name}: {sentence}")
    if raised := _RAISED.findall(report.rpartition(_TRACE)[2]) if _TRACE in report else []:
        return PeerError(f"{name}: {raised[0]}")
    if report.startswith(_CALLED) and (thrown := _THROWN.search(report)):
        first = thrown[1]
    else:
        first = next((line for line in report.splitlines() if line.strip()), "the query failed")
    if first.rstrip().endswith(":") and (causes := _CAUSE.findall(report)):
        # The outer error gives no reason.
        first = f"{first.rstrip()} {causes[-1]}"
    if first.strip() in _ENDED:
        first = f"a Python process that plans for Spark has ended: killed, perhaps for want of memory ({first.strip()})"
    return PeerError(f"{name}: {first}")


def is_ours(failure: BaseException | None, report: str) -> bool:
    """Whether the failure is an error of ours, which one sentence explains."""
    return isinstance(failure, HeadraceError) or _OURS.search(report) is not None


def failure_text(failure: BaseException) -> str:
    """Return a failure as text, with the type of a built-in error (``KeyError: 'x'``)."""
    kind = type(failure)
    return f"{kind.__name__}: {failure}" if kind.__module__ == "builtins" else str(failure)


@contextlib.contextmanager
def naming_job(name: str) -> Iterator[None]:
    """Put a job's name before the errors of its start."""
    try:
        with translating_spark(name):
            yield
    except HeadraceError as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise _named(name, error) from error
    except (OSError, pa.ArrowException) as error:
        # A problem of a file or a folder, not of the code.
        raise StorageError(f"{name}: {error}") from error


@contextlib.contextmanager
def translating_spark(name: str, *, in_full: bool = True) -> Iterator[None]:
    """Translate what Spark raises, or the end of its JVM, into an error of one sentence.

    An unforeseen failure is logged ``in_full`` too, unless the JVM has done so itself.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        if in_full and not is_ours(None, str(error)):
            logger.error("%s failed: %s", name, error)
        raise failure_of(name, None, str(error)) from error


def _named(name: str, failure: HeadraceError) -> HeadraceError:
    error = UsageError if isinstance(failure, UsageError) else PeerError
    return error(f"{name}: {failure}")
