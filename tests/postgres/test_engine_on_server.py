"""A broker goes by one history at a time, holds up nobody, and needs no more rights than its role has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from bench.postgres import Server

from cluster.engine_kit import Broker, topic
from coterie.broker.cluster.changes import (
    CreateTopics,
    DeleteTopics,
    GiveLeadership,
    LeaveCluster,
    NotChanged,
    PartitionKey,
    TakeOver,
    Why,
)
from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.image import BrokerState
from coterie.broker.cluster.postgres import engine
from coterie.broker.cluster.postgres.engine import PostgresEngine
from coterie.broker.cluster.postgres.sweeping import sweep
from coterie.broker.cluster.statements import (
    BrokerHeartbeat,
    Delta,
    ProducerIds,
    ReadDelta,
    Refused,
    ReserveProducerIds,
    Statement,
)
from coterie.storage.postgres.advice import NOT_RESTORED, what_is_lacking
from coterie.storage.postgres.connecting import (
    OTHER_HISTORY,
    Connections,
    DatabaseAddress,
    NotRestored,
    connect,
    read_history,
    table_of,
)
from coterie.storage.postgres.lane_session import LanePlace, LaneSession
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.postgres.schema import BROKER
from coterie.storage.remote.reading import LogWanted, RowsWanted, StartWanted, StoredRows
from coterie.storage.remote.session import Broken, Inserted, Look, Reopened

from .rigs.lane_places import a_chunk
from .rigs.stage import LANES, REPLACED, PostgresStage

pytestmark = pytest.mark.interop
LOCKS_HELD = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

ALL_ROWS = """
SELECT (SELECT to_jsonb(each) FROM coterie.cluster AS each),
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.brokers AS each),
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.lanes AS each),
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.topics AS each),
  (SELECT jsonb_agg(to_jsonb(each) ORDER BY to_jsonb(each)) FROM coterie.partitions AS each)
