"""What jobs tell the hub besides the sink: small changes of services, from the driver, once per micro-batch."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from headrace.spark.hub_connections import link
from headrace.spark.options import Access


def publish_services(
    access: Access, query: str, batch: int, changes: Mapping[str, Mapping[str, object]]
) -> None:
    """Change services by JSON patches, all at once; a micro-batch that comes again changes nothing.

    It is what the sink does, without the tasks that a few rows are not worth.
    """
    if not changes:
        return
    rows = pa.table(
        {
            "topic": pa.array(list(changes), pa.string()),
            "payload": pa.array([msgspec.json.encode(change) for change in changes.values()], pa.binary()),
        }
    )
    with link(access) as client:
        stage = client.stage(query, batch, rows)
        client.commit(query, batch, [stage], services=True)
