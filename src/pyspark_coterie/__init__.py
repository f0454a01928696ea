"""Lets Spark find `format("coterie")` by itself: it looks for top-level modules named pyspark_*.

Spark imports all of them when a session first meets a Python data source. Where Coterie's extras are missing,
that must not break the sources of others: the module is there, and says what to install when it is used.
"""

from importlib.util import find_spec
from typing import Any

__all__ = ["DefaultSource"]

INSTALL = "format('coterie') needs pyspark, pyarrow and numba: pip install 'coterie[spark]'"


def default_source() -> Any:
    """Return the data source, or one that tells what to install."""
    try:
        missing = [name for name in ("pyspark", "pyarrow", "numba") if find_spec(name) is None]
    except ImportError as error:
        missing = [str(error)]
    if missing:
        from coterie.spark.missing_extras import missing_source

        return missing_source(f"{INSTALL} (missing: {', '.join(missing)})")
    from coterie.spark.source.datasource import CoterieDataSource

    return CoterieDataSource


DefaultSource = default_source()
