"""The metadata in one SQLite file is an engine: the kit that each passes; and what a file does besides."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from cluster.engine_kit import Broker, EngineKit, topic
from coterie.broker.cluster.changes import Changed, CreateTopics
from coterie.broker.cluster.statements import ReadDelta
from coterie.broker.processes import sqlite
from coterie.broker.processes.engine import SqliteEngine
from coterie.broker.processes.sqlite import (
    MetadataFailed,
    MetadataUnusable,
    SqliteMetadata,
    WriteRefused,
)

from .several import NO_ROOM

NAME = "coterie.cluster.sqlite"
WITHIN_S = 20.0
KILLED_AMID_CHANGES = """
import itertools, os, sys
from uuid import UUID
from coterie.broker.cluster.changes import CreateTopics, NewTopic
from coterie.broker.processes.sqlite import SqliteMetadata

metadata = SqliteMetadata(sys.argv[1])
for number in itertools.count(1):
    topics = tuple(NewTopic(UUID(int=2 * number + at), f"t{number}-{at}", ((1,),) * 5) for at in (0, 1))
    metadata.execute(CreateTopics(topics))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def join_sessions() -> None:
    """Wait until the threads of all sessions have ended."""
    for thread in threading.enumerate():
        if thread.name == "metadata":
            thread.join(WITHIN_S)
            assert not thread.is_alive()


class SqliteStage:
    """A file, and the callbacks of all sessions, in this thread."""

    has_presence = has_lanes = False

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{NAME}"
        SqliteMetadata(self.path, made_for="a cluster").close()
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.engines: list[SqliteEngine] = []

    def engine(self, broker_id: int) -> SqliteEngine:
        """Return the engine, as one process has it."""
        self.engines.append(SqliteEngine(self.path, self.posted.put, poll_s=0.01))
        return self.engines[-1]

    def until(self, holds: Callable[[], bool]) -> None:
        """Let what is posted happen until it holds."""
        while not holds():
            try:
                self.posted.get(timeout=WITHIN_S)()
            except Empty:
                raise AssertionError(f"not so within {WITHIN_S} s") from None

    def end_sessions(self) -> None:
        """Have the file be of no use for a while: sessions notice, each by itself."""
        with sqlite3.connect(self.path) as database:
            database.execute("ALTER TABLE cluster RENAME TO away")
        database.close()
        join_sessions()
        with sqlite3.connect(self.path) as database:
            database.execute("ALTER TABLE away RENAME TO cluster")
        database.close()

    def takes_appends(self, broker_id: int, broker_epoch: int) -> bool:
        """Return False: each has a directory of its own."""
        return False


class TestSqliteEngine(EngineKit):
    """The kit."""

    @contextmanager
    def stage(self) -> Iterator[SqliteStage]:
        with tempfile.TemporaryDirectory() as directory:
            stage = SqliteStage(directory)
            try:
                yield stage
            finally:
                for engine in stage.engines:
                    engine.close()
                join_sessions()


@pytest.fixture
def path(tmp_path: Path) -> str:
    where = f"{tmp_path}/100%? #1.sqlite"  # which a URI would have otherwise
    SqliteMetadata(where, made_for="a cluster").close()
    return where


def change(metadata: SqliteMetadata, number: int) -> int:
    answer = metadata.execute(CreateTopics((topic(number, f"t{number}"),)))
    assert isinstance(answer, Changed)
    return answer.version


def test_what_was_changed_is_there_when_the_file_is_opened_again(path: str):
    metadata = SqliteMetadata(path)
    change(metadata, 1)
    before, history = metadata.execute(ReadDelta(0)), metadata.history
    metadata.close()

    again = SqliteMetadata(path, made_for="another cluster")

    assert again.execute(ReadDelta(0)) == before
    assert (again.cluster_id, again.history, again.problem()) == ("a cluster", history, None)
    assert change(again, 2) == 2


def test_a_process_that_is_killed_amid_changes_leaves_each_of_them_whole(path: str):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_AMID_CHANGES, path], stdout=subprocess.PIPE, text=True
    ) as changing:
        assert changing.stdout is not None
        for _ in range(20):
            changing.stdout.readline()
        changing.kill()
        last = 20 + len(changing.stdout.read().split("\n")) - 1

    metadata = SqliteMetadata(path)
    broker = metadata.execute(ReadDelta(0))

    assert metadata.problem() is None
    assert metadata.version() in (last, last + 1)
    assert len(broker.topics) == 2 * metadata.version()
    assert len(broker.partitions) == 10 * metadata.version()


def test_a_file_that_is_not_there_is_made_by_whoever_is_to_make_it_alone(tmp_path: Path):
    where = f"{tmp_path}/{NAME}"
    with pytest.raises(MetadataUnusable, match="cannot open"):
        SqliteMetadata(where)

    assert not Path(where).exists()


