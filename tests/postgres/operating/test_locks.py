"""While somebody keeps a lock on the tables: who waits for it is told soon, and the log says who keeps it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import asyncpg
import pytest
from bench.postgres import Server

from cluster.engine_kit import Broker, topic
from coterie.broker.cluster.changes import (
    AddPartitions,
    Changed,
    CreateTopics,
    DeleteTopics,
    LeaveCluster,
    NotChanged,
    SetConfigs,
    SetSetting,
)
from coterie.broker.cluster.statements import BrokerHeartbeat, Refused
from coterie.storage.postgres import blocking
from coterie.storage.postgres.blocking import LASTS_S, LockWatch
from coterie.storage.postgres.connecting import DatabaseAddress, connect
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.postgres.schema import BROKER, migrate
from coterie.storage.postgres.serial import BEGIN_WITHIN_S, LOCK_TIMEOUT_MS
from coterie.storage.postgres.starting import open_store

from ..rigs.stage import PostgresStage

pytestmark = pytest.mark.interop


class Holder:
    """Somebody who keeps a lock on the tables of a stage."""

    def __init__(self, stage: PostgresStage) -> None:
        self._stage = stage
        self._connection: asyncpg.Connection = stage.loop.run_until_complete(
            connect(stage.connections.address, use="by hand")
        )

    def holds(self, lock: str) -> None:
        """Begin a transaction, and take a lock in it."""
        self._stage.loop.run_until_complete(self._connection.execute(f"BEGIN; {lock}"))

    def lets_go(self) -> None:
        self._stage.loop.run_until_complete(self._connection.execute("ROLLBACK"))

    async def executes(self, statement: str) -> None:
        await self._connection.execute(statement)

    @property
    def pid(self) -> int:
        """The id of its process at the server."""
        return int(self._connection.get_server_pid())

    def close(self) -> None:
        self._connection.terminate()


@pytest.fixture
def stage(server: Server, with_tables: str) -> Iterator[PostgresStage]:
    made = PostgresStage(server, server.new_database(with_tables))
    yield made
    made.close()


@pytest.fixture
def holder(stage: PostgresStage) -> Iterator[Holder]:
    made = Holder(stage)
    yield made
    made.close()


def create(number: int) -> CreateTopics:
    """Return the change that makes a topic."""
    return CreateTopics((topic(number, f"t{number}"),))


def test_changes_that_have_waited_behind_one_that_a_lock_keeps_are_refused_with_it_and_not_one_after_another(
    stage: PostgresStage, holder: Holder
):
    """Found by a reviewer: each waited for the lock anew, two seconds, and the last of ten for twenty."""
    broker = Broker(stage)
    holder.holds("SELECT FROM coterie.cluster FOR UPDATE")

    for number in range(1, 6):
        broker.send(create(number))
    stage.until(lambda: len(broker.answers) == 5)

    (_, refusal), *_ = broker.answers
    assert isinstance(refusal, Refused)
    assert refusal.locked
    assert all(answer is refusal for _, answer in broker.answers)  # none has waited by itself
    holder.lets_go()
    broker.change(create(1))


def test_what_has_waited_behind_it_and_needs_other_rows_is_made(stage: PostgresStage, holder: Holder):
    broker = Broker(stage)
    epoch = broker.register()
    holder.holds("LOCK TABLE coterie.topics IN SHARE MODE")

    for change in (create(1), create(2), SetSetting("", "log.retention.ms", "9", 0), LeaveCluster(1, epoch)):
        broker.send(change)
    stage.until(lambda: len(broker.answers) == 5)

    first, leaving, second, setting = (answer for _, answer in broker.answers[1:])
    assert isinstance(first, Refused)
    assert second == first
    assert isinstance(setting, Changed)
    assert isinstance(leaving, Changed)
    holder.lets_go()


def test_a_broker_leaves_ahead_of_the_changes_that_wait_behind_one_that_a_lock_keeps(
    stage: PostgresStage, holder: Holder
):
    """Found by a reviewer: one that needed nothing of the table left after eight seconds, and so it was with
    takeovers.
    """
    broker = Broker(stage)
    epoch = broker.register()
    holder.holds("LOCK TABLE coterie.topics IN SHARE MODE")
    ids = [new.topic_id for new in create(1).topics]
    waiting = (AddPartitions(ids[0], 1, ((1,),)), SetConfigs(ids[0], 2, {}), DeleteTopics((ids[0],)))

    for change in (create(1), *waiting, LeaveCluster(1, epoch)):
        broker.send(change)
    stage.until(lambda: len(broker.answers) == 6)

    (first, _), (second, left), *_ = broker.answers[1:]
    assert isinstance(first, CreateTopics)
    assert isinstance(second, LeaveCluster)
    assert isinstance(left, Changed)
    holder.lets_go()


def test_a_lock_is_told_of_again_where_one_comes_after_a_change_that_was_made_whatever_it_was(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    broker = Broker(stage)
    epoch = broker.register()
    holder.holds("LOCK TABLE coterie.topics IN SHARE MODE")
    broker.ask(create(1))
    broker.change(LeaveCluster(1, epoch))  # in one statement
    broker.ask(create(1))
    holder.lets_go()

    assert len([line for line in caplog.messages if "is not made" in line]) == 2


def test_so_it_is_where_one_comes_after_a_change_that_the_metadata_refuse_once_the_lock_is_free(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    """Found by a reviewer: a lock of hours later was not told of where all changes before it were refused."""
    broker = Broker(stage)
    broker.change(create(1))
    for _ in range(2):
        holder.holds("LOCK TABLE coterie.topics IN SHARE MODE")
        broker.ask(create(2))
        holder.lets_go()
        assert isinstance(broker.ask(create(1)), NotChanged)

    assert len([line for line in caplog.messages if "is not made" in line]) == 2


def test_a_departure_that_the_image_refuses_says_nothing_about_the_lock(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    broker = Broker(stage)
    epoch = broker.register()
    holder.holds("SELECT FROM coterie.cluster FOR UPDATE")
    for _ in range(2):
        broker.ask(create(1))
        assert isinstance(broker.ask(LeaveCluster(1, epoch + 1)), NotChanged)
    holder.lets_go()

    assert len([line for line in caplog.messages if "is not made" in line]) == 1


def test_a_heartbeat_that_is_refused_says_nothing_about_the_lock(
    stage: PostgresStage, holder: Holder, server: Server, caplog: pytest.LogCaptureFixture
):
    broker = Broker(stage)
    holder.holds("SELECT FROM coterie.cluster FOR UPDATE")
    for _ in range(2):
        broker.ask(create(1))
        server.sql(stage.database, "ALTER TABLE coterie.brokers RENAME seen TO sight")
        assert isinstance(broker.ask(BrokerHeartbeat(1, 1, 0)), Refused)
        server.sql(stage.database, "ALTER TABLE coterie.brokers RENAME sight TO seen")
    holder.lets_go()

    assert len([line for line in caplog.messages if "is not made" in line]) == 1


def test_a_session_that_a_lock_keeps_from_being_opened_ends_as_soon_as_a_statement_does(
    stage: PostgresStage, holder: Holder
):
    """It waited for ten seconds, since its first statements had no time-out of their own."""
    ended: list[float] = []
    holder.holds("LOCK TABLE coterie.cluster")
    began_s = time.monotonic()

    stage.engine(1).connect(opened=lambda *_: None, ended=lambda: ended.append(time.monotonic() - began_s))
    stage.until(lambda: bool(ended))

    assert LOCK_TIMEOUT_MS / 1_000 <= ended[0] < BEGIN_WITHIN_S
    holder.lets_go()


def test_a_change_for_which_a_session_is_opened_is_told_of_the_lock_that_keeps_it_as_any_other(
    stage: PostgresStage, holder: Holder
):
    """Found by a reviewer: the session did not open, and what became of the change was not known."""
    holder.holds("LOCK TABLE coterie.partitions IN SHARE MODE")
    broker = Broker(stage, membership=False)

    answer = broker.ask(create(1))

    assert isinstance(answer, Refused)
    assert answer.locked
    broker.change(SetSetting("", "log.retention.ms", "9", 0))
    holder.lets_go()
    broker.change(create(1))


def test_whose_a_lock_is_stands_in_the_refusal_and_in_the_log_though_it_was_new_when_the_change_came(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    """Found by a reviewer: the second look came after the refusal, which named a view to look into."""
    broker = Broker(stage)
    holder.holds("LOCK TABLE coterie.topics IN SHARE MODE")

    answer = broker.ask(create(1))

    assert isinstance(answer, Refused)
    assert answer.reason.startswith(
        f"a lock on coterie.topics that somebody keeps: process {holder.pid} (coterie: by hand, user"
    )
    not_made = f"a change of the metadata is not made: for 2 s it has waited for {answer.reason}"
    assert [line for line in caplog.messages if "is not made" in line] == [not_made]
    holder.lets_go()


LOCKS = {
    "cluster": ("LOCK TABLE coterie.cluster", "coterie.cluster"),
    "its row": ("SELECT FROM coterie.cluster FOR UPDATE", "coterie.cluster"),
    "brokers": ("LOCK TABLE coterie.brokers", "coterie.brokers"),
}


@pytest.mark.parametrize("what", LOCKS)
def test_who_keeps_a_lock_that_a_broker_waits_for_is_said_and_on_which_table(
    what: str, stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    lock, table = LOCKS[what]
    broker = Broker(stage)
    broker.register()
    holder.holds(lock)
    time.sleep(LASTS_S)

    answers = [broker.ask(create(1)) for _ in range(2)]

    holder.lets_go()
    assert not any(isinstance(one, Changed) for one in answers)
    (said,) = [line for line in caplog.messages if "a statement waits for a lock" in line]
    kept = (
        f"a statement waits for a lock on {table} that somebody keeps: process {holder.pid} (coterie: by hand"
    )
    assert kept in said
    assert "idle in transaction, for " in said


def test_of_a_heartbeat_that_waits_it_is_said_as_well(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    broker = Broker(stage)
    broker.register()
    holder.holds("SELECT FROM coterie.brokers FOR UPDATE")
    time.sleep(LASTS_S)

    assert broker.ask(BrokerHeartbeat(1, broker.broker_epoch, 0)) is None

    stage.until(lambda: any("waits for a lock on coterie.brokers" in line for line in caplog.messages))
    holder.lets_go()


def test_of_a_read_of_records_that_waits_it_is_said_as_well(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    broker = Broker(stage)
    holder.holds("LOCK TABLE coterie.chunks_keep")
    reader = PostgresReader(stage.connections, LockWatch(stage.connections).over)

    reader.prepare(history=broker.history)

    stage.until(lambda: any("waits for a lock on coterie.chunks_keep" in line for line in caplog.messages))
    holder.lets_go()
    reader.close()


@pytest.fixture
def unconfirmed(stage: PostgresStage, server: Server) -> Iterator[DatabaseAddress]:
    """The database's address, for whom commits wait for a standby that is not there."""
    yield DatabaseAddress(server.url(stage.database) + "&options=-c%20synchronous_commit%3Don")
    stage.end_sessions()


