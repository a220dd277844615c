"""All settings as one frozen object: gathered from the sources, described, and found by their keys.

The sections declare the settings (:mod:`~headrace.config.sections`, :mod:`~headrace.config.auth`,
:mod:`~headrace.config.limits`); everything here follows from the entries there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.config.auth import Access, Auth
from headrace.config.limits import Limits
from headrace.config.sections import (
    Cluster,
    Dispatcher,
    Fyrehose,
    Listen,
    Log,
    Matching,
    Node,
    Pipeline,
    Services,
    Tls,
    Upstream,
)
from headrace.config.value_types import MemberError, Secret, ValueType, plain, principal_name
from headrace.errors import ConfigError

ANY_NAME = "<name>"
"""Stands for the name in the key of a setting that each principal has."""


class RawValue(NamedTuple):
    """A value that a source gives for a key, not yet read."""

    key: str
    value: object
    source: str
    typed: bool = False
    """Whether it is text from the command line or a variable, which may be TOML."""


class LoadedFrom(NamedTuple):
    """The sources of settings: the file, our variables of the environment, and each ``--set``."""

    path: Path | None
    environ: Mapping[str, str]
    sets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, by section: ``settings.log.fsync``."""

    listen: Listen = field(default_factory=Listen)
    log: Log = field(default_factory=Log)
    services: Services = field(default_factory=Services)
    fyrehose: Fyrehose = field(default_factory=Fyrehose)
    auth: Auth = field(default_factory=Auth)
    access: Mapping[str, Access] = field(default_factory=lambda: MappingProxyType({}))
    """Principals by name: of this section there may be several."""
    matching: Matching = field(default_factory=Matching)
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    pipeline: Pipeline = field(default_factory=Pipeline)
    node: Node = field(default_factory=Node)
    upstream: Upstream = field(default_factory=Upstream)
    cluster: Cluster = field(default_factory=Cluster)
    tls: Tls = field(default_factory=Tls)
    limits: Limits = field(default_factory=Limits)
    _sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    loaded: LoadedFrom | None = field(default=None, repr=False, compare=False)
    """What :func:`~headrace.config.sources.load` was given, so that it can be done again."""
    overrides: tuple[tuple[Mapping[str, object], str], ...] = field(default=(), repr=False, compare=False)
    """Settings overridden since, and the option that did it."""

    def source(self, key: str) -> str:
        """Return the source of a setting's value: a file, a variable, an option, or ``default``."""
        find(key, "source()")
        return self._sources.get(key, "default")

    def doc(self, key: str) -> str:
        """Return what a setting means."""
        find(key, "doc()")
        return _SETTINGS[_general(key)].doc

    def override(self, values: Mapping[str, object], *, source: str) -> Settings:
        """Change some settings, by dotted key; ``source`` names the option that sets them."""
        changed = self.gather(
            RawValue(key, plain(value, reveal=True), source) for key, value in values.items()
        )
        return replace(changed, overrides=(*self.overrides, (dict(values), source)))

    def gather(self, given: Iterable[RawValue]) -> Settings:
        """Apply values to these settings, in order; a later value wins."""
        changed: dict[str, dict[str, Any]] = {}
        sources = dict(self._sources)
        for one in given:
            for key, value in _read(one):
                section, name, *entry = key.split(".", 2)
                names = changed.setdefault(section, {})
                if section in _NAMED:
                    names[name] = replace(names.get(name) or self._named(section, name), **{entry[0]: value})
                    sources[key] = one.source
                    continue
                if entry:
                    table = names.get(name, getattr(getattr(self, section), name))
                    value = MappingProxyType({**table, entry[0]: value})
                names[name] = value
                sources[key] = one.source
        sections: dict[str, Any] = {
            section: MappingProxyType({**getattr(self, section), **names})
            if section in _NAMED
            else replace(getattr(self, section), **names)
            for section, names in changed.items()
        }
        return replace(self, **sections, _sources=MappingProxyType(sources))

    def as_dict(self, *, reveal: bool = False) -> dict[str, Any]:
        """Return plain values by dotted key, for JSON and :meth:`override`; secrets are masked by default."""
        return {key: plain(self._get(key), reveal=reveal) for key in self._keys()}

    def _keys(self) -> Iterator[str]:
        """List the key of every setting, with one key per principal for settings that each principal has."""
        for key in _SETTINGS:
            section, _, name = key.partition(f".{ANY_NAME}.")
            if name:
                yield from (f"{section}.{owner}.{name}" for owner in getattr(self, section))
            else:
                yield key

    def _get(self, key: str) -> Any:
        section, _, name = key.partition(".")
        if section in _NAMED:
            owner, _, name = name.partition(".")
            return getattr(self._named(section, owner), name)
        return getattr(getattr(self, section), name)

    def _named(self, section: str, name: str) -> Any:
        return getattr(self, section).get(name) or _SECTIONS[section]()


