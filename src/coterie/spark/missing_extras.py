"""The data source of an installation without the extras: it tells what to install."""

from typing import Any


def missing_source(message: str) -> Any:
    """Return a data source named `coterie` whose every use raises ImportError with this message."""
    base: Any = object
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:
        pass
    else:
        base = DataSource

    def refuse(*_: Any, **__: Any) -> None:
        raise ImportError(message)

    # Spark asks for the name first, and makes an instance when a query uses it.
    return type("MissingSource", (base,), {"__init__": refuse, "name": classmethod(lambda cls: "coterie")})