def test_a_change_that_waits_for_another_whose_commit_waits_for_a_standby_is_told_of_that_and_of_no_lock(
    stage: PostgresStage, unconfirmed: DatabaseAddress, caplog: pytest.LogCaptureFixture
):
    """Found by a breaker: a broker's own change was told of as somebody's who keeps a lock."""
    broker = Broker(stage)
    other = stage.loop.run_until_complete(connect(unconfirmed, use="by hand"))
    commit = "UPDATE coterie.cluster SET version = version"
    committing = stage.loop.create_task(other.execute(commit))
    time.sleep(0.1)

    answer = broker.ask(create(1))

    assert isinstance(answer, Refused)
    assert answer.locked
    pid = other.get_server_pid()
    write = f"a write of process {pid}'s that the database has not confirmed for "
    assert answer.reason.startswith(write)
    assert "it waits for a synchronous standby (SyncRep; " in answer.reason
    assert f"a statement waits for {write}" in caplog.text
    assert not [line for line in caplog.messages if "somebody keeps" in line]
    other.terminate()
    stage.end_sessions()
    stage.loop.run_until_complete(asyncio.wait([committing]))


def test_a_change_whose_own_commit_waits_for_a_standby_is_told_of(
    stage: PostgresStage, unconfirmed: DatabaseAddress, caplog: pytest.LogCaptureFixture
):
    stage.connections.address = unconfirmed
    broker = Broker(stage)

    broker.send(create(1))

    said = re.compile(r"a write of process \d+'s that the database has not confirmed for \d s: it waits")
    stage.until(lambda: bool(said.search(caplog.text)))
    assert not broker.answers


