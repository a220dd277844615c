"""What a job failed with, as a sentence of ours: Spark's own account of it is a page long."""

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
"""The line that a trace of Python ends with."""
_CALLED: Final = "An error occurred while calling "
"""What py4j puts before what Java raised."""
_THROWN: Final = re.compile(r"^: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^\s*Caused by: (?:[\w$]+\.)*([\w$]+(?:: .+)?)$", re.MULTILINE)


def failure_of(name: str, failure: BaseException | None, told: str) -> HeadraceError:
    """What a query failed with: an error of ours if one is in there; else Python's, or Spark's first line."""
    if isinstance(failure, HeadraceError):
        return _named(name, failure)
    found = _OURS.findall(told)
    if found:
        kind, sentence = found[-1]
        if kind == LostRangeError.__name__:
            # The option is the job's own to set.
            sentence = sentence.removesuffix(GO_ON) + (
                f". To go on behind them, once: headrace pipeline run {name} --param fail_on_data_loss=false "
                f"(headrace up --param {name}.fail_on_data_loss=false)"
            )
        error = UsageError if kind in ("UsageError", "ConfigError") else PeerError
        return error(f"{name}: {sentence}")
    if raised := _RAISED.findall(told.rpartition(_TRACE)[2]) if _TRACE in told else []:
        return PeerError(f"{name}: {raised[0]}")
    if told.startswith(_CALLED) and (thrown := _THROWN.search(told)):
        first = thrown[1]
    else:
        first = next((line for line in told.splitlines() if line.strip()), "the query failed")
    if first.rstrip().endswith(":") and (causes := _CAUSE.findall(told)):
        # Whoever waited for something else says no more than that it failed.
        first = f"{first.rstrip()} {causes[-1]}"
    return PeerError(f"{name}: {first}")


def is_ours(failure: BaseException | None, told: str) -> bool:
    """Whether the sentence says all that there is to know: it is an error that was raised on purpose."""
    return isinstance(failure, HeadraceError) or _OURS.search(told) is not None


def told(failure: BaseException) -> str:
    """A failure as text; of Python's own kinds the kind says more than the words do (``KeyError: 'x'``)."""
    kind = type(failure)
    words = str(failure)
    return f"{kind.__name__}: {words}" if kind.__module__ == "builtins" else words


@contextlib.contextmanager
def plainly(name: str) -> Iterator[None]:
    """Have errors of a job's start say which job."""
    try:
        with as_sentences(name):
            yield
    except HeadraceError as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise _named(name, error) from error
    except (OSError, pa.ArrowException) as error:
        # A file or a folder that is not as it should be: no mistake of ours.
        raise StorageError(f"{name}: {error}") from error


@contextlib.contextmanager
def as_sentences(name: str, *, in_full: bool = True) -> Iterator[None]:
    """Have what Spark raises, or its JVM's end, be told as a sentence of ours.

    What nobody foresaw is told ``in_full`` besides; not where the JVM has done so itself.
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
