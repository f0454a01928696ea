"""The ledger under queries that bring rows late, and under executors that have folders of their own."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

from coterie.spark.ledger.ledger import Ledger

from .test_sink import forget_last_batch

ON_A_CLUSTER = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from coterie.spark.ledger.ledger import Ledger

spark = (
    SparkSession.builder.master("local-cluster[2,1,768]")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "768m")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
rows = spark.range(100).selectExpr("'t' topic", "cast(id % 2 as int) partition", "id offset")
Ledger("run/tables/delays", group="g").write(rows, 0)
spark.stop()
"""


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_a_relative_path_is_the_driver_s_though_executors_have_folders_of_their_own(tmp_path):
    """Each executor of a cluster works in a folder of its own."""
    script = tmp_path / "on_a_cluster.py"
    script.write_text(ON_A_CLUSTER)

    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-4000:]
    assert DeltaTable(str(tmp_path / "run" / "tables" / "delays")).to_pyarrow_table().num_rows == 100


@pytest.fixture
def orders_and_payments(new_topic):
    orders, payments = new_topic(), new_topic()
    orders.produce([b"%d" % number for number in range(10)])
    payments.produce([b"9"])
    return orders, payments


def joined(spark, orders, payments):
    """Each order when it is paid, as often as it is."""
    ordered, paid = (
        spark.readStream.format("coterie")
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("topic", "partition", "offset", "cast(value as string) number", "timestamp at")
        .withWatermark("at", "1 hour")
        for topic in (orders, payments)
    )
    paid = paid.selectExpr("number paid", "at paid_at", "offset payment")
    near = "number = paid and paid_at >= at - interval 1 hour and paid_at <= at + interval 1 hour"
    return ordered.join(paid, functions.expr(near)).select("topic", "partition", "offset", "payment")


def run_once(frame, ledger, checkpoint):
    query = (
        frame.writeStream.foreachBatch(ledger.write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def held(folder):
    found = DeltaTable(str(folder)).to_pyarrow_table()
    return Counter(zip(found["offset"].to_pylist(), found["payment"].to_pylist(), strict=True))


@pytest.mark.interop
def test_what_a_join_keeps_back_fails_the_batch_and_is_not_dropped(spark, orders_and_payments, tmp_path):
    """The last order is paid first."""
    orders, payments = orders_and_payments
    ledger = Ledger(str(tmp_path / "table"), group="g")
    run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")
    payments.produce([b"%d" % number for number in range(9)])

    with pytest.raises(StreamingQueryException, match="not have offsets 0 to 8: they are no replay"):
        run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")

    assert held(tmp_path / "table") == Counter({(9, 0): 1})


@pytest.mark.interop
def test_a_second_row_of_a_record_is_not_taken_for_a_replay(spark, orders_and_payments, tmp_path):
    """An order that is paid twice."""
    orders, payments = orders_and_payments
    ledger = Ledger(str(tmp_path / "table"), group="g")
    run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")
    forget_last_batch(tmp_path / "checkpoint")
    run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")
    payments.produce([b"9"])

    with pytest.raises(StreamingQueryException, match="out of a query that keeps state"):
        run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")

    assert held(tmp_path / "table") == Counter({(9, 0): 1})


@pytest.mark.interop
def test_a_join_s_batches_are_there_once_with_all_their_rows(spark, orders_and_payments, tmp_path):
    orders, payments = orders_and_payments
    ledger = Ledger(str(tmp_path / "table"), group="g", once="batch")
    run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")
    payments.produce([b"%d" % number for number in [*range(9), 9]])

    run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")
    forget_last_batch(tmp_path / "checkpoint")
    run_once(joined(spark, orders, payments), ledger, tmp_path / "checkpoint")

    paid = [(9, 0), *((number, number + 1) for number in range(10))]
    assert held(tmp_path / "table") == Counter(paid)
    assert ledger.outcome.replayed == 10