def test_to_a_role_that_may_not_see_others_their_process_is_told_at_once(
    stage: PostgresStage, holder: Holder, server: Server, caplog: pytest.LogCaptureFixture
):
    server.sql("postgres", f"CREATE ROLE blind LOGIN IN ROLE {BROKER}")
    stage.connections.address = DatabaseAddress(server.url(stage.database, user="blind"))
    broker = Broker(stage)
    holder.holds("LOCK TABLE coterie.topics IN SHARE MODE")

    broker.ask(create(1))

    (said,) = [line for line in caplog.messages if "a statement waits" in line]
    assert said.endswith(
        f"process {holder.pid} (coterie: by hand, user postgres)"
    )  # nor what it does, nor since
    holder.lets_go()
    stage.end_sessions()
    server.sql("postgres", "DROP ROLE blind")


def test_that_a_prepared_transaction_keeps_a_lock_is_said(caplog: pytest.LogCaptureFixture):
    with Server({"max_prepared_transactions": "1"}) as server:
        database = server.new_database()
        asyncio.run(migrate(DatabaseAddress(server.url(database))))
        stage = PostgresStage(server, database)
        broker = Broker(stage)
        lock = "LOCK TABLE coterie.topics IN SHARE MODE"
        server.sql(database, f"BEGIN; {lock}; PREPARE TRANSACTION 'forgotten'")

        answer = broker.ask(create(1))

        kept = (
            "a lock on coterie.topics that somebody keeps: a prepared transaction (the database's pg_prepared"
        )
        assert isinstance(answer, Refused)
        assert answer.reason.startswith(kept)
        assert [line for line in caplog.messages if f"a statement waits for {kept}" in line]
        server.sql(database, "ROLLBACK PREPARED 'forgotten'")
        broker.change(create(1))
        stage.close()


