"""A hub's process and pandas."""

from __future__ import annotations

import subprocess
import sys


def test_arrays_are_made_without_pandas_and_others_may_import_it() -> None:
    script = """if True:
        import sys
        from headrace.net.server.machine.without_pandas import keep_pandas_out

        keep_pandas_out()
        import pyarrow as pa

        assert pa.array(["a"]).to_pylist() == ["a"]
        assert not [name for name in sys.modules if name.startswith("pandas")]
        import pandas

        assert pandas.Series([1])[0] == 1
        """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
