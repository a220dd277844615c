"""What the installed release of PySpark has for data sources.

4.3 and 4.2 have all of it. 4.1 has no limits on a micro-batch of a Python source, so a stream reads all that there is
each time. 4.0 has no Arrow writer for streams besides; ``foreachBatch`` writes there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyspark
import pyspark.sql.datasource
from pyspark.sql.datasource import DataSourceStreamWriter

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = HAS_STREAM_WRITER = True
else:
    DataSourceStreamArrowWriter = getattr(
        pyspark.sql.datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter
    )
    HAS_STREAM_WRITER = DataSourceStreamArrowWriter is not DataSourceStreamWriter
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_LIMITS = True
    except ImportError:
        HAS_LIMITS = False

        class ReadLimit:
            """Stands in for Spark's: none of them is ever passed to a reader."""

        ReadAllAvailable = type("ReadAllAvailable", (ReadLimit,), {})
        ReadMaxRows = type("ReadMaxRows", (ReadLimit,), {})
        ReadMaxBytes = type("ReadMaxBytes", (ReadLimit,), {})
        SupportsTriggerAvailableNow = type("SupportsTriggerAvailableNow", (), {})

RELEASE: Final = pyspark.__version__

__all__ = [
    "HAS_LIMITS",
    "HAS_STREAM_WRITER",
    "RELEASE",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
