"""Settings: frozen, and gathered from four sources, each of which overrides those before it.

::

    defaults  <  the TOML file  <  HEADRACE_SECTION__KEY in the environment  <  --set section.key=value

Strategy: a setting is one entry of a section in :mod:`~headrace.config.sections`: its type, its default and its doc. A
type (:mod:`~headrace.config.value_types`) reads a value and describes valid ones. Reading the sources
(:mod:`~headrace.config.sources`), errors, descriptions (:mod:`~headrace.config.settings`) and the reference in
``docs/configuration.md`` follow from those entries, so that every limit and deadline has one home.

Invariants:

- Every value is checked, even one that a later source overrides. An unknown key or an invalid value raises
  :class:`~headrace.errors.ConfigError` with its key, value, source and a description of valid ones, and nothing else.
- A :class:`Secret` appears in no ``repr``, description or error; only ``reveal`` gives it.
- Lists are replaced whole; the tables ``auth.clients`` and ``pipeline.params`` are merged entry by entry, and so are
  the principals ``access.<name>``.
"""

from headrace.config.auth import ACTIONS, EVERY_ACTION, Access, Auth
from headrace.config.limits import Limits
from headrace.config.sections import (
    DOORS,
    Cluster,
    Engine,
    Fsync,
    Fyrehose,
    Listen,
    Log,
    Matching,
    Node,
    Services,
)
from headrace.config.settings import Settings, reference
from headrace.config.sources import load, load_again
from headrace.config.value_types import Address, PeerAddress, Secret

__all__ = [
    "ACTIONS",
    "DOORS",
    "EVERY_ACTION",
    "Access",
    "Address",
    "Auth",
    "Cluster",
    "Engine",
    "Fsync",
    "Fyrehose",
    "Limits",
    "Listen",
    "Log",
    "Matching",
    "Node",
    "PeerAddress",
    "Secret",
    "Services",
    "Settings",
    "load",
    "load_again",
    "reference",
]
