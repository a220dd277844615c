"""Write deploy/grafana.json: a Grafana dashboard over the metrics that a hub gives Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HUB = '{instance=~"$hub"}'

PANELS = [
    # title, unit, (query, legend)...
    (
        "Messages in, per second",
        "ops",
        (f"sum by (origin) (rate(headrace_received_total{HUB}[1m]))", "{{origin}}"),
    ),
    (
        "Messages out, per second",
        "ops",
        (f"sum by (door) (rate(headrace_delivered_total{HUB}[1m]))", "{{door}}"),
    ),
    ("Head of the sequence", "none", (f"headrace_head{HUB}", "{{instance}}")),
    (
        "Appended and not committed",
        "none",
        (f"headrace_tail{HUB} - headrace_head{HUB}", "{{instance}}"),
    ),
    ("Log on disk", "bytes", (f"headrace_log_bytes{HUB}", "{{instance}}")),
    ("Connections", "none", (f"headrace_connections{HUB}", "{{instance}}")),
    (
        "Refused, per second",
        "ops",
        (f"sum by (door, reason) (rate(headrace_refused_total{HUB}[1m]))", "{{door}} {{reason}}"),
    ),
    ("Ready", "none", (f"headrace_ready{HUB}", "{{instance}}")),
]

SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "Headrace",
        "uid": "headrace",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "hub",
                    "type": "query",
                    "label": "Hub",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(headrace_head, instance)", "refId": "hub"},
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                },
            ]
        },
        "panels": [_panel(place, *panel) for place, panel in enumerate(PANELS)],
    }


def _panel(place: int, title: str, unit: str, *queries: tuple[str, str]) -> dict[str, Any]:
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (place % 2), "y": 8 * (place // 2)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend, "datasource": SOURCE}
            for number, (expr, legend) in enumerate(queries)
        ],
    }


def main() -> None:
    """Write the file."""
    path = Path(__file__).parents[1] / "deploy" / "grafana.json"
    path.write_text(json.dumps(dashboard(), indent=2) + "\n")


if __name__ == "__main__":
    main()
