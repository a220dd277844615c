"""The hub's counters and levels as Prometheus metrics, named ``headrace_*``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.net.server import Server

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HubCollector(Collector):
    """Reads a hub when it is scraped; keeps nothing of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """Yield every metric as it stands."""
        hub, log, matching = self._server.hub, self._server.hub.log, self._server.routing.matching
        levels = {
            "head": ("Last committed sequence number.", log.head),
            "tail": ("Last appended sequence number.", log.tail),
            "first": ("Oldest sequence number kept.", log.first),
            "log_bytes": ("Bytes of the log on disk.", log.size),
            "log_segments": ("Segments of the log, the open tail included.", len(log.segments)),
            "connections": ("Open connections.", self._server.connections),
            "subscriptions": ("Subscriptions by content.", len(self._server.subscriptions)),
            "subscriptions_here": ("Subscriptions that are matched here.", len(matching)),
            "subscription_bytes": ("Memory of their index.", matching.matcher.memory().total),
            "ready": ("1 when every door accepts.", int(self._server.ready)),
        }
        if (upstream := self._server.upstream) is not None:
            levels |= {
                "upstream_connected": ("1 while the upstream hub answers.", int(upstream["connected"])),
                "upstream_lag": ("Messages that the upstream hub has and this one not yet.", upstream["lag"]),
                "upstream_waiting_bytes": (
                    "Bytes on their way to the upstream hub.",
                    upstream["waiting_bytes"],
                ),
            }
        for name, (text, value) in levels.items():
            yield GaugeMetricFamily(f"headrace_{name}", text, value)
        for name, group in groupby(hub.counters, key=lambda counter: counter[0]):
            counters = list(group)
            # A label that one of them lacks is empty there; a series left without it would be another's double.
            names = list(dict.fromkeys(label for _, labels, _ in counters for label in labels))
            family = CounterMetricFamily(
                f"headrace_{name}", f"{name.replace('_', ' ')}, counted.", labels=names
            )
            for _, labels, value in counters:
                family.add_metric([labels.get(label, "") for label in names], value)
            yield family


def render(server: Server) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(HubCollector(server))
    rendered: bytes = generate_latest(registry)
    return rendered
