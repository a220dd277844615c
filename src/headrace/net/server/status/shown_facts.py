"""Which facts of the status a principal is shown."""

from __future__ import annotations

from typing import Final

from headrace.hub.access.principal import Action, Principal

SHOWN_TO_ALL: Final = ("version", "log", "first", "head", "tail", "node", "mode", "uptime", "insecure")
"""Facts for whoever may not see how the hub and its other clients are doing."""


def shown_to(principal: Principal, facts: dict[str, object]) -> dict[str, object]:
    """Return what a principal is shown: everything with ``admin``, else what says nothing of others."""
    if principal.may(Action.ADMIN):
        return facts
    return {name: facts[name] for name in SHOWN_TO_ALL if name in facts}
