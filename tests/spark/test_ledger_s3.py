"""The ledger on an object store: log and files by the same options, and a commit whose answer is lost.

COTERIE_TEST_S3=HOST:PORT keeps the objects on that server (`interop/run.sh ledger_s3`: moto), behind ours.
S3_SEEDS=100 has that many races of writers.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from deltalake import DeltaTable

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.ledger import (
    Ledger,
)
from coterie.spark.ledger.outcome import Outcome
from coterie.spark.ledger.tables import (
    LedgerError,
)

from .small_s3 import small_s3
from .test_ledger import rows

SEEDS = int(os.environ.get("S3_SEEDS", "1"))
TROUBLED_BATCHES = 15 if SEEDS > 1 else 4
TROUBLES = {"500", "503", "409", "silence"}
OTHER = os.environ.get("COTERIE_TEST_S3")
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20200101/us-east-1/s3/aws4_request"}


@pytest.fixture
def s3(monkeypatch):
    """A server, of whose address and keys only the options know."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with small_s3(OTHER) as server:
        server.asked("PUT", "/bucket", **SIGNED)
        yield server


@pytest.fixture(params=["s3", "s3a"])
def table(request):
    return f"{request.param}://bucket/tables/{uuid.uuid4()}"


def held(table, s3):
    found = DeltaTable(table.replace("s3a", "s3"), storage_options=s3.options).to_pyarrow_table()
    return sorted(found["offset"].to_pylist())


def test_a_table_is_written_by_the_options_alone(s3, table):
    ledger = Ledger(table, group="g", storage_options=s3.options)

    assert ledger.append(rows((0, 0, 5), (1, 0, 3))) == Outcome(8, 0, 0)
    assert ledger.append(rows((0, 2, 8))) == Outcome(3, 3, 0)
    (superfluous,) = s3.control()["deleted"]

    assert superfluous.endswith(".parquet")
    assert held(table, s3) == sorted([*range(8), *range(3)])
    assert ledger.stored([TopicPartition("t", 0)]) == {TopicPartition("t", 0): 8}


@pytest.mark.parametrize("table", ["s3"], indirect=True)
def test_a_commit_that_is_answered_with_an_error_after_its_effect_is_ours(s3, table):
    """The client repeats its PUT, and overlaps the condition that its own first one no longer overlaps."""
    ledger = Ledger(table, group="g", storage_options=s3.options)
    ledger.append(rows((0, 0, 5)))
    s3.control(lose_answer=r"_delta_log/0*2\.json")

    assert ledger.append(rows((0, 5, 10))) == Outcome(5, 0, 0)

    done = s3.control()
    assert len(done["lost"]) == 1
    assert done["deleted"] == []
    assert held(table, s3) == [*range(10)]


@pytest.mark.parametrize("table", ["s3"], indirect=True)
def test_a_table_whose_making_is_answered_with_an_error_is_made(s3, table):
    s3.control(lose_answer=r"_delta_log/0*\.json")

    Ledger(table, group="g", storage_options=s3.options).append(rows((0, 0, 5)))

    assert len(s3.control()["lost"]) == 1
    assert held(table, s3) == [*range(5)]


@pytest.mark.parametrize("table", ["s3"], indirect=True)
def test_a_file_that_is_larger_than_a_request_is_written_in_parts(s3, table):
    big = rows((0, 0, 3)).set_column(3, "value", [[os.urandom(6_000_000) for _ in range(3)]])

    Ledger(table, group="g", storage_options=s3.options).append(big)

    found = DeltaTable(table, storage_options=s3.options).to_pyarrow_table()
    assert sorted(found["value"].to_pylist()) == sorted(big["value"].to_pylist())


@pytest.mark.parametrize("table", ["s3"], indirect=True)
def test_a_file_that_is_gone_before_its_commit_is_missed(s3, table):
    ledger = Ledger(table, group="g", storage_options=s3.options)
    ledger.append(rows((0, 0, 5)))
    s3.control(lose_object=r"^POST .*\.parquet\?uploadId=")

    with pytest.raises(LedgerError, match="cannot be found as they were written"):
        ledger.append(rows((0, 5, 10)))

    s3.control(lose_object=None)
    assert held(table, s3) == [*range(5)]


def committed_by(s3, table, engine):
    """Commit as another engine does: rows of its own, without an account."""
    there = DeltaTable(table, storage_options=s3.options)
    path = f"/{table.removeprefix('s3://')}/_delta_log"
    said = s3.asked("GET", f"{path}/{1:020}.json", **SIGNED)
    entries = [json.loads(one) for one in said.splitlines()]
    (info,) = [one for one in entries if "commitInfo" in one]
    info["commitInfo"]["engineInfo"] = engine
    s3.asked("PUT", f"{path}/{there.version() + 1:020}.json", json.dumps(info).encode(), **SIGNED)


@pytest.mark.parametrize("table", ["s3"], indirect=True)
def test_another_engine_s_commit_is_refused_until_it_is_allowed_by_name(s3, table):
    ledger = Ledger(table, group="g", storage_options=s3.options)
    ledger.append(rows((0, 0, 5)))
    committed_by(s3, table, "Apache-Spark/4.2.0 Delta-Lake/4.4.0")

    for one in (ledger, Ledger(table, group="g", storage_options=s3.options)):
        with pytest.raises(LedgerError, match=r"Apache-Spark/4\.2\.0 .* has committed to it"):
            one.append(rows((0, 5, 10)))
    assert held(table, s3) == [*range(5)]

    allowing = Ledger(table, group="g", other_writers=["Apache-Spark"], storage_options=s3.options)
    assert allowing.append(rows((0, 5, 10))) == Outcome(5, 0, 0)
    committed_by(s3, table, "Trino/476")
    with pytest.raises(LedgerError, match=r"Trino/476 has committed to it"):
        allowing.append(rows((0, 10, 15)))

    assert held(table, s3) == [*range(10)]


def race(s3, table, seed):
    """Two writers at once: each what both are given of one partition, and a partition of its own."""
    batches, start = 4, 5

    def write(number):
        chance = random.Random(seed * 2 + number)
        ledger = Ledger(table, group="g", storage_options=s3.options)
        for one in range(batches):
            first, until = max(0, one * start - chance.randrange(4)), (one + 1) * start
            if chance.random() < 0.5:
                s3.control(lose_answer=r"_delta_log/[0-9]+\.json")
            ledger.append(rows((0, first, until), (1 + number, first, until)))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, number) for number in range(2)]:
            done.result()
    return [*range(batches * start)]


@pytest.mark.parametrize("table", ["s3"], indirect=True)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_writers_that_race_and_lose_answers_leave_each_row_there_once(s3, table, seed):
    each = race(s3, table, seed)

    assert held(table, s3) == sorted(3 * each)
    assert s3.control()["lost"]


@pytest.mark.parametrize("table", ["s3"], indirect=True)
def test_each_record_is_there_once_through_errors_refusals_and_silence_by_chance(s3, table):
    ledger = Ledger(table, group="g", storage_options=s3.options)
    ledger.append(rows((0, 0, 5)))
    s3.control(troubles=dict.fromkeys(TROUBLES, 0.15))

    number = 0
    while number < TROUBLED_BATCHES or (number < 60 and s3.control()["befallen"].keys() < TROUBLES):
        number += 1
        ledger.append(rows((0, 5 * number - 3, 5 * number + 5)))
    befallen = s3.control(troubles={})["befallen"]

    assert befallen.keys() == TROUBLES
    assert held(table, s3) == [*range(5 * number + 5)]
