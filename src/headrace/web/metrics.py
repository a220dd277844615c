"""The hub's counters and levels as Prometheus metrics, named ``headrace_*``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.net.server.process import Server
from headrace.web.metric_names import ALERT, CONSUMER_LEVELS, COUNTS, LEVELS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HubCollector(Collector):
    """Reads a hub when it is scraped, and keeps nothing."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterable[Metric]:
        """Yield every metric."""
        hub, log, matching = self._server.hub, self._server.hub.log, self._server.routing.matching
        levels: dict[str, float] = {
            "head": log.head,
            "tail": log.tail,
            "first": log.first,
            "log_bytes": log.size,
            "log_segments": len(log.segments),
            "connections": self._server.connections,
            "subscriptions": len(self._server.subscriptions),
            "subscriptions_here": len(matching),
            "subscription_bytes": matching.matcher.memory().total,
            "ready": int(self._server.ready),
        }
        if (upstream := self._server.upstream) is not None:
            levels |= {
                "upstream_connected": int(upstream["connected"]),
                "upstream_lag": upstream["lag"],
                "upstream_waiting_bytes": upstream["waiting_bytes"],
            }
            if (outbox := upstream["outbox"]) is not None:
                levels |= {
                    "outbox_messages": outbox["messages"],
                    "outbox_bytes": outbox["bytes"],
                    "outbox_most_bytes": outbox["most_bytes"],
                }
        for name, value in levels.items():
            yield GaugeMetricFamily(f"headrace_{name}", LEVELS[name], value)
        behind, exact = (
            GaugeMetricFamily(f"headrace_{name}", text, labels=["consumer"])
            for name, text in CONSUMER_LEVELS.items()
        )
        for consumer in self._server.consumers:
            lag = self._server.consumers.lag(consumer, log.head)
            behind.add_metric([consumer.name], lag.behind)
            exact.add_metric([consumer.name], lag.exact)
        yield behind
        yield exact
        alerts = GaugeMetricFamily("headrace_alert", ALERT, labels=["alert", "about", "grave"])
        for alert in self._server.alerts():
            alerts.add_metric([alert.alert, alert.about, str(alert.grave).lower()], 1)
        yield alerts
        for name, group in groupby(hub.counters, key=lambda counter: counter[0]):
            counters = list(group)
            # A label that a series lacks is empty there; without it the series would duplicate another.
            names = list(dict.fromkeys(label for _, labels, _ in counters for label in labels))
            text = COUNTS[name][1] if name in COUNTS else f"{name.replace('_', ' ')}, counted."
            family = CounterMetricFamily(f"headrace_{name}", text, labels=names)
            for _, labels, value in counters:
                family.add_metric([labels.get(label, "") for label in names], value)
            yield family


def render(server: Server) -> bytes:
    """Render the text that Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(HubCollector(server))
    rendered: bytes = generate_latest(registry)
    return rendered
