"""Settings: frozen, and gathered from four places, each stronger than the one before.

::

    defaults  <  the TOML file  <  HEADRACE_SECTION__KEY in the environment  <  --set section.key=value

Strategy: a setting is one entry of a section in :mod:`~headrace.config.sections`: its kind, its default and
its doc. A kind (:mod:`~headrace.config.value_types`) reads a value and says what would be right. Reading the places
(:mod:`~headrace.config.sources`), refusing, describing (:mod:`~headrace.config.settings`) and the reference in
``docs/configuration.md`` follow from those entries, so that every limit and deadline has one home.

Invariants:

- Whatever is given is checked, even where a stronger source overrules it. A key that does not exist, or a
  value that cannot be, raises :class:`~headrace.errors.ConfigError` with its key, value, source and what
  would be right. Nothing else escapes.
- A :class:`Secret` shows itself in no ``repr``, description or error; only ``reveal`` gives it.
- Lists are replaced whole; the tables ``auth.clients`` and ``pipeline.params`` grow entry by entry, the stronger source
  winning each.
"""

from headrace.config.sections import (
    DOORS,
    Auth,
    Cluster,
    Engine,
    Fsync,
    Fyrehose,
    Limits,
    Listen,
    Log,
    Matching,
    Node,
    Services,
)
from headrace.config.settings import Described, Settings, reference
from headrace.config.sources import load
from headrace.config.value_types import Address, Secret

__all__ = [
    "DOORS",
    "Address",
    "Auth",
    "Cluster",
    "Described",
    "Engine",
    "Fsync",
    "Fyrehose",
    "Limits",
    "Listen",
    "Log",
    "Matching",
    "Node",
    "Secret",
    "Services",
    "Settings",
    "load",
    "reference",
]