def test_what_a_lock_waits_for_itself_is_said_and_of_who_waits_for_moments_nothing(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    broker, altering = Broker(stage), Holder(stage)
    broker.register()
    holder.holds("LOCK TABLE coterie.topics IN ACCESS SHARE MODE")
    broker.ask(create(1))
    assert not [line for line in caplog.messages if "a statement waits" in line]
    alter = stage.loop.create_task(altering.executes("ALTER TABLE coterie.topics ADD COLUMN more int"))
    stage.loop.run_until_complete(asyncio.sleep(LASTS_S))  # it is to be first

    broker.ask(create(2))

    holder.lets_go()
    stage.loop.run_until_complete(alter)
    (said,) = [line for line in caplog.messages if "a statement waits" in line]
    assert "a lock on coterie.topics that somebody keeps: process " in said
    assert said.count(", which waits for process ") == 1
    assert f"which waits for process {holder.pid} (" in said
    altering.close()


def test_a_broker_that_starts_meanwhile_says_what_it_waits_for(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture
):
    """Found by a reviewer: it stood still without a word."""
    holder.holds("LOCK TABLE coterie.cluster")
    opening = stage.loop.create_task(open_store(stage.connections.address, waiting=lambda _: None))

    stage.until(lambda: any("waits for a lock on coterie.cluster" in line for line in caplog.messages))

    assert not opening.done()
    holder.lets_go()
    assert stage.loop.run_until_complete(opening).cluster_id


def test_a_database_that_has_no_connection_to_see_whose_a_lock_is_does_not_count_as_one_that_is_away(
    stage: PostgresStage, holder: Holder, server: Server
):
    """Found by a reviewer: an outage was told of, and later that it was over, and there was none."""
    server.sql("postgres", f"CREATE ROLE few LOGIN IN ROLE {BROKER} CONNECTION LIMIT 1")
    tried: list[BaseException | None] = []
    stage.connections.address = DatabaseAddress(server.url(stage.database, user="few"))
    stage.connections.tried = tried.append
    broker = Broker(stage)
    broker.register()
    holder.holds("SELECT FROM coterie.brokers FOR UPDATE")

    assert broker.ask(BrokerHeartbeat(1, broker.broker_epoch, 0)) is None

    assert tried == [None]
    holder.lets_go()
    stage.end_sessions()
    server.sql("postgres", "DROP ROLE few")


def test_a_look_that_is_not_answered_keeps_later_ones_from_nothing(
    stage: PostgresStage, holder: Holder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Found by a reviewer: as long as one was under way none followed, and nothing ended it."""
    monkeypatch.setattr(blocking, "ANSWERED_WITHIN_MS", 0)  # as of a server that falls silent
    broker = Broker(stage)
    broker.register()
    holder.holds("LOCK TABLE coterie.topics IN SHARE MODE")
    with monkeypatch.context() as patch:
        patch.setattr(blocking, "WAITED_FOR", "SELECT pg_sleep(60 + 0 * $1)")
        broker.ask(create(1))

    stage.until(lambda: bool(broker.ask(create(1)) and "a statement waits for a lock" in caplog.text))

    holder.lets_go()
