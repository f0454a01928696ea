"""What every engine of the metadata promises a broker: one kit of tests, asked of each.

A module of tests derives from `EngineKit`, and gives it a `Stage`. Time belongs to the stage: `until` lets
whatever is under way happen, in virtual time or in an event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.broker.cluster.changes import (
    AddPartitions,
    Change,
    Changed,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    GiveLeadership,
    LeaveCluster,
    NewTopic,
    NotChanged,
    PartitionKey,
    RaiseLevel,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    SetConfigs,
    SetSetting,
    StartLeaving,
    TakeOver,
    UnregisterBroker,
    Why,
)
from coterie.broker.cluster.engine import MetadataEngine, MetadataSession
from coterie.broker.cluster.image import BrokerState, Delta, Endpoint, Image, PartitionRow
from coterie.broker.cluster.statements import (
    Answer,
    BrokerHeartbeat,
    HeartbeatAnswer,
    ProducerIds,
    ReadDelta,
    ReserveProducerIds,
    Statement,
)

PROCESS, LATER_PROCESS = UUID(int=7), UUID(int=8)
AT = (Endpoint("PLAINTEXT", "b1", 9092), Endpoint("INTERNAL", "10.0.0.1", 9093))
BROKERS = (1, 2, 3)


class Stage(Protocol):
    """An engine with nothing in it, and the ways by which brokers reach it."""

    has_presence: bool
    """Whether the engine knows who holds a session."""
    has_lanes: bool
    """Whether appends go through it as well."""

    def engine(self, broker_id: int) -> MetadataEngine:
        """Return the engine as a broker reaches it."""
        ...

    def until(self, holds: Callable[[], bool]) -> None:
        """Let things happen until it holds; fail if it does not within some seconds."""
        ...

    def end_sessions(self) -> None:
        """Have the engine end all sessions that are open, as at a restart; it takes new ones."""
        ...

    def takes_appends(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether the broker's lanes take what it appends in an epoch; asked only if there are any."""
        ...


class Broker:
    """One broker's sessions, and all that was said to it."""

    def __init__(self, stage: Stage, broker_id: int = 1, *, membership: bool = True) -> None:
        self.stage = stage
        self.broker_id = broker_id
        self.broker_epoch = 0
        self.image = Image()
        self.history = ""
        self.ended = 0
        self.notified: list[int] = []
        self.answers: list[tuple[Statement, Answer | None]] = []
        self._session: MetadataSession | None = None
        stage.engine(broker_id).connect(
            opened=self._opened, ended=self._ended, notified=self.notified.append if membership else None
        )
        assert not self._session, "nothing is called from within connect"
        assert not self.ended, "nothing is called from within connect"
        stage.until(lambda: self._session is not None)

    def _opened(self, session: MetadataSession, history: str) -> None:
        assert self._session is None
        self._session, self.history = session, history

    def _ended(self) -> None:
        self.ended += 1

    @property
    def session(self) -> MetadataSession:
        """The session that was opened."""
        assert self._session is not None
        return self._session

    def send(self, statement: Statement) -> None:
        """Send a statement and go on; its answer is noted."""
        noted = len(self.answers)
        self.session.send(statement, lambda answer: self.answers.append((statement, answer)))
        assert len(self.answers) == noted, "nothing is called from within send"

    def ask(self, statement: Statement) -> Answer | None:
        """Send a statement, and return the answer."""
        noted = len(self.answers)
        self.send(statement)
        self.stage.until(lambda: len(self.answers) > noted)
        _, answer = self.answers[noted]
        return answer

    def change(self, change: Change) -> int:
        """Have a change made, and return its version."""
        answer = self.ask(change)
        assert isinstance(answer, Changed), answer
        return answer.version

    def refused(self, change: Change) -> NotChanged:
        """Have a change refused, and return why."""
        answer = self.ask(change)
        assert isinstance(answer, NotChanged), answer
        return answer

    def register(self, replaces: int = 0, incarnation: UUID = PROCESS) -> int:
        """Register, and return the broker epoch."""
        change = RegisterBroker(self.broker_id, incarnation, replaces, AT, "r1", 0, "test")
        self.broker_epoch = self.change(change)
        return self.broker_epoch

    def heartbeat(self, seen: int = 0) -> HeartbeatAnswer:
        """Send a heartbeat, and return the answer."""
        answer = self.ask(BrokerHeartbeat(self.broker_id, self.broker_epoch, seen))
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    def beats(self, broker_id: int) -> int:
        """Return the count that a broker shows."""
        (shown,) = (one for one in self.heartbeat().brokers if one.broker_id == broker_id)
        return shown.beats

    def read(self, above: int) -> Delta:
        """Return what has changed since a version."""
        delta = self.ask(ReadDelta(above))
        assert isinstance(delta, Delta)
        return delta

    def read_on(self) -> Image:
        """Bring the image up to the engine's version, and return it."""
        self.image = self.image.after(self.read(self.image.version))
        return self.image


