"""The metadata of a cluster in one SQLite file, for the brokers of one machine. Each statement is one
transaction.

All brokers have the file open, each by a connection of its own. A change takes SQLite's lock for writing, so
changes are made one after another; it lasts (WAL, synchronous=FULL) before its answer leaves. Where a process
is killed the file holds all of a change or nothing.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID, uuid4

from coterie.base.errors import CoterieError
from coterie.base.ids import PRODUCER_ID_BLOCK
from coterie.broker.cluster.changes import (
    Changed,
    MetadataChange,
    NotChanged,
    TakeOver,
    Why,
)
from coterie.broker.cluster.image import (
    BrokerRow,
    BrokerState,
    Delta,
    DoesNotFollow,
    Endpoint,
    Image,
    PartitionRow,
    SettingRow,
    TopicRow,
)
from coterie.broker.cluster.statements import (
    Answer,
    BrokerHeartbeat,
    Counted,
    HeartbeatAnswer,
    ProducerIds,
    ReadDelta,
    ReserveProducerIds,
    Statement,
)

APPLICATION_ID = 0x436F7465  # "Cote": by it SQLite's header says whose file it is
SCHEMA = 1
LOCKED_MAX_S = 5.0  # for so long a statement waits for others' changes
LOOK_AGAIN_S = 0.005
PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Others are at it: the same may be made another time."""
HARMLESS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG)
"""After these the connection is of use as before."""