def test_two_that_make_a_file_at_once_have_one_cluster(tmp_path: Path):
    where, made = f"{tmp_path}/{NAME}", []

    def make(cluster_id: str) -> None:
        metadata = SqliteMetadata(where, made_for=cluster_id)
        made.append((metadata.cluster_id, metadata.history))
        metadata.close()

    threads = [threading.Thread(target=make, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)

    assert len(made) == 2
    assert len({*made}) == 1


@pytest.mark.parametrize("made_for", [None, "a cluster"])
@pytest.mark.parametrize(
    ("change_file", "sentence"),
    [
        (lambda path: Path(path).write_bytes(b"hello, world. " * 100), "no file of brokers' metadata"),
        (lambda path: altered(path, "PRAGMA application_id = 7"), "is not the metadata of brokers"),
        (lambda path: altered(path, "PRAGMA user_version = 99"), "is of schema 99, and this version reads 1"),
        (lambda path: altered(path, "DELETE FROM cluster"), "it names 0 clusters, not one"),
        (lambda path: altered(path, "DROP TABLE cluster"), "no such table: cluster"),
    ],
    ids=["no database", "another's", "of a later version", "no cluster", "no table"],
)
def test_a_file_that_is_not_ours_or_damaged_is_refused_with_a_sentence(
    path: str, change_file: Callable[[str], None], sentence: str, made_for: str | None
):
    change_file(path)
    before = Path(path).read_bytes()

    with pytest.raises(MetadataUnusable, match=sentence) as refused:
        SqliteMetadata(path, made_for=made_for)

    assert path in str(refused.value)
    assert Path(path).read_bytes() == before


def test_a_database_of_something_else_is_left_as_it_is(tmp_path: Path):
    where = f"{tmp_path}/{NAME}"
    altered(where, "CREATE TABLE recipes (name TEXT)")

    with pytest.raises(MetadataUnusable, match="is not the metadata of brokers"):
        SqliteMetadata(where, made_for="a cluster")

    with sqlite3.connect(where) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    database.close()


def test_rows_that_do_not_belong_together_are_found(path: str):
    metadata = SqliteMetadata(path)
    change(metadata, 1)
    metadata.close()
    altered(path, "DELETE FROM partitions")

    problem = SqliteMetadata(path).problem()

    assert problem is not None
    assert "is damaged: the partitions of topic" in problem
    with pytest.raises(MetadataFailed, match="is damaged"):
        change(SqliteMetadata(path), 2)


def test_a_statement_that_fails_ends_the_connection_and_changes_nothing(path: str):
    metadata, other = SqliteMetadata(path), SqliteMetadata(path)
    change(metadata, 1)
    altered(path, "ALTER TABLE topics RENAME TO elsewhere")

    with pytest.raises(WriteRefused, match="no such table: topics") as refused:
        change(metadata, 2)

    assert not refused.value.usable
    altered(path, "ALTER TABLE elsewhere RENAME TO topics")
    with pytest.raises(MetadataFailed):
        metadata.version()
    assert other.version() == 1
    assert change(other, 2) == 2


def test_a_statement_that_is_refused_changes_nothing_and_the_next_one_is_made(path: str):
    metadata = SqliteMetadata(path)
    change(metadata, 1)
    altered(path, NO_ROOM)

    with pytest.raises(WriteRefused, match="no room") as refused:
        change(metadata, 2)

    assert (refused.value.reason, refused.value.usable) == ("no room", True)
    altered(path, "DROP TRIGGER no_room")
    assert metadata.version() == 1
    assert change(metadata, 2) == 2


def test_of_a_change_that_waits_for_others_too_long_nothing_is_known(
    path: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite, "LOCKED_MAX_S", 0.01)
    metadata = SqliteMetadata(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(MetadataFailed, match="locked") as failed:
            change(metadata, 1)

    assert not isinstance(failed.value, WriteRefused)


def test_a_change_that_is_announced_is_noticed_without_waiting_for_the_next_look(tmp_path: Path):
    stage = SqliteStage(str(tmp_path))
    engine = SqliteEngine(stage.path, stage.posted.put, poll_s=10 * WITHIN_S)
    other = SqliteEngine(stage.path, stage.posted.put, poll_s=10 * WITHIN_S, changed=engine.look)
    stage.engines = [engine, other]
    stage.engine = lambda broker_id: stage.engines[broker_id - 1]  # type: ignore[method-assign]
    hearing, changing = Broker(stage, 1), Broker(stage, 2, membership=False)

    version = changing.change(CreateTopics((topic(1, "t"),)))
    stage.until(lambda: hearing.notified == [version])

    engine.close()
    other.close()
    join_sessions()


def altered(path: str, statement: str) -> None:
    """Have somebody else change a file."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(statement)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
