"""The values of options: texts as Spark gives them, checked, and turned into what they mean.

An option that is not known is refused, with the closest one that is; so is one that would put a secret into plans.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from headrace.config.sources import KEY_VARIABLE
from headrace.errors import HeadraceError, LimitError, UsageError
from headrace.message import MAX_SEQUENCE, SCHEMA

OffsetOption = Literal["earliest", "latest"] | int
"""A beginning or an end: a word, or a sequence number."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark passes on although they are its own."""

_SECRET: Final = re.compile(
    r"^key$|secret|password|passwd|token|credential|(api|access|client|private)[-_.]?key|jaas"
)
"""Option names that suggest a secret."""

_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "servers",
    "bootstrap.servers": "servers",
    "host": "servers",
    "url": "servers",
    "subscribe": "topic",
    "subscribepattern": "topic",
    "assign": "topic",
    "filter": "where",
    "endingoffsetsbytimestamp": "endingTimestamp",
}
"""Names of other sources, Kafka's above all, that are not close to ours."""

_MOST_DIGITS: Final = 20
"""Most digits of a sequence number."""
_MOST_SHOWN: Final = 64
"""Characters of a predicate that an error repeats."""
_MOST_TIME: Final = 253_402_300_800_000_000
"""µs: the year 10000. A larger value is in another unit."""


class GivenOptions:
    """Options as Spark gives them, and their values as they are meant."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._options:
            if name in names or name in _SPARKS_OWN:
                continue
            if name == "path":
                raise UsageError(
                    "there is no path: set the options servers and topic, and leave the arguments of load(), save() "
                    "or start() out"
                )
            if _SECRET.search(name):
                raise UsageError(
                    f"option {name!r} would appear in plans and logs: put the key into a file and name it with "
                    f"keyFile, or into {KEY_VARIABLE} in the environment of driver and executors"
                )
            raise UsageError(_unknown(name, names))

    def has(self, name: str) -> bool:
        """Return whether an option is given."""
        return name.lower() in self._options

    def text(self, name: str) -> str | None:
        """Return an option's text; an empty one is a mistake."""
        value = self._options.get(name.lower())
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty: leave it out, or give it a value")
        return value

    def topic_pattern(self, name: str) -> str | None:
        """Return a pattern of topics."""
        from headrace.hub.topic_test import MAX_SEARCHED, MAX_WILDCARDS, check_topic_pattern

        value = self.text(name)
        if value is None:
            return None
        try:
            check_topic_pattern(value)
        except LimitError as error:
            raise UsageError(
                f"{name} is no pattern: {error.field}: {error.value}. A pattern has at most {MAX_WILDCARDS} wildcards, "
                f"* for any characters but / and ** for any characters, and {MAX_SEARCHED} characters from the first on"
            ) from None
        return value

    def number(self, name: str, *, least: int = 1) -> int | None:
        """Return a whole number."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not least <= number < 1 << 62:
            raise UsageError(f"{name} = {value!r}: expected a whole number from {least} on")
        return number

    def seconds(self, name: str, default: float) -> float:
        """Return a time span in seconds."""
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s|m|h)?", value.strip())
        if found is None:
            raise UsageError(f"{name} = {value!r}: expected seconds, or a time such as 500ms, 60s or 15m")
        return float(found[1]) * _UNITS[found[2] or "s"]

    def truth(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise UsageError(f"{name} = {value!r}: expected true or false")
        return value.strip().lower() == "true"

    def place(self, name: str, words: Sequence[str]) -> OffsetOption | None:
        """Return a place in the sequence: one of some words, or a number."""
        value = self.text(name)
        if value is None:
            return None
        word = value.strip().lower().replace("now", "latest")
        if word in words:
            return word  # type: ignore[return-value]
        if word.isdecimal() and len(word) <= _MOST_DIGITS and 1 <= int(word) <= MAX_SEQUENCE:
            return int(word)
        raise UsageError(f"{name} = {value!r}: expected {', '.join(words)} or a sequence number from 1 on")

    def time(self, name: str) -> int | None:
        """Return a time in µs since 1970."""
        value = self.text(name)
        if value is None:
            return None
        try:
            if value.strip().isdecimal():
                time = int(value) * 1000
            else:
                time = micros(datetime.fromisoformat(value.strip()))
        except ValueError:
            time = -1
        if not 0 <= time < _MOST_TIME:
            raise UsageError(
                f"{name} = {value!r}: expected ms since 1970 or a time such as 2026-01-31T12:00:00+00:00"
            )
        return time

    def time_of_each(self, name: str) -> int | None:
        """Parse Kafka's JSON of topics, partitions and times; a log is one partition, so there is one time."""
        value = self.text(name) or ""
        try:
            each = json.loads(value)
        except (ValueError, RecursionError):
            return self.time(name)
        while isinstance(each, dict) and len(set(map(json.dumps, each.values()))) == 1:
            each = next(iter(each.values()))
        if type(each) is not int:
            raise UsageError(
                f"{name} = {value!r}: a log is one partition, so expected one time for all topics"
            )
        self._options[name.lower()] = str(each)
        return self.time(name)

    def columns(self, name: str) -> tuple[str, ...] | None:
        """Return columns of the envelope."""
        value = self.text(name)
        if value is None:
            return None
        columns = tuple(column.strip() for column in value.split(","))
        known = SCHEMA.names
        for place, column in enumerate(columns):
            if column not in known:
                raise UsageError(f"{name}: {_unknown(column, {each: each for each in known}, what='column')}")
            if column in columns[:place]:
                raise UsageError(f"{name} has {column} twice")
        return columns