def reference() -> str:
    """Write every setting as Markdown: a heading and a table for each section."""
    lines = []
    for section, made in _SECTIONS.items():
        lines += [f"### {section}", "", str(made.__doc__), ""]
        lines += ["| setting | default | value | meaning |", "|---|---|---|---|"]
        for key, entry in _SETTINGS.items():
            if key.startswith(f"{section}."):
                lines.append(f"| `{key}` | {entry.default} | {entry.type.expected} | {entry.doc} |")
        lines.append("")
    return "\n".join(lines)


def find(key: str, source: str, spell: Callable[[str], str] = str) -> tuple[ValueType[Any], str]:
    """Find the type of a setting and, for a key in a table, the name of the entry.

    ``spell`` writes a key as its source does, for the error about a key that does not exist.
    """
    if (known := _general(key)) in _SETTINGS:
        return _SETTINGS[known].type, ""
    for table, entry in _SETTINGS.items():
        if entry.type.entry is not None and key.startswith(f"{table}."):
            return entry.type, key.removeprefix(f"{table}.")
    expected = f"a setting that exists; {_hint(key, spell)}"
    raise ConfigError(spell(key), None, source=source, expected=expected)


def _general(key: str) -> str:
    """Return the key under which a setting is declared: the same for all principals."""
    section, _, rest = key.partition(".")
    name, dot, setting = rest.partition(".")
    if section not in _NAMED or not dot:
        return key
    try:
        _NAMED[section](name)
    except ValueError:
        return key
    return f"{section}.{ANY_NAME}.{setting}"


def _hint(key: str, spell: Callable[[str], str]) -> str:
    section, _, name = key.partition(".")
    own = [item.name for item in fields(_SECTIONS[section])] if section in _SECTIONS else []
    if section in _NAMED:
        owner, _, name = name.partition(".")
        if _general(f"{section}.{owner}.x") == f"{section}.{owner}.x":
            return f"as in {section}.NAME.{own[0]}, with a name of letters, digits, - and _"
        section = f"{section}.{owner}"
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


def _read(given: RawValue) -> Iterator[tuple[str, Any]]:
    """Read a value as its type; give a table's entries one by one."""
    section, _, rest = given.key.partition(".")
    if section in _NAMED and "." not in rest and isinstance(given.value, dict):
        if rest and not given.value:
            # It is there all the same: without rules it may do nothing.
            find(f"{given.key}.allow", given.source)
            yield f"{given.key}.allow", ()
        for member in given.value:
            yield from _read(RawValue(f"{given.key}.{member}", given.value[member], given.source))
        return
    value_type, name = find(given.key, given.source)
    value = given.value
    if given.typed and isinstance(value, str):
        value = value_type.literal(value)
    if value_type.entry is not None and (value_type.deep or not name) and isinstance(value, dict):
        for member in value:
            yield from _read(RawValue(f"{given.key}.{member}", value[member], given.source))
        return
    key = given.key
    try:
        if value_type.entry is not None:
            key = key.removesuffix(name) + value_type.entry(name)
        yield key, value_type.read(value)
    except MemberError as error:
        where = f"{key}[{error.index}]"
        raise ConfigError(where, error.value, source=given.source, expected=value_type.expected) from None
    except ValueError:
        shown = Secret("") if value_type.secret else value
        raise ConfigError(key, shown, source=given.source, expected=value_type.expected) from None


class _Entry(NamedTuple):
    type: ValueType[Any]
    doc: str
    default: str


def _entries() -> Iterator[tuple[str, _Entry]]:
    for section, made in _SECTIONS.items():
        defaults = made()
        for item in fields(made):
            value_type, doc, shown = item.metadata["type"], item.metadata["doc"], item.metadata["shown"]
            yield (
                f"{section}.{ANY_NAME}.{item.name}" if section in _NAMED else f"{section}.{item.name}",
                _Entry(value_type, doc, shown or value_type.show(getattr(defaults, item.name))),
            )


_NAMED: dict[str, Callable[[str], str]] = {"access": principal_name}
"""Sections that may occur several times, each with a name, and the function that reads the name."""

_SECTIONS: dict[str, Any] = {
    item.name: Access if item.name == "access" else item.default_factory
    for item in fields(Settings)
    if item.name not in ("_sources", "loaded", "overrides")
}
_SETTINGS = dict(_entries())