TABLES = (
    """CREATE TABLE cluster (one INTEGER PRIMARY KEY CHECK (one = 1), cluster_id TEXT NOT NULL,
        history TEXT NOT NULL, version INTEGER NOT NULL, level INTEGER NOT NULL,
        next_partition_id INTEGER NOT NULL, next_producer_id INTEGER NOT NULL)""",
    """CREATE TABLE brokers (broker_id INTEGER PRIMARY KEY, broker_epoch INTEGER NOT NULL,
        incarnation TEXT NOT NULL, state TEXT NOT NULL, listeners TEXT NOT NULL, rack TEXT,
        level INTEGER NOT NULL, software TEXT NOT NULL, version INTEGER NOT NULL)""",
    """CREATE TABLE heartbeats (broker_id INTEGER PRIMARY KEY, beats INTEGER NOT NULL,
        seen INTEGER NOT NULL)""",
    """CREATE TABLE topics (topic_id TEXT PRIMARY KEY, name TEXT NOT NULL, partitions INTEGER NOT NULL,
        configs TEXT NOT NULL, created_ms INTEGER NOT NULL, deleted INTEGER NOT NULL,
        version INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX topic_names ON topics (name) WHERE NOT deleted",
    "CREATE INDEX topic_versions ON topics (version)",
    """CREATE TABLE partitions (partition_id INTEGER PRIMARY KEY, topic_id TEXT NOT NULL,
        number INTEGER NOT NULL, replicas TEXT NOT NULL, leader INTEGER, leader_epoch INTEGER NOT NULL,
        next_leader INTEGER, version INTEGER NOT NULL, UNIQUE (topic_id, number))""",
    "CREATE INDEX partition_versions ON partitions (version)",
    """CREATE TABLE settings (scope TEXT NOT NULL, name TEXT NOT NULL, value TEXT, version INTEGER NOT NULL,
        PRIMARY KEY (scope, name))""",
)

R = TypeVar("R")


class MetadataUnusable(CoterieError):
    """The file cannot be opened, or is none of ours; `str()` is a sentence that says why."""


class MetadataFailed(CoterieError):
    """A statement has failed. Whether it has happened is not known; the connection is closed."""


class WriteRefused(MetadataFailed):
    """A statement that writes is refused, as for want of room: nothing of it has happened, nor will. `reason`
    is SQLite's; the connection is closed unless it is `usable`.
    """

    def __init__(self, path: str, error: sqlite3.Error, *, usable: bool) -> None:
        super().__init__(f"cannot write {path}: {error}" if usable else _cannot_read(path, error))
        self.reason = str(error)
        self.usable = usable


class ChangeFailed(Exception):
    """A change could not say which rows it makes: a mistake of this version, and not of the file. Nothing has
    happened.
    """


class ReadHeartbeats(NamedTuple):
    """Read how far the image of each broker has reached, and count nobody; the answer is a `HeartbeatAnswer`.

    Nothing is written: who waits for others may ask again and again.
    """


SqliteStatement: TypeAlias = Statement | MetadataChange | ReadHeartbeats


class SqliteMetadata:
    """A connection to the file of the metadata. Of one thread."""

    def __init__(self, path: str, *, made_for: str | None = None) -> None:
        """Open a file that is there; with `made_for`, the id of a cluster, it is made if it is not. Raises
        `MetadataUnusable`.
        """
        self.path = path
        mode = "rw" if made_for is None else "rwc"
        try:
            self._database = sqlite3.connect(
                f"file:{_quoted(path)}?mode={mode}", uri=True, timeout=LOCKED_MAX_S, isolation_level=None
            )
        except sqlite3.Error as error:
            raise MetadataUnusable(f"cannot open {path}: {error}") from error
        try:
            if made_for is not None:
                self._make(made_for)
            self._check()
        except MetadataUnusable:
            self.close()
            raise
        except sqlite3.Error as error:
            self.close()
            raise MetadataUnusable(_cannot_read(path, error)) from error
        self._image = Image()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    # -- the file

    def _make(self, cluster_id: str) -> None:
        """Make the tables in a file that is empty."""
        self._database.execute("PRAGMA synchronous = FULL")
        if self._number("PRAGMA page_count") == 0:
            self._write_ahead()
        with self._transaction("IMMEDIATE"):
            if self._number("SELECT count(*) FROM sqlite_master") or self._number("PRAGMA application_id"):
                return
            self._database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._database.execute(f"PRAGMA user_version = {SCHEMA}")
            for table in TABLES:
                self._database.execute(table)
            self._database.execute(
                "INSERT INTO cluster VALUES (1, ?, ?, 0, 0, 1, 0)", (cluster_id, uuid4().hex)
            )

    def _check(self) -> None:
        """Raise `MetadataUnusable` where the file is not one that this version reads."""
        if self._number("PRAGMA application_id") != APPLICATION_ID:
            raise MetadataUnusable(f"{self.path} is not the metadata of brokers; move it away")
        schema = self._number("PRAGMA user_version")
        if schema != SCHEMA:
            raise MetadataUnusable(f"{self.path} is of schema {schema}, and this version reads {SCHEMA}")
        self._write_ahead()
        self._database.execute("PRAGMA synchronous = FULL")
        rows = self._database.execute("SELECT cluster_id, history FROM cluster").fetchall()
        if len(rows) != 1:
            raise MetadataUnusable(f"{self.path} is damaged: it names {len(rows)} clusters, not one")
        self.cluster_id, self.history = rows[0]

    def _write_ahead(self) -> None:
        """Have the file's journal be a WAL. Where another connection is about to do the same, SQLite does not
        wait for it as it does elsewhere.
        """
        end = time.monotonic() + LOCKED_MAX_S
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(LOOK_AGAIN_S)
            else:
                return

    def problem(self) -> str | None:
        """Return a sentence if pages or rows of the file are damaged. It reads all of it."""
        try:
            (said,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
            if said == "ok":
                self._insist_on(0)
                return None
        except (sqlite3.Error, ValueError, TypeError, KeyError, DoesNotFollow) as error:
            said = str(error)
        return f"{self.path} is damaged: {said}"

    def _insist_on(self, above: int) -> None:
        Image().after(self._delta(above))

    def sweep(self, version: int) -> None:
        """Forget topics that were deleted up to a version: all brokers have done what follows from it. Raises
        `MetadataFailed`.
        """
        deleted = "SELECT topic_id FROM topics WHERE deleted AND version <= ?"
        self._run(
            lambda: self._write_all(
                (f"DELETE FROM partitions WHERE topic_id IN ({deleted})", version),
                ("DELETE FROM topics WHERE deleted AND version <= ?", version),
            )
        )

    def _write_all(self, *statements: tuple[str, int]) -> None:
        with self._transaction("IMMEDIATE"):
            for statement, value in statements:
                self._database.execute(statement, (value,))

    # -- statements

    def changed_elsewhere(self) -> int:
        """Return a number that differs from the last one if another connection has written meanwhile."""
        return self._run(lambda: self._number("PRAGMA data_version"))

    def version(self) -> int:
        """Return the version of the metadata."""
        return self._run(lambda: self._number("SELECT version FROM cluster"))

    def execute(self, statement: SqliteStatement) -> Answer:
        """Carry a statement out, whole, and return the answer. Raises `MetadataFailed`, which is a
        `WriteRefused` where nothing of it has happened, and `ChangeFailed`.
        """
        match statement:
            case ReadHeartbeats():
                return self._run(self._read_heartbeats)
            case BrokerHeartbeat():
                return self._run(lambda: self._heartbeat(statement))
            case ReadDelta(above):
                return self._run(lambda: self._read(above))
            case ReserveProducerIds():
                return self._run(self._reserve)
            case _:
                return self._run(lambda: self._change(statement))

    def _run(self, work: Callable[[], R]) -> R:
        try:
            return work()
        except WriteRefused as error:
            if not error.usable:
                self.close()
            raise
        except (sqlite3.Error, ValueError, TypeError, KeyError, DoesNotFollow) as error:
            self.close()
            raise MetadataFailed(_cannot_read(self.path, error)) from error

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._database.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Have what is done within be one transaction that writes. Raises `WriteRefused` where it is known
        that nothing of it was made: before the commit, or where that found no room.
        """
        committing = False
        try:
            with self._transaction("IMMEDIATE"):
                yield
                committing = True
        except sqlite3.Error as error:
            code = primary_code(error)
            if code in PASSING or (committing and code != sqlite3.SQLITE_FULL):
                raise
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise WriteRefused(self.path, error, usable=code in HARMLESS) from error

    def _number(self, query: str, values: Sequence[Any] = ()) -> int:
        (number,) = self._database.execute(query, values).fetchone()
        return int(number)

    def _heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer:
        with self._writing():
            counted = self._database.execute(
                "UPDATE heartbeats SET beats = beats + 1, seen = ? WHERE broker_id = (SELECT broker_id"
                " FROM brokers WHERE broker_id = ? AND broker_epoch = ? AND state <> ?)",
                (heartbeat.seen, heartbeat.broker_id, heartbeat.broker_epoch, BrokerState.FENCED),
            ).rowcount
            return self._counts(counted=counted == 1)

    def _read_heartbeats(self) -> HeartbeatAnswer:
        with self._transaction("DEFERRED"):
            return self._counts(counted=False)

    def _counts(self, *, counted: bool) -> HeartbeatAnswer:
        rows = self._database.execute(
            "SELECT broker_id, broker_epoch, beats, seen FROM brokers JOIN heartbeats USING (broker_id)"
            " WHERE state <> ? ORDER BY broker_id",
            (BrokerState.FENCED,),
        ).fetchall()
        brokers = tuple(Counted(one, epoch, beats, False, seen) for one, epoch, beats, seen in rows)
        return HeartbeatAnswer(counted, self._number("SELECT version FROM cluster"), brokers)

    def _reserve(self) -> ProducerIds:
        with self._writing():
            first = self._number("SELECT next_producer_id FROM cluster")
            self._database.execute("UPDATE cluster SET next_producer_id = ?", (first + PRODUCER_ID_BLOCK,))
        return ProducerIds(first, PRODUCER_ID_BLOCK)

    def _read(self, above: int) -> Delta:
        with self._transaction("DEFERRED"):
            return self._delta(above)

    def _delta(self, above: int) -> Delta:
        version, level = self._database.execute("SELECT version, level FROM cluster").fetchone()
        return Delta(
            above=above,
            version=version,
            level=level,
            brokers=[*map(_broker, self._above("brokers", above))],
            topics=[*map(_topic, self._above("topics", above))],
            partitions=[*map(_partition, self._above("partitions", above))],
            settings=[SettingRow(*row) for row in self._above("settings", above)],
        )

    def _above(self, table: str, version: int) -> Iterable[tuple[Any, ...]]:
        return self._database.execute(f"SELECT * FROM {table} WHERE version > ?", (version,))

    # -- changes

    def _change(self, change: MetadataChange) -> Changed | NotChanged:
        with self._writing():
            image = self._brought_up()
            if isinstance(change, TakeOver) and self._beats_on(change):
                return NotChanged(Why.BEATS_ON)
            delta = _rows(change, image, self._number("SELECT next_partition_id FROM cluster"))
            if isinstance(delta, NotChanged):
                return delta
            if self._has_ids_of_deleted_topics(delta):
                return NotChanged(Why.ID_TAKEN)
            self._write(delta)
        self._image = image.after(delta)  # not before it lasts
        return Changed(delta.version)

    def _brought_up(self) -> Image:
        """Return the image as the tables have it, under the lock for writing."""
        version = self._number("SELECT version FROM cluster")
        if version != self._image.version:
            try:
                self._image = self._image.after(self._delta(self._image.version))
            except DoesNotFollow:
                self._image = Image().after(self._delta(0))
        return self._image

    def _beats_on(self, change: TakeOver) -> bool:
        query = "SELECT beats FROM heartbeats WHERE broker_id = ?"
        found = self._database.execute(query, (change.broker_id,)).fetchone()
        return found is not None and found[0] != change.beats

    def _has_ids_of_deleted_topics(self, delta: Delta) -> bool:
        query = "SELECT count(*) FROM topics WHERE topic_id = ? AND deleted"
        return any(self._number(query, (row.topic_id.hex,)) for row in delta.topics if not row.deleted)

    def _write(self, delta: Delta) -> None:
        self._put("brokers", ("broker_id",), map(_of_broker, delta.brokers))
        self._put("topics", ("topic_id",), map(_of_topic, delta.topics))
        self._put("partitions", ("partition_id",), map(_of_partition, delta.partitions))
        self._put("settings", ("scope", "name"), delta.settings)
        registered = [(row.broker_id, 0, 0) for row in delta.brokers if row.broker_epoch == delta.version]
        self._put("heartbeats", ("broker_id",), registered)
        beyond = max((row.partition_id + 1 for row in delta.partitions), default=0)
        self._database.execute(
            "UPDATE cluster SET version = ?, level = ?, next_partition_id = max(next_partition_id, ?)",
            (delta.version, delta.level, beyond),
        )

    def _put(self, table: str, key: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write rows in the places of those of the same keys. No REPLACE: it would also remove a topic of the
        name, where two could have it.
        """
        values = [*rows]
        if not values:
            return
        where = " AND ".join(f"{column} = ?" for column in key)
        places = ", ".join("?" * len(values[0]))
        self._database.executemany(f"DELETE FROM {table} WHERE {where}", (row[: len(key)] for row in values))
        self._database.executemany(f"INSERT INTO {table} VALUES ({places})", values)


def _rows(change: MetadataChange, image: Image, new_partition_id: int) -> Delta | NotChanged:
    """Return the rows of a change; what goes wrong in it is not said of the file. Raises `ChangeFailed`."""
    try:
        return change.rows(image, new_partition_id)
    except Exception as error:
        raise ChangeFailed(f"{type(change).__name__}: {error!r}") from error


# -- rows as they are written


def _of_broker(row: BrokerRow) -> tuple[Any, ...]:
    listeners = json.dumps(row.listeners)
    return row._replace(incarnation=row.incarnation.hex, listeners=listeners)  # type: ignore[arg-type]


def _broker(row: tuple[Any, ...]) -> BrokerRow:
    broker_id, epoch, incarnation, state, listeners, *rest = row
    endpoints = tuple(Endpoint(*one) for one in json.loads(listeners))
    return BrokerRow(broker_id, epoch, UUID(incarnation), BrokerState(state), endpoints, *rest)


def _of_topic(row: TopicRow) -> tuple[Any, ...]:
    configs = json.dumps(dict(row.configs))
    return row._replace(topic_id=row.topic_id.hex, configs=configs)  # type: ignore[arg-type]


def _topic(row: tuple[Any, ...]) -> TopicRow:
    topic_id, name, partitions, configs, created_ms, deleted, version = row
    return TopicRow(UUID(topic_id), name, partitions, json.loads(configs), created_ms, bool(deleted), version)


def _of_partition(row: PartitionRow) -> tuple[Any, ...]:
    partition_id, topic_id, number, replicas, *rest = row
    return partition_id, topic_id.hex, number, json.dumps(replicas), *rest


def _partition(row: tuple[Any, ...]) -> PartitionRow:
    partition_id, topic_id, number, replicas, *rest = row
    return PartitionRow(partition_id, UUID(topic_id), number, tuple(json.loads(replicas)), *rest)


def _quoted(path: str) -> str:
    """Return a path as SQLite's file URIs have it."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def primary_code(error: sqlite3.Error) -> int:
    """Return the kind of an error, 0 where it is one of Python's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _cannot_read(path: str, error: Exception) -> str:
    if isinstance(error, sqlite3.OperationalError):  # locked, full, read-only
        return f"cannot use {path}: {error}"
    return f"{path} is damaged, or no file of brokers' metadata: {error}"