def micros(moment: datetime) -> int:
    """Convert a time to µs since 1970; without a zone it is UTC.

    >>> micros(datetime.fromisoformat("1970-01-01T00:00:01.000001"))
    1000001
    """
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def _unknown(name: str, names: Mapping[str, str], *, what: str = "option") -> str:
    close = difflib.get_close_matches(name, names, 1)
    if (ours := _ELSEWHERE.get(name)) is not None and ours.lower() in names:
        close = [ours.lower()]
    hint = f"did you mean {names[close[0]]}?" if close else f"there are {', '.join(names.values())}"
    return f"there is no {what} {name!r}: {hint}"


def parse_predicates(text: str) -> str:
    """Parse the option ``where`` into the link's form.

    A text stands for equality, two numbers for a range.

    >>> parse_predicates('{"region": "eu", "speed": [80, 120]}')
    '{"region": {"use": 1, "strval": "eu"}, "speed": {"use": 2, "low": 80, "high": 120}}'
    """
    from headrace.wire.link.requests import parse_where

    try:
        where = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f'where: expected JSON such as {{"city": "Praha", "x": [0, 10]}} ({error}); for alternatives,'
            " filter the rows by .where()"
        ) from None
    if not isinstance(where, dict):
        raise UsageError("where: expected a JSON object of attributes and conditions")
    fields = {name: _field(name, predicate) for name, predicate in where.items()}
    try:
        parse_where(fields)
    except HeadraceError as error:
        raise UsageError(f"where: {error}") from None
    return json.dumps(fields)


def _field(name: str, predicate: object) -> object:
    match predicate:
        case str(text):
            return {"use": 1, "strval": text}
        case [low, high] if _is_number(low) and _is_number(high):
            return {"use": 2, "low": low, "high": high}
        case {"use": 1 | 2 | 3}:
            return predicate
    # Suggest how to write what was meant.
    text = json.dumps(predicate, ensure_ascii=False)
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    number = f" (for just that number [{shown}, {shown}])" if _is_number(predicate) else ""
    values = predicate if isinstance(predicate, list) and shown == text else []
    if len(values) < 2 or not all(isinstance(each, str) or _is_number(each) for each in values):
        values = ["a", "b"]
    one_of = {"use": 3, "extra": json.dumps({"in": values}, ensure_ascii=False)}
    raise UsageError(
        f"where: {name} = {shown}: expected a text, or [low, high]{number}, or a predicate of the SDK, for one of "
        f"several {json.dumps(one_of, ensure_ascii=False)}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