"""


class TwoServers:
    """An engine whose connections go to one database or another, as if they were servers of two histories."""

    def __init__(self, server: Server, with_tables: str) -> None:
        self.stages = [PostgresStage(server, server.new_database(with_tables)) for _ in range(2)]
        self.loop = self.stages[0].loop
        self.connections = Connections(self.stages[0].connections.address, self.loop)
        self.engine = PostgresEngine(self.connections, 1, lanes=LANES)
        self.sessions: list[MetadataSession] = []
        self.ended: list[str] = []

    def go_to(self, number: int) -> None:
        """Have connections that are opened from now on go to one of the two."""
        self.connections.address = self.stages[number].connections.address

    def open(self, name: str, *, membership: bool) -> bool:
        """Open a session; return whether that could be."""
        opened: list[bool] = []

        def is_open(session: MetadataSession, _: str) -> None:
            self.sessions.append(session)
            opened.append(True)

        def has_ended() -> None:
            self.ended.append(name)
            opened.append(False)

        notified = (lambda _: None) if membership else None
        self.engine.connect(opened=is_open, ended=has_ended, notified=notified)
        self.stages[0].until(lambda: bool(opened))
        return opened[0]

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.stages[0].close()
        self.stages[1].close()


@pytest.fixture
def servers(server: Server, with_tables: str) -> Iterator[TwoServers]:
    """Two servers, the first of which is gone to."""
    made = TwoServers(server, with_tables)
    yield made
    made.close()


def test_a_server_of_another_history_than_the_memberships_is_not_asked(servers: TwoServers):
    assert servers.open("membership", membership=True)
    servers.go_to(1)

    assert not servers.open("statements", membership=False)
    servers.go_to(0)
    assert servers.open("statements", membership=False)


def test_in_the_database_of_another_cluster_a_broker_is_not_even_present(server: Server, servers: TwoServers):
    """Where a broker of the other cluster with this id is stopped or dead, it would look alive."""
    assert servers.open("membership", membership=True)
    history, other = servers.engine.history, servers.stages[1].database
    server.sql(other, "UPDATE coterie.cluster SET cluster_id = 'another'")
    servers.go_to(1)

    assert servers.open("another", membership=True)
    assert servers.sessions[-1].cluster_id == "another"
    assert servers.engine.history == history
    assert server.sql(other, LOCKS_HELD) == "0"
    assert not servers.open("statements", membership=False)
    servers.go_to(0)
    assert servers.open("statements", membership=False)


def test_what_was_opened_before_ends_with_the_history_of_the_membership(servers: TwoServers):
    assert servers.open("statements", membership=False)
    servers.go_to(1)
    assert servers.open("membership", membership=True)
    servers.stages[0].until(lambda: servers.ended == ["statements"])

    answers: list[object] = []
    servers.sessions[0].send(ReadDelta(0), answers.append)
    servers.stages[0].until(lambda: bool(answers))
    assert answers == [None]
    assert servers.open("statements", membership=False)


@pytest.mark.parametrize(
    ("version", "replaced", "goes_on"),
    [(1, True, False), (2, True, False), (3, True, True), (1, False, True)],
    ids=["older", "as-before", "said-to-be-restored", "standby-that-was-behind"],
)
def test_tables_of_a_backup_are_gone_by_once_they_are_said_to_be_restored(
    version: int, replaced: bool, goes_on: bool, server: Server, servers: TwoServers
):
    """Found by a newcomer: brokers served from them, and acknowledged what was lost with the next line. It is
    later than all that was before what `coterie store restored` makes of them.
    """
    looks: list[BaseException | None] = []
    servers.engine.looked = looks.append
    assert servers.open("membership", membership=True)
    database = servers.stages[0].database
    server.sql(database, "UPDATE coterie.cluster SET version = 2")
    answers: list[object] = []
    servers.sessions[0].send(ReadDelta(0), answers.append)
    servers.stages[0].until(lambda: bool(answers))
    history = servers.engine.history

    if replaced:
        server.sql(database, REPLACED)
    else:
        server.sql(database, "UPDATE coterie.cluster SET restoration = gen_random_uuid()")
    server.sql(database, f"UPDATE coterie.cluster SET version = {version}")

    assert servers.open("again", membership=True) == goes_on
    assert (servers.engine.history != history) == goes_on
    assert [type(one) for one in looks] == [type(None), type(None) if goes_on else NotRestored]
    assert goes_on or what_is_lacking(NotRestored()) == NOT_RESTORED


@pytest.mark.parametrize(
    "of",
    [
        lambda epoch, key: BrokerHeartbeat(1, epoch, seen=1),
        lambda epoch, key: TakeOver(2, epoch + 2, beats=0),
        lambda epoch, key: LeaveCluster(1, epoch),
        lambda epoch, key: GiveLeadership(1, epoch, (key,), 2),
        lambda epoch, key: CreateTopics((topic(2, "stray"),)),
        lambda epoch, key: ReserveProducerIds(),
        lambda epoch, key: ReadDelta(epoch),
    ],
    ids=["heartbeat", "takeover", "departure", "leadership", "topics", "producer-ids", "read"],
)
def test_nothing_is_written_to_tables_that_have_taken_the_place_of_those_that_were_there(
    of: Callable[[int, PartitionKey], Statement], server: Server, with_tables: str
):
    """Found by a breaker: what waited for the lock of a `pg_restore --clean` was written to the other
    cluster's tables then, at times with rows that were made for one's own of the same version.
    """
    stage = PostgresStage(server, server.new_database(with_tables))
    broker, other = Broker(stage, 1), Broker(stage, 2)
    epoch = broker.register()
    broker.change(CreateTopics((topic(1, "orders"),)))
    other.register()
    row = broker.read_on().partitions(UUID(int=1))[0]
    statement = of(epoch, PartitionKey(row.topic_id, row.number, row.leader_epoch))
    server.sql(stage.database, REPLACED)
    before = server.sql(stage.database, ALL_ROWS)
    broker.answers.clear()

    broker.send(statement)
    stage.until(lambda: bool(broker.answers))

    assert broker.answers[0][1] is None
    assert server.sql(stage.database, ALL_ROWS) == before
    stage.close()


def test_nothing_is_read_from_tables_that_have_taken_the_place_of_those_that_were_there(
    server: Server, with_tables: str
):
    """Found by a breaker: a fetch that had waited for a restore's lock had the other cluster's records."""
    stage = PostgresStage(server, server.new_database(with_tables))
    Broker(stage, 1).register()
    history = stage.loop.run_until_complete(_history(stage.connections.address))
    reader, answers = PostgresReader(stage.connections), list[object]()
    wanted = RowsWanted(1, 0, 1, max_bytes=1)
    reader.read_rows(wanted, answers.append, history=history)
    stage.until(lambda: len(answers) == 1)
    server.sql(stage.database, REPLACED)

    for number in (2, 3):
        reader.read_rows(wanted, answers.append, history=history)
        stage.until(lambda number=number: len(answers) == number)

    assert answers == [StoredRows([], ()), *[Broken(OTHER_HISTORY)] * 2]
    reader.close()
    stage.close()


async def _history(address: DatabaseAddress) -> str:
    connection = await connect(address)
    history = await read_history(connection)
    connection.terminate()
    return history


def test_whoever_stops_in_the_middle_of_a_change_holds_nobody_up(
    server: Server, with_tables: str, monkeypatch: pytest.MonkeyPatch
):
    stage = PostgresStage(server, server.new_database(with_tables))
    stopped, other = Broker(stage, 1, membership=False), Broker(stage, 2, membership=False)
    write = engine.write
    waiting: list[asyncio.Event] = []

    async def stop_first(connection: Any, change: Any, delta: Any, *, lanes: int) -> Any:
        if not waiting:
            waiting.append(asyncio.Event())
            await waiting[0].wait()
        return await write(connection, change, delta, lanes=lanes)

    monkeypatch.setattr(engine, "write", stop_first)
    stopped.send(CreateTopics((topic(1, "stopped"),)))
    stage.until(lambda: bool(waiting))
    other.change(CreateTopics((topic(2, "other"),)))
    stage.loop.call_soon(waiting[0].set)
    stage.until(lambda: bool(stopped.answers))

    assert stopped.answers[0][1] is None
    assert [one.name for one in other.read_on().topics()] == ["other"]
    stage.until(lambda: stopped.ended == 1)
    stage.close()


def test_a_departure_that_another_change_comes_before_is_made_behind_it(
    server: Server, with_tables: str, monkeypatch: pytest.MonkeyPatch
):
    stage = PostgresStage(server, server.new_database(with_tables))
    leaving, other = Broker(stage, 1), Broker(stage, 2)
    epoch = leaving.register()
    leaving.change(CreateTopics((topic(1, "orders"),)))
    other.register()
    depart = engine.depart
    departed: list[bool] = []

    async def overtaken(connection: Any, change: Any, delta: Any, table: int) -> bool:
        before = await connect(stage.connections.address)
        await before.execute("UPDATE coterie.cluster SET version = version + 1")
        before.terminate()
        departed.append(await depart(connection, change, delta, table))
        return departed[-1]

    monkeypatch.setattr(engine, "depart", overtaken)
    assert leaving.change(LeaveCluster(1, epoch)) == 6

    assert departed == [False, False]
    image = other.read_on()
    assert image.brokers[1].state is BrokerState.FENCED
    assert {row.leader for row in image.all_partitions()} == {2}
    stage.close()


def test_leadership_that_is_given_away_behind_another_change_is_given_all_the_same(
    server: Server, with_tables: str, monkeypatch: pytest.MonkeyPatch
):
    stage = PostgresStage(server, server.new_database(with_tables))
    giver, other = Broker(stage, 1), Broker(stage, 2)
    epoch = giver.register()
    giver.change(CreateTopics((topic(1, "orders"),)))
    other.register()
    row = giver.read_on().partitions(UUID(int=1))[0]
    offer = GiveLeadership(1, epoch, (PartitionKey(row.topic_id, row.number, row.leader_epoch),), 2)
    give = engine.give
    given: list[bool] = []

    async def overtaken(connection: Any, delta: Any, table: int) -> bool:
        before = await connect(stage.connections.address)
        await before.execute("UPDATE coterie.cluster SET version = version + 1")
        before.terminate()
        given.append(await give(connection, delta, table))
        return given[-1]

    with monkeypatch.context() as patch:
        patch.setattr(engine, "give", overtaken)
        giver.change(offer)
    assert given == [False, False]
    assert giver.ask(offer) == NotChanged(Why.CHANGED)

    moved = other.read_on().partition(row.topic_id, row.number)
    assert moved is not None
    assert (moved.leader, moved.leader_epoch) == (2, row.leader_epoch + 1)
    stage.close()


def test_a_fault_in_a_change_ends_the_session_and_nobody_waits_for_its_answer(
    server: Server, with_tables: str, monkeypatch: pytest.MonkeyPatch
):
    stage = PostgresStage(server, server.new_database(with_tables))
    broker = Broker(stage)

    async def faulty(*_: Any, **__: Any) -> Any:
        raise KeyError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "write", faulty)
        assert broker.ask(CreateTopics((topic(1, "orders"),))) is None
    stage.until(lambda: broker.ended == 1)
    assert broker.ask(ReadDelta(0)) is None

    Broker(stage).change(CreateTopics((topic(1, "orders"),)))
    stage.close()


def test_what_the_database_refuses_is_known_not_to_be_made(server: Server, with_tables: str):
    stage = PostgresStage(server, server.new_database(with_tables))
    broker = Broker(stage)
    server.sql(stage.database, "ALTER TABLE coterie.topics ADD CONSTRAINT no_b CHECK (name <> 'b')")

    answer = broker.ask(CreateTopics((topic(1, "a"), topic(2, "b"))))

    assert isinstance(answer, Refused)
    assert answer.reason.startswith('new row for relation "topics" violates check constraint "no_b"')
    assert answer.reason.endswith("(23514)")
    broker.change(CreateTopics((topic(1, "a"),)))
    stage.close()


@pytest.mark.parametrize("alters", [False, True])
def test_a_change_that_somebodys_lock_keeps_from_being_made_is_known_not_to_be_and_that_is_said(
    alters: bool, server: Server, with_tables: str, caplog: pytest.LogCaptureFixture
):
    """Found by a reviewer: nobody was told of the lock. While an ALTER TABLE waits for a dump who reads the
    table waits as well.
    """
    stage = PostgresStage(server, server.new_database(with_tables))
    broker = Broker(stage)
    broker.register()
    holder, altering = (stage.loop.run_until_complete(connect(stage.connections.address)) for _ in range(2))
    lock = (
        "LOCK TABLE coterie.topics IN ACCESS SHARE MODE"
        if alters
        else "SELECT FROM coterie.cluster FOR UPDATE"
    )
    stage.loop.run_until_complete(holder.execute(f"BEGIN; {lock}"))
    alter = stage.loop.create_task(altering.execute("ALTER TABLE coterie.topics ADD COLUMN more int"))
    if alters:
        locked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        stage.until(lambda: server.sql(stage.database, locked) != "0")
    else:
        alter.cancel()

    answers = [broker.ask(CreateTopics((topic(1, "orders"),))) for _ in range(2)]

    stage.loop.run_until_complete(holder.execute("ROLLBACK"))
    stage.loop.run_until_complete(asyncio.gather(alter, return_exceptions=True))
    broker.change(CreateTopics((topic(1, "orders"),)))
    for answer in answers:
        assert isinstance(answer, Refused)
        assert (answer.locked, answer.reason.startswith("a lock on coterie.")) == (True, True)
    (said,) = [line for line in caplog.messages if "is not made" in line]
    assert said == f"a change of the metadata is not made: for 2 s it has waited for {answers[0].reason}"
    for one in (holder, altering):
        one.terminate()
    stage.close()


def test_heartbeats_that_are_given_up_do_not_pile_up_in_the_server(server: Server, with_tables: str):
    stage = PostgresStage(server, server.new_database(with_tables))
    broker, other = Broker(stage, 1), Broker(stage, 2)
    broker.register()
    other.register()
    holder = stage.loop.run_until_complete(connect(stage.connections.address))
    stage.loop.run_until_complete(
        holder.execute("BEGIN; UPDATE coterie.brokers SET rack = 'r' WHERE broker_id = 1")
    )

    assert broker.ask(BrokerHeartbeat(1, broker.broker_epoch, 0)) is None
    assert other.heartbeat().counted
    stage.loop.run_until_complete(holder.execute("ROLLBACK"))
    assert broker.heartbeat().counted
    holder.terminate()
    stage.close()


def test_whoever_reserves_producer_ids_does_not_wait_for_ever_in_the_server(server: Server, with_tables: str):
    stage = PostgresStage(server, server.new_database(with_tables))
    broker = Broker(stage)
    holder = stage.loop.run_until_complete(connect(stage.connections.address))
    stage.loop.run_until_complete(holder.execute("BEGIN; SELECT FROM coterie.cluster FOR UPDATE"))

    assert broker.ask(ReserveProducerIds()) is None
    stage.loop.run_until_complete(holder.execute("ROLLBACK"))
    assert isinstance(broker.ask(ReserveProducerIds()), ProducerIds)
    holder.terminate()
    stage.close()


def test_a_brokers_role_is_enough(server: Server, with_tables: str):
    server.sql("postgres", f"CREATE ROLE app LOGIN IN ROLE {BROKER}")
    stage = PostgresStage(server, server.new_database(with_tables))
    as_app = DatabaseAddress(server.url(stage.database, user="app"))
    stage.connections.address = as_app
    broker, other = Broker(stage, 1), Broker(stage, 2)
    epoch = broker.register()
    other.register()
    other.change(CreateTopics((topic(1, "orders"),)))
    assert {one.broker_id for one in broker.heartbeat().brokers if one.present} == {1, 2}
    stage.until(lambda: broker.notified[-1:] == [3])
    assert isinstance(broker.ask(ReadDelta(0)), Delta)
    stage.loop.run_until_complete(_append_and_read(stage.connections, epoch, broker.history))
    deleted = broker.change(DeleteTopics((UUID(int=1),)))
    stage.loop.run_until_complete(_save_start(stage.connections, broker.history))
    assert server.sql(stage.database, "SELECT max(start_offset) FROM coterie.logs") == "0"
    assert stage.loop.run_until_complete(_sweep(as_app, deleted)) == 1
    stage.close()
    server.sql("postgres", "DROP ROLE app")


async def _append_and_read(connections: Connections, epoch: int, history: str) -> None:
    answers: asyncio.Queue[object] = asyncio.Queue()
    session = LaneSession(
        connections, LanePlace(1, 0, epoch), lambda _, answer: answers.put_nowait(answer), lambda: history
    )
    reader = PostgresReader(connections)
    session.reopen(1, Look(None, None))
    assert await answers.get() == Reopened(True, True)
    session.append(1, [a_chunk(0)])
    assert await answers.get() == Inserted(1)
    reader.save_starts([StartWanted(1, 0, 0)], answers.put_nowait, history=history)
    assert await answers.get() == []
    reader.read_logs([LogWanted(1, 0)], answers.put_nowait, history=history)
    assert not isinstance(await answers.get(), Broken)
    session.abort()
    reader.close()


async def _save_start(connections: Connections, history: str) -> None:
    """Have a start moved of a log whose topic is deleted."""
    answers: asyncio.Queue[object] = asyncio.Queue()
    reader = PostgresReader(connections)
    reader.save_starts([StartWanted(1, 0, 1)], answers.put_nowait, history=history)
    assert await answers.get() == []
    reader.close()


async def _sweep(address: DatabaseAddress, seen: int) -> int:
    connection = await connect(address)
    swept = await sweep(seen, table_of(await read_history(connection)), connection)
    connection.terminate()
    return swept
