"""Which broker leads a partition, in which epoch, and where clients reach it.

A broker alone leads everything. One of several knows of elections what it has heard: news takes its time, so
two may differ in what they believe, and each answers by what it believes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.runtime.pieces import when_all

if TYPE_CHECKING:
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.runtime.transactions import TransactionCoordinator
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.kind import Log

NEVER_LED = 0  # the epoch of a partition of which no election is known


class NodeEndpoint(NamedTuple):
    """A broker that lives, and where clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Leadership(Protocol):
    """What a node believes of who leads what."""

    @property
    def alone(self) -> bool:
        """Whether this node leads all there is: nothing need be asked partition by partition then."""
        ...

    @property
    def suspended(self) -> bool:
        """Whether others may lead what this node was elected for, and it has no way to hear of that now."""
        ...

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether this node leads a partition."""
        ...

    def leader_of(self, topic: str, partition: int) -> NodeEndpoint | None:
        """Return a partition's leader, None while it has none that lives."""
        ...

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch of a partition's last election, 0 before there was one."""
        ...

    def live_brokers(self) -> tuple[NodeEndpoint, ...]:
        """Return the brokers that live, by id."""
        ...

    def fenced_brokers(self) -> tuple[NodeEndpoint, ...]:
        """Return the brokers that are registered and do not live, by id, each where it was reached last."""
        ...

    def lives(self, node_id: int) -> bool:
        """Return whether a broker lives: as a replica it is in sync then."""
        ...

    def controller(self) -> int | None:
        """Return the broker that is named as Kafka's controller, None while none lives. Any broker takes an
        administrator's requests.
        """
        ...

    def when_brokers_change(self, brokers_changed: Callable[[], None]) -> None:
        """Have a function called each time that the brokers which live may be others, or elsewhere."""
        ...


class SoleLeader:
    """The leadership of a cluster of one; the logs know the epochs."""

    alone: Final = True
    suspended: Final = False

    def __init__(
        self,
        node_id: int,
        address: Callable[[], tuple[str, int]],
        rack: str | None,
        logs: Mapping[TopicPartition, Log],
    ) -> None:
        """`address` returns the host and port that clients are sent to."""
        self._node_id = node_id
        self._address = address
        self._rack = rack
        self._logs = logs

    def leads(self, topic: str, partition: int) -> bool:
        """Return True: there is nobody else."""
        return True

    def leader_of(self, topic: str, partition: int) -> NodeEndpoint:
        """Return this node."""
        return NodeEndpoint(self._node_id, *self._address(), self._rack)

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the newest epoch of a partition's log; 0 of one whose log could not be made."""
        log = self._logs.get(TopicPartition(topic, partition))
        return NEVER_LED if log is None else log.latest_epoch

    def live_brokers(self) -> tuple[NodeEndpoint, ...]:
        """Return this node."""
        return (NodeEndpoint(self._node_id, *self._address(), self._rack),)

    def fenced_brokers(self) -> tuple[NodeEndpoint, ...]:
        """Return none: there is nobody else."""
        return ()

    def lives(self, node_id: int) -> bool:
        """Return whether this node is meant: there is nobody else."""
        return node_id == self._node_id

    def controller(self) -> int:
        """Return this node."""
        return self._node_id

    def when_brokers_change(self, brokers_changed: Callable[[], None]) -> None:
        """Do nothing: no other comes or goes."""


class Led(NamedTuple):
    """The id of a partition's leader, None while it has none, and the epoch of the election that said so."""

    leader: int | None
    epoch: int


