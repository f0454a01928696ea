"""A Spark session in this process, and the jars of Spark's own Kafka source and sink."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bench.kafka import CACHE, REPOSITORY, fetched

__all__ = ["connector_jars", "session"]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}
CONNECTOR = CACHE / "spark-connector-4.2.0"
CONNECTOR_POM = REPOSITORY / "interop" / "spark" / "pom.xml"


def session(
    name: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    *,
    master: str = "local[2]",
    connect: bool = False,
) -> Any:
    """Return a session whose workers run this Python. It is a context manager: on the way out it has stopped.

    `connect` takes it through Spark Connect, of a server that Spark starts for `master`.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    builder = builder.remote(master) if connect else builder.master(master)
    for setting, value in {**SETTINGS, **settings}.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def connector_jars() -> str:
    """Return the jars of Spark's own Kafka source and sink, as Spark's setting wants them; fetched once."""
    fetched(CONNECTOR_POM, CONNECTOR, what="Spark's Kafka source")
    return ",".join(map(str, sorted(CONNECTOR.glob("*.jar"))))