class HastyBroker(Broker):
    """One that sends three statements as soon as it is connected."""

    def _opened(self, session: MetadataSession, history: str) -> None:
        super()._opened(session, history)
        for statement in (CreateTopics((topic(1, "a"),)), ReadDelta(0), ReserveProducerIds()):
            self.send(statement)


def topic(number: int, name: str, *replicas: tuple[int, ...]) -> NewTopic:
    """Return a topic to make."""
    return NewTopic(UUID(int=number), name, replicas or ((1,),), {"retention.ms": "1"}, 1_700_000_000_000)


def assert_empty(delta: Delta, at_version: int) -> None:
    """Insist that nothing has changed since a version."""
    assert (delta.above, delta.version) == (at_version, at_version)
    assert not [*delta.versions()]


class EngineKit:
    """The tests. `stage` makes an engine with nothing in it."""

    def stage(self) -> AbstractContextManager[Stage]:
        """Return a stage, closed in the end."""
        raise NotImplementedError

    # -- sessions

    def test_an_engine_says_its_history_to_each_that_connects(self):
        with self.stage() as stage:
            first, second = Broker(stage), Broker(stage, 2, membership=False)
            assert first.history == second.history != ""

    def test_a_statement_is_answered_once_and_in_its_turn(self):
        with self.stage() as stage:
            broker = Broker(stage)
            statements: list[Statement] = [
                CreateTopics((topic(1, "a"),)),
                ReadDelta(0),
                ReserveProducerIds(),
                CreateTopics((topic(1, "a"),)),
                BrokerHeartbeat(1, 0, 0),
            ]
            for statement in statements:
                broker.send(statement)
            stage.until(lambda: len(broker.answers) == len(statements))
            Broker(stage, 2).read(0)
            assert [statement for statement, _ in broker.answers] == statements
            kinds = [type(answer) for _, answer in broker.answers]
            assert kinds == [Changed, Delta, ProducerIds, NotChanged, HeartbeatAnswer]

    def test_what_is_sent_as_soon_as_a_session_is_open_is_answered_in_its_turn(self):
        with self.stage() as stage:
            broker = HastyBroker(stage)
            stage.until(lambda: len(broker.answers) == 3)
            assert [type(answer) for _, answer in broker.answers] == [Changed, Delta, ProducerIds]
            assert broker.ended == 0

    def test_what_waits_when_a_session_is_closed_is_answered_all_the_same(self):
        with self.stage() as stage:
            broker = Broker(stage)
            for number in range(1, 4):
                broker.send(CreateTopics((topic(number, f"t{number}"),)))
            broker.session.close()
            broker.session.close()
            stage.until(lambda: len(broker.answers) == 3)
            assert broker.answers[-1][1] is None
            Broker(stage, 2).read(0)
            assert len(broker.answers) == 3
            assert broker.ended == 0

    def test_a_session_that_has_ended_answers_none(self):
        with self.stage() as stage:
            broker = Broker(stage)
            broker.session.close()
            assert broker.ask(ReadDelta(0)) is None
            assert broker.ask(RegisterBroker(1, PROCESS, 0)) is None
            assert not Broker(stage, 2).read_on().brokers

    def test_a_session_that_the_engine_ends_says_so_once(self):
        with self.stage() as stage:
            broker, statements = Broker(stage), Broker(stage, membership=False)
            broker.send(ReadDelta(0))
            stage.until(lambda: bool(broker.answers))
            stage.end_sessions()
            stage.until(lambda: broker.ended == statements.ended == 1)
            assert broker.ask(ReadDelta(0)) is None
            broker.session.close()
            again = Broker(stage)
            again.register()
            assert again.history == broker.history
            assert broker.ended == statements.ended == 1

    # -- brokers

    def test_a_broker_registers_in_an_epoch_that_is_the_version(self):
        with self.stage() as stage:
            broker = Broker(stage)
            epoch = broker.register()
            image = broker.read_on()
            row = image.brokers[1]
            assert (row.broker_epoch, image.version) == (epoch, epoch)
            assert row == (1, epoch, PROCESS, BrokerState.LIVE, AT, "r1", 0, "test", epoch)

    def test_a_registration_takes_the_place_of_the_one_that_it_names_alone(self):
        with self.stage() as stage:
            broker = Broker(stage)
            first = broker.register()
            assert broker.refused(RegisterBroker(1, LATER_PROCESS, 0)) == (
                Why.OTHER_EPOCH, first, PROCESS, ("b1:9092", "10.0.0.1:9093"), ""
            )  # fmt: skip
            second = broker.register(first, LATER_PROCESS)
            assert second > first
            why = broker.refused(RegisterBroker(1, PROCESS, first))
            assert (why.why, why.broker_epoch, why.incarnation) == (Why.OTHER_EPOCH, second, LATER_PROCESS)

    def test_of_two_registrations_at_once_one_is_made(self):
        with self.stage() as stage:
            one, other = Broker(stage), Broker(stage)
            one.send(RegisterBroker(1, PROCESS, 0))
            other.send(RegisterBroker(1, LATER_PROCESS, 0))
            stage.until(lambda: bool(one.answers and other.answers))
            answers = [one.answers[0][1], other.answers[0][1]]
            assert sorted(type(answer).__name__ for answer in answers) == ["Changed", "NotChanged"]

    def test_a_heartbeat_counts_in_the_epoch_that_stands_alone(self):
        with self.stage() as stage:
            broker = Broker(stage)
            assert not broker.heartbeat().counted
            first = broker.register()
            before = broker.heartbeat(seen=first)
            after = broker.heartbeat(seen=first)
            assert before.counted
            assert after.counted
            assert after.version == first
            (earlier,), (later,) = before.brokers, after.brokers
            assert later.beats == earlier.beats + 1
            assert (later.broker_id, later.broker_epoch, later.seen) == (1, first, first)
            broker.register(first, LATER_PROCESS)
            broker.broker_epoch = first
            assert not broker.heartbeat().counted

    def test_a_heartbeat_shows_everybody_who_is_not_fenced(self):
        with self.stage() as stage:
            brokers = [Broker(stage, one) for one in BROKERS]
            for broker in brokers:
                broker.register()
            brokers[1].heartbeat(seen=2)
            brokers[1].change(StartLeaving(2, brokers[1].broker_epoch))
            brokers[2].change(LeaveCluster(3, brokers[2].broker_epoch))
            shown = brokers[0].heartbeat().brokers
            assert [(one.broker_id, one.broker_epoch, one.seen) for one in shown] == [
                (1, brokers[0].broker_epoch, 0), (2, brokers[1].broker_epoch, 2)
            ]  # fmt: skip

    def test_a_broker_is_taken_over_by_the_count_that_it_shows(self):
        with self.stage() as stage:
            one, other = Broker(stage, 1), Broker(stage, 2)
            one.register()
            other.register()
            one.change(CreateTopics((topic(1, "orders", (2, 1), (1, 2)),)))
            other.heartbeat()
            seen = one.beats(2)
            other.heartbeat()
            assert one.refused(TakeOver(2, other.broker_epoch, seen)).why is Why.BEATS_ON
            assert one.refused(TakeOver(2, other.broker_epoch + 9, seen + 1)).why is Why.OTHER_EPOCH
            assert other.heartbeat().counted
            one.change(TakeOver(2, other.broker_epoch, one.beats(2)))
            assert not other.heartbeat().counted
            image = one.read_on()
            assert image.live == (1,)
            assert [(row.leader, row.leader_epoch) for row in image.all_partitions()] == [(1, 1), (1, 0)]

    def test_who_takes_over_or_leaves_goes_by_what_there_is_and_not_by_what_it_has_read(self):
        with self.stage() as stage:
            one, other = Broker(stage, 1), Broker(stage, 2)
            one.register()
            other.register()
            one.read_on()
            other.change(CreateTopics((topic(1, "a", (1,), (2,)),)))
            one.change(LeaveCluster(1, one.broker_epoch))
            image = other.read_on()
            assert [row.leader for row in image.partitions(UUID(int=1))] == [2, 2]
            one.register(one.broker_epoch)
            one.read_on()
            other.change(CreateTopics((topic(2, "b", (2,)),)))
            one.change(TakeOver(2, other.broker_epoch, one.beats(2)))
            assert [row.leader for row in one.read_on().all_partitions()] == [1, 1, 1]

    def test_a_broker_is_present_while_its_membership_is_open(self):
        with self.stage() as stage:
            one, other = Broker(stage, 1), Broker(stage, 2)
            one.register()
            other.register()

            def present(broker_id: int) -> bool:
                (shown,) = (shown for shown in one.heartbeat().brokers if shown.broker_id == broker_id)
                return shown.present

            if not stage.has_presence:
                return
            statements = Broker(stage, 2, membership=False)
            assert present(1)
            assert present(2)
            other.session.close()
            stage.until(lambda: not present(2))
            assert statements.read(0).version
            again = Broker(stage, 2)
            stage.until(lambda: present(2))
            again.session.close()
            stage.until(lambda: not present(2))

    def test_a_member_is_notified_of_each_change(self):
        with self.stage() as stage:
            one, other, statements = Broker(stage, 1), Broker(stage, 2), Broker(stage, 2, membership=False)
            for number in range(3):
                version = statements.change(CreateTopics((topic(number + 1, f"t{number}"),)))
                for broker in (one, other):
                    stage.until(lambda broker=broker, version=version: version in broker.notified[-1:])
            assert not statements.notified

    def test_the_lanes_of_a_broker_take_appends_in_the_epoch_that_stands(self):
        with self.stage() as stage:
            if not stage.has_lanes:
                return
            broker, other = Broker(stage, 1), Broker(stage, 2)
            first, of_other = broker.register(), other.register()
            assert stage.takes_appends(1, first)
            second = broker.register(first, LATER_PROCESS)
            assert not stage.takes_appends(1, first)
            assert stage.takes_appends(1, second)
            other.change(TakeOver(1, second, other.beats(1)))
            assert not stage.takes_appends(1, second)
            other.change(StartLeaving(2, of_other))
            assert stage.takes_appends(2, of_other)
            other.change(LeaveCluster(2, of_other))
            assert not stage.takes_appends(2, of_other)

    # -- topics, settings, producer ids

    def test_a_change_that_is_refused_writes_nothing(self):
        with self.stage() as stage:
            broker = Broker(stage)
            broker.register()
            before = broker.change(CreateTopics((topic(1, "orders"),)))
            change = CreateTopics((topic(2, "free"), topic(3, "orders")))
            assert broker.refused(change) == NotChanged(Why.NAME_TAKEN, names=("orders",))
            assert_empty(broker.read(before), before)

    def test_a_name_is_free_again_when_its_topic_is_deleted_and_the_id_is_not(self):
        with self.stage() as stage:
            broker = Broker(stage)
            broker.register()
            broker.change(CreateTopics((topic(1, "a.b"),)))
            assert broker.refused(CreateTopics((topic(2, "a_b"),))).why is Why.NAME_COLLIDES
            assert broker.refused(CreateTopics((topic(1, "c"),))).why is Why.ID_TAKEN
            broker.change(DeleteTopics((UUID(int=1),)))
            assert broker.refused(DeleteTopics((UUID(int=1),))).why is Why.NO_TOPIC
            assert broker.refused(CreateTopics((topic(1, "c"),))).why is Why.ID_TAKEN
            broker.change(CreateTopics((topic(2, "a_b"),)))
            assert [one.name for one in broker.read_on().topics()] == ["a_b"]

    def test_changes_of_two_brokers_at_once_are_made_one_after_another(self):
        with self.stage() as stage:
            brokers = [Broker(stage, 1), Broker(stage, 2)]
            for at in range(12):
                brokers[at % 2].send(CreateTopics((topic(at + 1, f"t{at}", (1,), (2,)),)))
            stage.until(lambda: sum(len(broker.answers) for broker in brokers) == 12)
            answers = [answer for broker in brokers for _, answer in broker.answers]
            assert sorted(answer.version for answer in answers if isinstance(answer, Changed)) == [
                *range(1, 13)
            ]
            partitions = [*brokers[0].read_on().all_partitions()]
            assert len({row.partition_id for row in partitions}) == len(partitions) == 24

    def test_blocks_of_producer_ids_are_disjoint(self):
        with self.stage() as stage:
            brokers = [Broker(stage, 1), Broker(stage, 2)]
            for at in range(8):
                brokers[at % 2].send(ReserveProducerIds())
            stage.until(lambda: sum(len(broker.answers) for broker in brokers) == 8)
            blocks = [one for broker in brokers for _, one in broker.answers if isinstance(one, ProducerIds)]
            ids = [number for first, size in blocks for number in range(first, first + size)]
            assert len(set(ids)) == len(ids) >= 8

    # -- whatever changes

    # each engine has the kit in a class of its own
    @settings(max_examples=30, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_deltas_are_the_rows_that_changes_wrote_and_add_up_to_the_whole(self, data: st.DataObject):
        with self.stage() as stage:
            broker, late = Broker(stage), Broker(stage, 2)
            for _ in range(data.draw(st.integers(1, 12), "changes")):
                before = broker.image
                change = data.draw(changes(before), "change")
                answer = broker.ask(change)
                delta = broker.read(before.version)
                self._insist(before, change, answer, delta)
                broker.image = before.after(delta)
                if data.draw(st.booleans(), "others read"):
                    late.read_on()
            assert broker.image == late.read_on() == Broker(stage, 3).read_on()

    def _insist(self, before: Image, change: Change, answer: Answer | None, delta: Delta) -> None:
        """Insist that an engine has made of a change what the change itself makes of the image before it."""
        known = {row.partition_id for row in before.all_partitions()}
        new = [row.partition_id for row in delta.partitions if row.partition_id not in known]
        by_itself = change.rows(before, min(new, default=1))
        if isinstance(answer, Changed):
            assert isinstance(by_itself, Delta)
            assert answer.version == delta.version == before.version + 1
            assert by_itself.level == delta.level
            for mine, theirs in (
                (by_itself.brokers, delta.brokers),
                (by_itself.topics, delta.topics),
                (by_itself.partitions, delta.partitions),
                (by_itself.settings, delta.settings),
            ):
                assert sorted(map(repr, mine)) == sorted(map(repr, theirs))
        else:
            assert isinstance(answer, NotChanged)
            assert_empty(delta, before.version)
            assert answer == by_itself or answer.why in (Why.BEATS_ON, Why.ID_TAKEN)


# -- changes by chance


NAMES = st.sampled_from(("a", "b", "a.b", "a_b", "__consumer_offsets"))
IDS = st.integers(1, 5).map(lambda number: UUID(int=number))
LEVELS = st.integers(0, 2)
PLACED = st.lists(st.sampled_from(BROKERS), min_size=1, unique=True).map(tuple)
REPLICAS = st.lists(PLACED, min_size=1, max_size=3)
CONFIGS = st.dictionaries(
    st.sampled_from(("retention.ms", "cleanup.policy")), st.text(max_size=3), max_size=2
)


@st.composite
def changes(draw: st.DrawFn, image: Image) -> Change:
    """Draw a change that goes by an image, or mostly: some of what it names is not so."""
    broker_id = draw(st.sampled_from(BROKERS))
    row = image.brokers.get(broker_id)
    epoch = 0 if row is None else row.broker_epoch
    if draw(st.integers(0, 9)) == 0:
        epoch += 1
    rows = [row for row in image.all_partitions() if row.leader == broker_id]
    chosen = draw(st.lists(st.sampled_from(rows), max_size=3, unique=True)) if rows else []
    keys = tuple(PartitionKey(one.topic_id, one.number, one.leader_epoch) for one in chosen)
    topics = sorted(image.topics())
    there = draw(st.sampled_from(topics)) if topics else None
    topic_id = draw(IDS) if there is None else there.topic_id
    setting = (draw(st.sampled_from(("", "1"))), draw(st.sampled_from(("x", "y"))))
    made_from = image.settings[setting].version if setting in image.settings else 0
    kinds: list[Callable[[], Change]] = [
        lambda: RegisterBroker(
            broker_id, draw(IDS), epoch, AT[: draw(st.integers(0, 2))], draw(st.none() | NAMES)
        ),
        lambda: RegisterBroker(broker_id, draw(IDS), epoch, level=draw(LEVELS)),
        lambda: RaiseLevel(draw(LEVELS)),
        lambda: TakeOver(broker_id, epoch, 0),
        lambda: StartLeaving(broker_id, epoch),
        lambda: LeaveCluster(broker_id, epoch),
        lambda: UnregisterBroker(broker_id, epoch),
        lambda: ReassignPartitions(tuple(_reassigned(one, draw(PLACED)) for one in chosen)),
        lambda: ElectLeaders(keys),
        lambda: GiveLeadership(broker_id, epoch, keys, draw(st.sampled_from(BROKERS))),
        lambda: CreateTopics((draw(new_topics()),)),
        lambda: CreateTopics((draw(new_topics()),)),
        lambda: AddPartitions(topic_id, 1 if there is None else there.partitions, tuple(draw(REPLICAS))),
        lambda: DeleteTopics((topic_id,)),
        lambda: SetConfigs(topic_id, 1 if there is None else there.version, draw(CONFIGS)),
        lambda: SetSetting(*setting, draw(st.none() | st.text(max_size=3)), made_from),
    ]
    return draw(st.sampled_from(kinds))()


def _reassigned(row: PartitionRow, replicas: tuple[int, ...]) -> Reassignment:
    return Reassignment(row.topic_id, row.number, row.version, replicas)


@st.composite
def new_topics(draw: st.DrawFn) -> NewTopic:
    """Draw a topic to make."""
    replicas, created_ms = tuple(draw(REPLICAS)), draw(st.integers(0, 1 << 42))
    return NewTopic(draw(IDS), draw(NAMES), replicas, draw(CONFIGS), created_ms)