class ElectedLeaders:
    """The leadership of one broker of several, by the elections that it has heard of."""

    alone: Final = False

    def __init__(self, node_id: int, live: Iterable[NodeEndpoint] = ()) -> None:
        self.node_id = node_id
        self.suspended = False
        """Whether others may lead what this node was elected for, which it is not to answer for then."""
        self._draining: set[tuple[str, int]] = set()
        self._live: dict[int, NodeEndpoint] = {}
        self._leaving: Collection[int] = ()
        self._fenced: tuple[NodeEndpoint, ...] = ()
        self._led: dict[tuple[str, int], Led] = {}
        self._watching: list[Callable[[], None]] = []
        self.set_live(live)

    def set_live(
        self,
        brokers: Iterable[NodeEndpoint],
        *,
        leaving: Collection[int] = (),
        fenced: Iterable[NodeEndpoint] = (),
    ) -> None:
        """Take note of which brokers live, which of them are about to stop, and which others there are."""
        self._live = {one.node_id: one for one in sorted(brokers, key=lambda one: one.node_id)}
        self._leaving = leaving
        self._fenced = tuple(sorted(fenced, key=lambda one: one.node_id))
        for brokers_changed in self._watching:
            brokers_changed()

    def when_brokers_change(self, brokers_changed: Callable[[], None]) -> None:
        """Have a function called each time that the brokers which live are set anew."""
        self._watching.append(brokers_changed)

    def is_news(self, name: TopicPartition, epoch: int) -> bool:
        """Return whether no election of this or a later epoch is known of a partition (LO-8)."""
        known = self._led.get(name)
        return known is None or known.epoch < epoch

    def elect(self, name: TopicPartition, led: Led) -> None:
        """Take note of an election that is news."""
        self._led[name] = led
        self._draining.discard(name)

    def forget_elections(self, names: Iterable[TopicPartition] | None = None) -> None:
        """Know of no election of some partitions, or of any: the next is news, whatever its epoch."""
        for name in list(self._led) if names is None else names:
            self._led.pop(name, None)
            self._draining.discard(name)

    def own(self) -> list[TopicPartition]:
        """Return the partitions for which this node was elected last."""
        return [TopicPartition(*name) for name, led in self._led.items() if led.leader == self.node_id]

    def drain(self, names: Iterable[TopicPartition]) -> None:
        """Serve partitions no more that are about to be given away."""
        self._draining.update(names)

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether this node was elected last, and serves."""
        led = self._led.get((topic, partition))
        if led is None or led.leader != self.node_id or self.suspended:
            return False
        return not self._draining or (topic, partition) not in self._draining

    def heard_last(self, name: TopicPartition) -> Led | None:
        """Return the last election of a partition that was heard of: the same object until the next is."""
        return self._led.get(name)

    def leader_of(self, topic: str, partition: int) -> NodeEndpoint | None:
        """Return the broker that was elected last, None if it does not live, or may be none any more."""
        led = self._led.get((topic, partition))
        if led is None or led.leader is None or (self.suspended and led.leader == self.node_id):
            return None
        return self._live.get(led.leader)

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch of the last election, 0 before there was one."""
        led = self._led.get((topic, partition))
        return NEVER_LED if led is None else led.epoch

    def live_brokers(self) -> tuple[NodeEndpoint, ...]:
        """Return the brokers that live, by id."""
        return tuple(self._live.values())

    def fenced_brokers(self) -> tuple[NodeEndpoint, ...]:
        """Return the brokers that are registered and do not live, by id."""
        return self._fenced

    def lives(self, node_id: int) -> bool:
        """Return whether a broker lives."""
        return node_id in self._live

    def controller(self) -> int | None:
        """Return the broker of the lowest id that lives and stays, else of the lowest that lives."""
        staying = (one for one in self._live if one not in self._leaving)
        return next(staying, next(iter(self._live), None))


def why_absent(topics: TopicCatalog, leadership: Leadership, topic: str, partition: int) -> Code:
    """Return why a partition is not served here: it is led elsewhere, or there is none.

    Without its log, which could not be made, one that a broker alone leads is as good as not there. One of
    several may still be opening it: to be told that there is none would let a marker count as written.
    """
    there = topics.get(topic)
    if leadership.alone or there is None or not 0 <= partition < there.partitions:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.NOT_LEADER_OR_FOLLOWER


