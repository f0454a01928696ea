"""The history as DataFrames and as Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures" / "kafka-4.3.1"

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")


def test_every_table_is_written_as_parquet_and_says_what_happened(spark: Any, tmp_path: Path):
    from coterie.spark.history import read_directory

    found = read_directory(spark, CAPTURES)
    found.write_parquet(str(tmp_path))

    assert {path.name for path in tmp_path.iterdir()} == set(found.names)
    truth = json.loads((CAPTURES / "truth" / "causes.json").read_text())["rebalances"]
    rows = spark.read.parquet(str(tmp_path / "generations")).collect()
    told: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        told.setdefault(row.group_id, {})[str(row.generation)] = set(row.causes)
    assert {group: told[group] for group in truth} == {
        group: {number: set(causes) for number, causes in generations.items()}
        for group, generations in truth.items()
    }
    assert spark.read.parquet(str(tmp_path / "commits")).count() == 8915
    found.packed.unpersist()
