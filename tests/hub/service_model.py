"""What services are, in as few words as can be: the model that the real ones are compared with."""

from __future__ import annotations

import json
from typing import Any

from headrace.message import Message


class Model:
    """What services are, in as few words as can be."""

    def __init__(self) -> None:
        self.policy = (False, 100_000)
        self.services: dict[str, tuple[str, Any]] = {}
        self.removed: dict[str, str] = {}

    def create(self, name: str, kind: str) -> None:
        if name not in self.services and len(self.services) < self.policy[1]:
            self.services[name] = (kind, {} if kind == "json" else b"")
            self.removed.pop(name, None)

    def remove(self, name: str) -> None:
        if name in self.services:
            self.removed[name] = self.services.pop(name)[0]

    def follow(self, entry: Message) -> None:
        """Follow the log by one entry or message."""
        if entry.origin != "log":
            self.message(entry.topic, entry.payload)
            return
        part, _, name = entry.topic.partition("/")
        if part != "service":
            return
        order = json.loads(entry.payload)
        if not name:
            self.policy = (order["auto"], order["max"])
        elif "create" in order:
            self.create(name, order["create"])
        else:
            self.remove(name)

    def message(self, topic: str, payload: bytes) -> None:
        if self.policy[0] and topic and topic not in self.removed:
            self.create(topic, "last")
        if topic not in self.services:
            return
        kind, value = self.services[topic]
        if kind == "last":
            self.services[topic] = (kind, payload)
            return
        try:
            patch = json.loads(payload)
        except ValueError:
            return
        if isinstance(patch, dict):
            self.services[topic] = (kind, merged(value, patch))


def merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
