"""The settings as one frozen whole: gathered from what sources give, described, and found by their keys.

What there is to be set is :mod:`headrace.config.sections`; everything here follows from the entries there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.config.sections import (
    Auth,
    Cluster,
    Dispatcher,
    Fyrehose,
    Limits,
    Listen,
    Log,
    Matching,
    Node,
    Pipeline,
    Services,
)
from headrace.config.value_types import Kind, MemberError, Secret, plain
from headrace.errors import ConfigError


class Given(NamedTuple):
    """A value that some source has for a key, not yet read."""

    key: str
    value: object
    source: str
    typed: bool = False
    """Whether it is text of a command line or variable, which may be TOML."""


class Described(NamedTuple):
    """A setting as a person reads it, secrets masked."""

    key: str
    value: str
    source: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, by section: ``settings.log.fsync``."""

    listen: Listen = field(default_factory=Listen)
    log: Log = field(default_factory=Log)
    services: Services = field(default_factory=Services)
    fyrehose: Fyrehose = field(default_factory=Fyrehose)
    auth: Auth = field(default_factory=Auth)
    matching: Matching = field(default_factory=Matching)
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    pipeline: Pipeline = field(default_factory=Pipeline)
    node: Node = field(default_factory=Node)
    cluster: Cluster = field(default_factory=Cluster)
    limits: Limits = field(default_factory=Limits)
    _sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def source(self, key: str) -> str:
        """Where a setting's value came from: a file, a variable, an option, or ``default``."""
        find(key, "source()")
        return self._sources.get(key, "default")

    def override(self, values: Mapping[str, object], *, source: str) -> Settings:
        """The same settings with some changed, by dotted key; ``source`` names the option that says so."""
        return self.gather(Given(key, plain(value, reveal=True), source) for key, value in values.items())

    def gather(self, given: Iterable[Given]) -> Settings:
        """These settings with all that is given, a later value stronger than an earlier."""
        changed: dict[str, dict[str, Any]] = {}
        sources = dict(self._sources)
        for one in given:
            for key, value in _read(one):
                section, name, *entry = key.split(".", 2)
                names = changed.setdefault(section, {})
                if entry:
                    table = names.get(name, getattr(getattr(self, section), name))
                    value = MappingProxyType({**table, entry[0]: value})
                names[name] = value
                sources[key] = one.source
        sections = {section: replace(getattr(self, section), **names) for section, names in changed.items()}
        return replace(self, **sections, _sources=MappingProxyType(sources))

    def describe(self) -> Iterator[Described]:
        """Each setting as a person reads it, the entries of tables one by one."""
        for key, entry in _SETTINGS.items():
            value = self._get(key)
            if entry.kind.entry is None:
                yield Described(key, entry.kind.show(value), self.source(key), entry.doc)
                continue
            for name, member in value.items():
                whole = f"{key}.{name}"
                yield Described(whole, entry.kind.show(member), self.source(whole), entry.doc)

    def as_dict(self, *, reveal: bool = False) -> dict[str, Any]:
        """Plain values by dotted key, as JSON has them and :meth:`override` takes them; secrets only if asked."""
        return {key: plain(self._get(key), reveal=reveal) for key in _SETTINGS}

    def _get(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)


def reference() -> str:
    """Every setting as Markdown: a heading and a table for each section."""
    lines = []
    for section, made in _SECTIONS.items():
        lines += [f"### {section}", "", str(made.__doc__), ""]
        lines += ["| setting | default | value | meaning |", "|---|---|---|---|"]
        for key, entry in _SETTINGS.items():
            if key.startswith(f"{section}."):
                lines.append(f"| `{key}` | {entry.default} | {entry.kind.expected} | {entry.doc} |")
        lines.append("")
    return "\n".join(lines)


def find(key: str, source: str, spell: Callable[[str], str] = str) -> tuple[Kind[Any], str]:
    """The kind of a setting and, where the key goes on into a table, which entry it names.

    ``spell`` writes a key as its source does, for the error about one that does not exist.
    """
    if key in _SETTINGS:
        return _SETTINGS[key].kind, ""
    for table, entry in _SETTINGS.items():
        if entry.kind.entry is not None and key.startswith(f"{table}."):
            return entry.kind, key.removeprefix(f"{table}.")
    expected = f"a setting that exists; {_hint(key, spell)}"
    raise ConfigError(spell(key), None, source=source, expected=expected)


def _hint(key: str, spell: Callable[[str], str]) -> str:
    section, _, name = key.partition(".")
    own = [item.name for item in fields(_SECTIONS[section])] if section in _SECTIONS else []
    if close := get_close_matches(name.partition(".")[0], own, n=1):
        meant = f"{section}.{close[0]}"
    elif elsewhere := [
        known for known in _SETTINGS if known.endswith(f".{name or section}") and key not in _SECTIONS
    ]:
        meant = elsewhere[0]
    elif own:
        return f"{section} has {', '.join(own)}"
    elif alike := get_close_matches(key, _SETTINGS, n=1):
        meant = alike[0]
    else:
        return f"the sections are {', '.join(_SECTIONS)}"
    return f"did you mean {spell(meant)}?"


def _read(given: Given) -> Iterator[tuple[str, Any]]:
    """A given value as its kind has it; a table's entries one by one."""
    kind, name = find(given.key, given.source)
    value = given.value
    if given.typed and isinstance(value, str):
        value = kind.literal(value)
    if kind.entry is not None and (kind.deep or not name) and isinstance(value, dict):
        for member in value:
            yield from _read(Given(f"{given.key}.{member}", value[member], given.source))
        return
    key = given.key
    try:
        if kind.entry is not None:
            key = key.removesuffix(name) + kind.entry(name)
        yield key, kind.read(value)
    except MemberError as error:
        where = f"{key}[{error.index}]"
        raise ConfigError(where, error.value, source=given.source, expected=kind.expected) from None
    except ValueError:
        shown = Secret("") if kind.secret else value
        raise ConfigError(key, shown, source=given.source, expected=kind.expected) from None


class _Entry(NamedTuple):
    kind: Kind[Any]
    doc: str
    default: str


def _entries() -> Iterator[tuple[str, _Entry]]:
    for section, made in _SECTIONS.items():
        defaults = made()
        for item in fields(made):
            kind, doc, shown = item.metadata["kind"], item.metadata["doc"], item.metadata["shown"]
            yield (
                f"{section}.{item.name}",
                _Entry(kind, doc, shown or kind.show(getattr(defaults, item.name))),
            )


_SECTIONS: dict[str, Any] = {
    item.name: item.default_factory for item in fields(Settings) if item.name != "_sources"
}
_SETTINGS = dict(_entries())
