"""The facts of the status that a principal may see."""

from __future__ import annotations

from typing import Final

from headrace.hub.access.principal import Action, Principal

SHOWN_TO_ALL: Final = ("version", "log", "first", "head", "tail", "node", "mode", "uptime", "insecure")
"""Facts for principals who may not see how the hub and its other clients are doing."""


def shown_to(principal: Principal, facts: dict[str, object]) -> dict[str, object]:
    """Return the facts that a principal may see: all with ``admin``, else those that reveal nothing about others."""
    if principal.may(Action.ADMIN):
        return facts
    return {name: facts[name] for name in SHOWN_TO_ALL if name in facts}
