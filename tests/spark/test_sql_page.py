"""The statements of docs/spark-sql.md run, in order, as they stand there; and what Spark does not pass on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-sql.md"
ADDRESS, FOLDER = "127.0.0.1:9092", '"run/'
BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLES, VIEWS = ("topics", "outgoing", "fixed"), ("flights", "seen")


@pytest.fixture
def tidy(spark: SparkSession) -> Iterator[None]:
    """Let no table or view of the page outlive its test."""
    yield
    for name in TABLES:
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    for name in VIEWS:
        spark.catalog.dropTempView(name)


def statements(text: str) -> Iterator[str]:
    """Yield the statements of a block."""
    yield from filter(None, (one.strip() for one in text.split(";")))


@pytest.mark.usefixtures("tidy")
def test_the_statements_run(spark: SparkSession, new_topic: Any, group: str, tmp_path: Path):
    flights, delays = new_topic(partitions=2), new_topic(partitions=2)
    flights.produce([b"flight %d" % number for number in range(10)])
    found: list[list[Any]] = []
    names = {"'flights'": flights.name, "'delays'": delays.name, "'sql'": group}

    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        placed = text.replace(ADDRESS, flights.bootstrap).replace(FOLDER, f'"{tmp_path}/run/')
        for quoted, name in names.items():
            placed = placed.replace(quoted, f"'{name}'")
        if kind == "python":
            exec(compile(placed, str(PAGE), "exec"), {"spark": spark})
        else:
            found += [spark.sql(one).collect() for one in statements(placed)]

    created, by_partition, _, first, seen, _, inserted, written = found
    assert created == inserted == []
    assert sum(row.flights for row in by_partition) == 10
    assert len(first) == len([one for one in flights.sent if one.offset < 3])
    assert [row.seen for row in seen] == [10]
    assert [row.written for row in written] == [5]
    assert flights.committed(group) == flights.ends()


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("kept_as", ["OPTIONS", "TBLPROPERTIES"])
def test_options_of_a_table_that_spark_does_not_pass_on_are_missed_with_the_way_out(
    spark: SparkSession, new_topic: Any, kept_as: str
):
    topic = new_topic()
    spark.sql(
        f"CREATE TABLE fixed USING coterie {kept_as} "
        f"('kafka.bootstrap.servers' = '{topic.bootstrap}', 'subscribe' = '{topic.name}')"
    )

    with pytest.raises(AnalysisException, match=r"no option has arrived.*FROM a_table WITH \(") as refused:
        spark.sql("SELECT * FROM fixed").collect()

    assert "temporary view" in str(refused.value)
