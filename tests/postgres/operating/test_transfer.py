"""Data directories brought into a database, and written out of it again: all of it is the same."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import tempfile
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from uuid import UUID, uuid4
from zipfile import ZipFile

import pytest
from bench.postgres import Server
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.base.errors import CoterieError
from coterie.broker.cluster.changes import LeaveCluster, RegisterBroker, UnregisterBroker
from coterie.broker.cluster.image import Delta, Image
from coterie.broker.processes import METADATA
from coterie.broker.processes.changes import ArrangeBrokers, RegisterProcess
from coterie.broker.processes.layout import arranged, image_of
from coterie.broker.processes.sqlite import SqliteMetadata
from coterie.broker.transfer.directory import opened_directory
from coterie.broker.transfer.dumping import dump, new_directory
from coterie.broker.transfer.loading import LoadedTopics, brokers_there, load
from coterie.cli import cli
from coterie.storage.postgres.connecting import DatabaseAddress

from ..rigs.directories import STEPS, TOPICS, Step, Writer, WriterOfSeveral, facts_of

steps = st.builds(Step, st.sampled_from(STEPS), st.integers(0, 6), st.integers(1, 5))
PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
ON_PAGE = re.compile(
    r"<!-- tests/postgres/operating/test_transfer.py runs this -->\n\n```\ncoterie history (.*)\n```"
)
PARTITIONS = sum(partitions for partitions, _ in TOPICS.values())
A_BIT_OF_ALL = [
    *(Step("append", at, 4) for at in range(4)),
    *(Step("append", 2, 9) for _ in range(6)),
    Step("compact", 2),
    *(Step("begin", at, 2) for at in (0, 1, 4)),
    Step("abort", 0),
    Step("lead", 0, 3),
    *(Step("large", 0) for _ in range(4)),
    Step("begin", 0, 1),
    Step("abort", 0),
    Step("commit", 4),
    Step("delete", 0),
    Step("append", 5),
    Step("delete", 1),
    Step("lead", 6, 2),
]
"""With a transaction that stays open, and a log that all is deleted of but that."""


def directory_of(path: Path, done: list[Step], kind: type[Writer] = Writer) -> Path:
    writer = kind(path)
    for step in done:
        writer.do(step)
    writer.close()
    return path


def bring_in(directory: Path, address: DatabaseAddress, *brokers: int) -> LoadedTopics:
    with opened_directory(str(directory)) as contents:
        return asyncio.run(load(address, contents, brokers))


def write_out(address: DatabaseAddress, directory: Path, node_id: int = 7) -> Path:
    with new_directory(directory) as unfinished:
        asyncio.run(dump(address, unfinished, node_id))
    return directory


def test_a_broker_that_has_stopped_is_to_lead_and_one_that_was_removed_is_not():
    image = Image()
    changes = [
        *(RegisterBroker(broker_id, UUID(int=broker_id), 0) for broker_id in (1, 2, 3)),
        LeaveCluster(2, 2),
        UnregisterBroker(3, 3),
    ]
    for change in changes:
        delta = change.rows(image, 1)
        assert isinstance(delta, Delta)
        image = image.after(delta)

    assert brokers_there(image) == [1, 2]


def test_a_disk_that_does_not_take_it_is_not_taken_for_the_database(address: DatabaseAddress, tmp_path: Path):
    bring_in(directory_of(tmp_path / "before", A_BIT_OF_ALL), address)

    with pytest.raises(CoterieError) as raised:
        asyncio.run(dump(address, tmp_path / "nowhere", 7))

    folder = re.escape(str(tmp_path / "nowhere"))
    assert re.fullmatch(f"cannot use {folder}/[^ ]*: No such file or directory", str(raised.value))


def test_the_directory_may_be_the_one_that_one_is_in(
    address: DatabaseAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = directory_of(tmp_path / "before", A_BIT_OF_ALL)
    bring_in(before, address)
    (tmp_path / "after").mkdir()
    monkeypatch.chdir(tmp_path / "after")

    write_out(address, Path())

    assert facts_of(tmp_path / "after").logs == facts_of(before).logs


def test_a_directory_that_has_no_name_is_refused_with_a_sentence():
    with pytest.raises(CoterieError, match="/ is not empty"), new_directory(Path("/")):
        pass


def test_of_two_that_write_one_directory_the_second_is_refused_and_the_first_ends_whole(tmp_path: Path):
    there = tmp_path / "there"
    with new_directory(there) as unfinished:
        (unfinished / "of-the-first").touch()
        with pytest.raises(CoterieError, match="is being written by another command"), new_directory(there):
            pass
        assert (unfinished / "of-the-first").exists()
        (unfinished / "of-the-first").unlink()

    assert there.is_dir()
    assert not unfinished.exists()


def test_what_a_command_left_that_was_killed_is_removed_by_the_next(tmp_path: Path):
    (tmp_path / "there.unfinished").mkdir()
    (tmp_path / "there.unfinished" / "half").touch()

    with new_directory(tmp_path / "there"):
        pass

    assert not (tmp_path / "there" / "half").exists()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(done=st.lists(steps, max_size=40))
def test_a_directory_comes_out_as_it_went_in(server: Server, with_tables: str, done: list[Step]):
    address = DatabaseAddress(server.url(server.new_database(with_tables)))
    with tempfile.TemporaryDirectory() as folder:
        before = directory_of(Path(folder, "before"), done)
        there = facts_of(before)

        bring_in(before, address)
        after = facts_of(write_out(address, Path(folder, "after")))

        assert after.topics == there.topics
        assert after.cluster_id == there.cluster_id
        assert after.next_producer_id > there.next_producer_id
        for name, log in there.logs.items():
            assert after.logs[name] == log, name


def test_one_with_a_bit_of_all_comes_out_as_it_went_in(address: DatabaseAddress, tmp_path: Path):
    before = directory_of(tmp_path / "before", A_BIT_OF_ALL)
    there = facts_of(before)

    done = bring_in(before, address)
    after = facts_of(write_out(address, tmp_path / "after"))

    assert done == LoadedTopics(
        there.cluster_id, len(TOPICS), PARTITIONS, sum(one.end for one in there.logs.values())
    )
    assert after.logs == there.logs
    assert any(one.aborted for one in there.logs.values())
    assert any(one.start for one in there.logs.values())
    assert any(one.stable < one.end for one in there.logs.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before"]


@pytest.mark.parametrize("done", [A_BIT_OF_ALL, []], ids=["a bit of all", "nothing"])
def test_the_directory_of_several_brokers_comes_out_whole(
    done: list[Step], server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    before = directory_of(tmp_path / "before", done, WriterOfSeveral)
    there = facts_of(before)

    loaded = bring_in(before, address)
    after = facts_of(write_out(address, tmp_path / "after"))

    assert loaded[:3] == (there.cluster_id, len(TOPICS), PARTITIONS)
    assert after.logs == there.logs
    assert (after.cluster_id, after.topics) == (there.cluster_id, there.topics)
    assert after.next_producer_id > there.next_producer_id
    replicas = server.sql(database, "SELECT DISTINCT replicas FROM coterie.partitions ORDER BY 1")
    assert replicas.splitlines() == ["{7}", "{8}", "{9}"], "those whose directory it is are to lead"


def test_of_several_brokers_partitions_are_led_behind_the_epochs_that_clients_know(
    server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    before = directory_of(tmp_path / "before", [], WriterOfSeveral)
    with arranged(str(before), None) as metadata:
        for _ in range(
            3
        ):  # each start is a leader epoch of its coordinators, which no log has before it is led
            metadata.execute(RegisterProcess(7, uuid4()))
        known = {
            (topic.name, row.number): row.leader_epoch
            for topic in image_of(metadata).topics()
            for row in image_of(metadata).partitions(topic.topic_id)
        }

    bring_in(before, address)

    rows = server.sql(
        database,
        "SELECT name, number, leader_epoch FROM coterie.partitions JOIN coterie.topics USING (topic_id)",
    )
    led = {
        (name, int(number)): int(epoch) for name, number, epoch in (row.split("|") for row in rows.split())
    }
    assert max(known.values()) == 3
    assert led == {name: epoch + 1 for name, epoch in known.items()}


def test_what_a_stopped_move_has_left_of_several_brokers_is_brought_in_too(
    address: DatabaseAddress, tmp_path: Path
):
    before = directory_of(tmp_path / "before", A_BIT_OF_ALL, WriterOfSeveral)
    there = facts_of(before)
    with closing(SqliteMetadata(f"{before}/{METADATA}")) as metadata:
        metadata.execute(ArrangeBrokers((7, 9)))  # and the process is killed before it has moved anything

    bring_in(before, address)

    after = facts_of(write_out(address, tmp_path / "after"))
    for name, log in there.logs.items():
        assert after.logs[name]._replace(epochs=[]) == log._replace(epochs=[]), name


def test_of_several_brokers_what_is_missing_is_named_and_nothing_is_brought_in(
    server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    without_one = directory_of(tmp_path / "without-one", A_BIT_OF_ALL, WriterOfSeveral)
    without_log = directory_of(tmp_path / "without-log", A_BIT_OF_ALL, WriterOfSeveral)
    rmtree(without_one / "8")
    (log,) = without_log.glob("*/orders-1")
    rmtree(log)

    missing = r"has no log of .*orders-1: put back what is missing in .*/8, the directory of broker 8\. Where"
    for path in (without_one, without_log):
        with pytest.raises(CoterieError, match=missing):
            bring_in(path, address)
    with closing(SqliteMetadata(f"{without_one}/{METADATA}")) as metadata:
        metadata.execute(RegisterProcess(8, UUID(int=8)))
    with pytest.raises(
        CoterieError, match=r"put back .*/8, the directory of broker 8, which is gone or empty$"
    ):
        bring_in(without_one, address)
    with pytest.raises(
        CoterieError, match=rf"is of one of several brokers.*; name {re.escape(str(without_log))},"
    ):
        bring_in(without_log / "8", address)
    link = tmp_path / "link"
    link.symlink_to(without_log / "8")
    there = sorted(without_log.glob("8/*"))
    with pytest.raises(CoterieError, match=rf"is of one of several.*; name {re.escape(str(without_log))},"):
        bring_in(link, address)

    assert sorted(without_log.glob("8/*")) == there
    assert not (without_one / "8").exists(), "a start would make it anew, empty"
    assert server.sql(database, "SELECT count(*) FROM coterie.topics") == "0"


@pytest.mark.parametrize("kind", [Writer, WriterOfSeveral])
def test_a_directory_may_have_more_logs_than_a_shell_allows_open_files(kind: type[Writer], tmp_path: Path):
    before = directory_of(tmp_path / "before", [], kind)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + PARTITIONS - 1, hard))
    try:
        assert len(facts_of(before).logs) == PARTITIONS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_while_several_brokers_run_their_directory_is_refused(address: DatabaseAddress, tmp_path: Path):
    before = directory_of(tmp_path / "before", [], WriterOfSeveral)

    with arranged(str(before), None), pytest.raises(CoterieError, match="in use by another broker"):
        bring_in(before, address)


@pytest.fixture
def kafkas(tmp_path: Path) -> Path:
    """The directory of an Apache Kafka 4.3.1: deleted and changed topics, transactions, groups, a crash."""
    with ZipFile(Path(__file__).parents[2] / "data" / "kafka_directory.zip") as recorded:
        recorded.extractall(tmp_path / "kafka")
    return tmp_path / "kafka"


def test_a_directory_of_apache_kafkas_comes_out_as_it_went_in(address: DatabaseAddress, kafkas: Path):
    there = facts_of(kafkas)

    bring_in(kafkas, address)
    after = facts_of(write_out(address, kafkas.with_name("after")))

    assert after.topics == there.topics
    for name, log in there.logs.items():
        came = after.logs[name]
        assert came._replace(producers=log.producers) == log, name
        assert came.producers.items() >= log.producers.items(), "those that had expired are known again"
    assert {"__consumer_offsets", "__transaction_state"} < there.topics.keys()
    assert after.cluster_id == there.cluster_id


def test_a_history_is_that_of_the_directory_that_was_brought_in(
    server: Server, database: str, address: DatabaseAddress, kafkas: Path, tmp_path: Path
):
    server.sql("postgres", "CREATE ROLE looker LOGIN IN ROLE coterie_reader")
    plain = server.url(database, user="looker")

    def run(*words: object) -> str:
        result = CliRunner().invoke(cli, ["history", *map(str, words)])
        assert not result.exception, result.output
        return result.stdout

    try:
        bring_in(kafkas, address)
        told = [
            run(plain),
            run(plain, "--output", "json"),
            run(plain, "--what-if", "session.timeout.ms=9000"),
        ]
        run(plain, "--html", tmp_path / "report.html")
    finally:
        server.sql("postgres", "DROP ROLE looker")

    assert "classic: 1 rebalance" in told[0]
    assert told == [
        run(kafkas),
        run(kafkas, "--output", "json"),
        run(kafkas, "--what-if", "session.timeout.ms=9000"),
    ]
    assert f"Consumer groups of {address}".replace("postgres@", "looker@") in (
        tmp_path / "report.html"
    ).read_text(encoding="utf-8")


def test_where_no_group_has_been_there_is_no_history(address: DatabaseAddress):
    result = CliRunner().invoke(cli, ["history", address.url])

    assert str(result.exception) == f"{address} has no __consumer_offsets: no group has been there yet"


def test_partitions_are_led_behind_their_epochs_by_those_that_are_named(
    server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    before = directory_of(tmp_path / "before", [Step("append", 1), Step("lead", 1, 4), Step("append", 1)])

    bring_in(before, address, 1, 2)

    rows = server.sql(
        database,
        "SELECT number, replicas, leader, leader_epoch FROM coterie.partitions JOIN coterie.topics"
        " USING (topic_id) WHERE name = 'orders' ORDER BY number",
    )
    assert rows.splitlines()[1].endswith("||5")
    assert {row.split("|")[1] for row in rows.splitlines()} == {"{1}", "{2}"}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("orders", r"bring it into an empty database \(createdb makes one\), or delete what is there first"),
        (
            "__consumer_offsets",
            "groups have been there, and cannot be joined with those of the directory: bring",
        ),
    ],
)
def test_where_a_topic_is_there_nothing_is_brought_in_and_it_is_said_what_to_do(
    name: str, remedy: str, server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    before = directory_of(tmp_path / "before", A_BIT_OF_ALL)
    server.sql(
        database,
        f"INSERT INTO coterie.topics VALUES (gen_random_uuid(), '{name}', 0, '{{}}', 0, false, 1);"
        "UPDATE coterie.cluster SET version = 1",
    )
    theirs = server.sql(database, "SELECT cluster_id FROM coterie.cluster")

    with pytest.raises(CoterieError, match=rf"of the name: {name}\. Nothing was brought in; {remedy}"):
        bring_in(before, address)

    assert server.sql(database, "SELECT count(*) FROM coterie.topics") == "1"
    assert server.sql(database, "SELECT count(*) FROM coterie.chunks_keep") == "0"
    assert server.sql(database, "SELECT cluster_id FROM coterie.cluster") == theirs


def test_a_batch_that_is_damaged_is_named_and_nothing_is_brought_in(
    server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    before = directory_of(tmp_path / "before", A_BIT_OF_ALL)
    segment = before / "orders-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[-2] ^= 1
    with opened_directory(str(before)) as contents:
        segment.write_bytes(data)  # which a start would cut off
        with pytest.raises(CoterieError, match="a batch of orders-0 at offset"):
            asyncio.run(load(address, contents))

    assert server.sql(database, "SELECT count(*) FROM coterie.chunks_keep") == "0"
    assert server.sql(database, "SELECT count(*) FROM coterie.topics") == "0"


def test_what_is_no_whole_directory_is_refused(tmp_path: Path):
    whole = directory_of(tmp_path / "whole", [])
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "letter.txt").write_text("")
    for path in (whole / "orders-1").iterdir():
        path.unlink()
    (whole / "orders-1").rmdir()

    for path, sentence in (
        (whole, "has no log of orders-1: a broker that is killed"),
        (tmp_path / "others", "other"),
    ):
        with pytest.raises(CoterieError, match=sentence), opened_directory(str(path)):
            pass


def test_only_what_is_new_or_empty_is_written_to(address: DatabaseAddress, tmp_path: Path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    for path in (full, empty, tmp_path / "empty.unfinished"):
        path.mkdir()
    (full / "letter.txt").write_text("")
    (tmp_path / "empty.unfinished" / "half").write_text("")

    with pytest.raises(CoterieError, match=r"letter\.txt is a file; name a folder that is new or empty"):
        write_out(address, full / "letter.txt")
    with pytest.raises(CoterieError, match="full is not empty"):
        write_out(address, full)
    write_out(address, empty)

    assert facts_of(empty).topics == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_the_commands_bring_a_directory_in_and_write_it_out(server: Server, tmp_path: Path):
    before = directory_of(tmp_path / "before", A_BIT_OF_ALL)
    url = server.url(server.new_database())  # which has no tables

    def run(*words: object) -> Result:
        return CliRunner().invoke(cli, ["store", *map(str, words)])

    there = facts_of(before)
    loaded = run("load", before, url, "--brokers", "1,2,3")
    again = run("load", before, url)
    dumped = run("dump", url, tmp_path / "after", "--node-id", "4", "--output", "json")

    assert (
        loaded.output == f"cluster {there.cluster_id}: 4 topics of {PARTITIONS} partitions are brought in\n"
    )
    assert again.exit_code == 1
    assert "there is a topic of the name: " in str(again.exception)
    assert "delete" not in str(again.exception), "deleted there they could not come again"
    assert json.loads(dumped.output)["partitions"] == PARTITIONS
    assert "node.id=4\n" in (tmp_path / "after" / "meta.properties").read_text()
    assert facts_of(tmp_path / "after").logs == there.logs
    assert run("load", before, url, "--brokers", "one").exit_code == 2


def test_ids_of_topics_that_were_deleted_are_refused(
    server: Server, database: str, address: DatabaseAddress, tmp_path: Path
):
    before = directory_of(tmp_path / "before", [])
    topic_id: UUID = facts_of(before).topics["orders"][0]
    server.sql(
        database,
        f"INSERT INTO coterie.topics VALUES ('{topic_id}', 'older', 0, '{{}}', 0, true, 1);"
        "UPDATE coterie.cluster SET version = 1",
    )

    with pytest.raises(CoterieError, match="its id is never used again"):
        bring_in(before, address)


@pytest.mark.parametrize("brokers", ["1,x", "-1", "1,,2", "2147483648", "9" * 5_000])
def test_ids_that_no_broker_has_are_refused_before_anything_is_read(tmp_path: Path, brokers: str):
    asked = CliRunner().invoke(
        cli, ["store", "load", str(tmp_path), "postgresql://db/coterie", "--brokers", brokers]
    )

    assert asked.exit_code == 2
    assert "takes ids with commas between, as 1,2,3" in asked.output