class Elections:
    """What follows for this broker from the elections that it hears of."""

    def __init__(
        self,
        leaders: ElectedLeaders,
        logs: Mapping[TopicPartition, Log],
        purgatory: Purgatory,
        load_coordinator: Callable[[], Coordinator],
        load_transactions: Callable[[], TransactionCoordinator],
    ) -> None:
        self._leaders = leaders
        self._logs = logs
        self._purgatory = purgatory
        self._load_coordinator = load_coordinator
        self._load_of: dict[str, Callable[[], Coordinator | TransactionCoordinator]]
        self._load_of = {OFFSETS_TOPIC: load_coordinator, TRANSACTIONS_TOPIC: load_transactions}
        self._elected: dict[str, Coordinator | TransactionCoordinator] = {}  # of which news has come
        self.all_loaded: Callable[[], None] | None = None
        """Called, where it is set, when shards of a topic that this node leads have been loaded."""

    def heard(self, name: TopicPartition, leader: int | None, epoch: int) -> None:
        """Take the news of an election, as `elected`; a log in this node's files is there with it.

        A log that is still to be made begins in the epoch, and its shard is loaded when somebody asks for it.
        Raises OSError where this node is elected and its log cannot write the epoch down; the news is not
        heard then.
        """
        log = self._logs.get(name) if leader == self._leaders.node_id else None
        if log is not None and self._leaders.is_news(name, epoch):
            log.lead(epoch)
        self.elected(name, leader, epoch)
        if log is not None:
            self.opened(name)

    def elected(self, name: TopicPartition, leader: int | None, epoch: int) -> bool:
        """Take the news that a partition has another leader, or the same in a later epoch (LO-8, DE-6), and
        return whether it is news.

        What waits for records of the partition is answered now: it has come to the wrong broker, or in an
        epoch that is over (KIP-320). Where this node is elected, clients are to come back until its log is
        `opened`.
        """
        if not self._leaders.is_news(name, epoch):
            return False
        self._leaders.elect(name, Led(leader, epoch))
        if name.topic in self._load_of:
            shards = self._load_of[name.topic]()
            self._elected[name.topic] = shards
            shards.all_loaded = self.all_loaded
            (shards.elected if leader == self._leaders.node_id else shards.resigned)(name.partition, epoch)
        self._purgatory.force_watching(name)
        return True

    def opened(self, name: TopicPartition) -> None:
        """Serve a partition whose log is there, in the epoch for which this node was elected."""
        if name.topic in self._load_of:
            self._load_of[name.topic]().opened(name.partition)

    def is_loading(self) -> bool:
        """Return whether a shard that this node leads is still to be loaded. While it is suspended one may
        be, and is loaded when it goes on.
        """
        return self._leaders.suspended or any(shards.loading() for shards in self._elected.values())

    def weigh(self, name: TopicPartition) -> int:
        """Return the size in bytes of a shard's log: 1 if it is not open yet, 0 where there is no shard."""
        log = self._logs.get(name)
        if name.topic not in self._load_of:
            return 0
        return 1 if log is None else log.size_bytes

    def suspend(self) -> None:
        """Answer nobody for what this node leads: others may by now. What is held and what waits stays."""
        self._leaders.suspended = True
        for load in self._load_of.values():
            load().suspend()

    def resume(self) -> None:
        """Answer again: this node has led all the while."""
        self._leaders.suspended = False
        for load in self._load_of.values():
            load().resume()

    def drain(self, done: Callable[[], None], names: Collection[TopicPartition] | None = None) -> None:
        """Decide and append nothing more for some partitions, or all that this node leads. `done` is called
        once, when what the coordinators have decided there has landed.

        What waits to be written to the story of groups is, as long as this node leads a partition of it: at
        once where it gives all away, since it stops. Else it goes on serving, and must not stand still for
        that: the rounds write it, and partitions of the story are drained after them.
        """
        drained = self._leaders.own() if names is None else names
        story = [name for name in drained if name.topic == STORY_TOPIC]
        asks = [
            partial(load().drain, partitions=_numbers(drained, topic))
            for topic, load in self._load_of.items()
        ]
        if story and names is None:
            self._load_coordinator().stories.topic.flush()
        elif story:
            drained = [name for name in drained if name.topic != STORY_TOPIC]
            asks.append(partial(self._drain_story, names=story))
        self._leaders.drain(drained)
        when_all(asks, done)

    def _drain_story(self, done: Callable[[], None], names: Iterable[TopicPartition]) -> None:
        """Append nothing more to partitions of the story once all that waits is written there. What was
        elected anew by then is served.
        """
        heard = {name: self._leaders.heard_last(name) for name in names}

        def written() -> None:
            self._leaders.drain(
                [name for name, led in heard.items() if self._leaders.heard_last(name) is led]
            )
            done()

        self._load_coordinator().stories.topic.when_written(written)

    def fenced(self) -> None:
        """Lead nothing any more, until the next elections: whoever waits is sent elsewhere (DE-6)."""
        for name in self._leaders.own():
            self._leaders.elect(name, Led(None, self._leaders.leader_epoch(*name)))
            if name.topic in self._load_of:
                self._load_of[name.topic]().resigned(name.partition)
            self._purgatory.force_watching(name)
        self.resume()

    def forget(self) -> None:
        """Lead nothing any more, and know of no election: the engine has gone back to an older state, and
        numbers epochs from there.
        """
        self.fenced()
        self._leaders.forget_elections()
        for load in self._load_of.values():
            load().forget()

    def deleted(self, name: TopicPartition) -> None:
        """Take the news that a partition is gone; the next of its name begins with the first epoch."""
        self._leaders.forget_elections([name])
        if name.topic in self._load_of:
            shards = self._load_of[name.topic]()
            shards.resigned(name.partition)
            shards.forget(name.partition)
        self._purgatory.force_watching(name)


def _numbers(names: Iterable[TopicPartition], topic: str) -> list[int]:
    return [name.partition for name in names if name.topic == topic]
