"""The archive: the sequence as a table of immutable files, which outlives the log's own files.

``table``         :class:`ArchiveTable`, one version as a reader sees it, and :func:`open_table`
``parquet_file``  the files: written once, in order, never changed
``ledger``        the account of the files that count: what a format must offer
``delta``, ``iceberg``, ``manifest``  the three formats; the last is plain Parquet
``folder``        a path or a URI as a folder
"""

from headrace.archive.parquet_file import ArchiveFile
from headrace.archive.table import ArchiveTable, open_table

__all__ = ["ArchiveFile", "ArchiveTable", "open_table"]
