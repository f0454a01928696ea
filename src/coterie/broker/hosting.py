"""What a node serves as a member of a cluster: by each image and in each broker epoch, and what it does when
either is over.

Who leads what a node hears by the image, and goes by it at once. What it is to lead itself it leads in a
broker epoch only: from `serve` on, each partition once its log is open. When the engine has gone back to an
older state, and the image contradicts what was led, all that is known is forgotten and the node registers
anew; so it does when its lanes say that rows are gone, are another's, or that their gate is shut.

The elections of an image are taken some at a time, and others are answered between: there may be ten
thousand. What is known of the rest is as old as if that news took a little longer. All are taken before
anything is done that goes by who leads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC
from coterie.broker.cluster.applying import (
    DeletedTopic,
    Differences,
    Election,
    broker_news,
    contradicts,
    differences,
)
from coterie.broker.cluster.giving_back import GOES_LAST
from coterie.broker.cluster.image import BrokerRow, BrokerState, Image, PartitionRow, TopicRow
from coterie.broker.runtime.leadership import NodeEndpoint
from coterie.storage.remote.store import LogToOpen

if TYPE_CHECKING:
    from uuid import UUID

    from coterie.broker.cluster.changes import PartitionKey
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.net.peers import Peers
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.leadership import ElectedLeaders, Elections
    from coterie.broker.runtime.pieces import Scheduler
    from coterie.broker.topics.cluster_topics import ClusterTopics
    from coterie.storage.config import LogConfig

log = logging.getLogger("coterie.broker")

ELECTIONS_AT_ONCE = 250


class LedLogs(Protocol):
    """The logs of what a broker leads, as `RemoteStore` has them."""

    def begin(self, broker_epoch: int, history: str) -> None:
        """Begin a broker epoch, on an engine of this history."""
        ...

    def go_on(self, history: str) -> None:
        """Go by an engine of this history from now on."""
        ...

    def end(self) -> None:
        """End the broker epoch: close all logs."""
        ...

    def open(self, wanted: Iterable[LogToOpen], opened: Callable[..., None]) -> None:
        """Open logs; `opened` is called with the name of each, and with the log, later."""
        ...

    def drop(self, name: TopicPartition) -> None:
        """Close a log, or do not open it."""
        ...

    def configure(self, name: TopicPartition, config: LogConfig) -> None:
        """Give a log other settings."""
        ...

    def drained(self, done: Callable[[], None], names: Collection[TopicPartition] | None = None) -> None:
        """Have `done` called when all that was appended so far, to some partitions or to any, is landed or
        refused. Where there are no partitions that is so already.
        """
        ...

    def expect_repeats(self) -> None:
        """Take note that clients were sent away for a while, and send again what they had sent."""
        ...

    def when_room(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, once, when what is held is not too much any more."""
        ...


class HostingParts(NamedTuple):
    """The parts of the node that this uses."""

    settings: BrokerSettings
    leadership: ElectedLeaders
    elections: Elections
    topics: ClusterTopics
    scheduler: Scheduler
    peers: Peers
    load_coordinator: Callable[[], Coordinator]


class ClusterMembership(Protocol):
    """The member, as this answers it."""

    @property
    def history(self) -> str | None:
        """That of the engine whose metadata the broker goes by."""
        ...

    def refused(self, broker_epoch: int) -> None:
        """Take note that what is led in an epoch is not to be relied on."""
        ...

    def act(self, do: Callable[[], None]) -> None:
        """Do something that belongs to the broker's life: a fault in it ends the process."""
        ...


class NodeHosting:
    """A node's part in what its membership leads to."""

    member: ClusterMembership
    """To be set before the member begins."""

    def __init__(
        self,
        parts: HostingParts,
        logs: LedLogs,
        *,
        listener: str,
        exit_with: Callable[[str], None],
    ) -> None:
        """`listener` is the name of the one that clients use; `exit_with` ends the process."""
        self.exit = exit_with
        self._settings = parts.settings
        self._leaders = parts.leadership
        self._elections = parts.elections
        self._topics = parts.topics
        self._scheduler = parts.scheduler
        self._peers = parts.peers
        self._load_coordinator = parts.load_coordinator
        self._logs = logs
        self._listener = listener
        parts.elections.all_loaded = lambda: self.member.act(_nothing)
        self._image = Image()
        self._elected: deque[tuple[Iterator[Election], Image]] = deque()  # not all taken, oldest first
        self._broker_epoch = 0  # in which it leads, 0 if in none
        self._over = False  # whether it is about to be another
        self.suspensions = 0
        """How often it was suspended."""

    @property
    def _me(self) -> int:
        return self._leaders.node_id

    # -- images

    def apply(self, before: Image, after: Image) -> None:
        """Go by another image."""
        self._image = after
        for news in broker_news(before, after, self._me):
            log.log(logging.WARNING if news.warns else logging.INFO, "%s", news.text)
        self._leaders.set_live(
            _endpoints(after, self._listener, after.unfenced),
            fenced=_endpoints(after, self._listener, set(after.brokers).difference(after.unfenced)),
            leaving=[row.broker_id for row in after.brokers.values() if row.state is BrokerState.LEAVING],
        )
        self._topics.take(after)
        if contradicts(before, after, self._me):
            log.error("the engine has gone back to an older state: nothing that was led stands")
            self._take_elections()
            self._elections.forget()
            self._register_anew()
            before = Image()
        self._apply(differences(before, after))

    def _apply(self, found: Differences) -> None:
        if found.deleted:  # whose names others may have now
            self._take_elections()
        for deleted in found.deleted:
            self._forget(deleted)
        for topic in found.changed:
            self._configure(topic)
        self._elected.append((found.elections, self._image))
        if len(self._elected) == 1:
            self._take_some()
        if found.deleted:
            self._forget_commits({deleted.topic.topic_id: deleted.topic.name for deleted in found.deleted})

    def _take_some(self) -> None:
        """Take the next elections, and have the rest taken soon."""
        while self._elected:
            elections, image = self._elected[0]
            some = [*islice(elections, ELECTIONS_AT_ONCE)]
            self._take(some, image)
            if len(some) == ELECTIONS_AT_ONCE:
                self._scheduler.call_soon(lambda: self.member.act(self._take_some))
                return
            self._elected.popleft()

    def _take_elections(self) -> None:
        """Take all elections that there is news of, now."""
        while self._elected:
            elections, image = self._elected.popleft()
            self._take([*elections], image)

    def _take(self, elections: Iterable[Election], image: Image) -> None:
        led, me = [], self._me
        for election in elections:
            name, row = election
            if row.leader == me:
                led.append(election)
            elif self._elections.elected(name, row.leader, row.leader_epoch):
                self._logs.drop(name)
        self._lead(led, image)

    def _forget(self, deleted: DeletedTopic) -> None:
        for row in deleted.partitions:
            name = TopicPartition(deleted.topic.name, row.number)
            self._elections.deleted(name)
            self._logs.drop(name)

    def _forget_commits(self, gone: Mapping[UUID, str]) -> None:
        """Have the groups that are led here drop what was committed for topics that are gone (OM-7)."""
        if self._topics.get(OFFSETS_TOPIC) is not None:
            self._load_coordinator().topics_gone(gone)

    def _configure(self, topic: TopicRow) -> None:
        config = self._config_of(topic)
        for number in range(topic.partitions):
            self._logs.configure(TopicPartition(topic.name, number), config)

    def _lead(self, elections: Sequence[Election], image: Image) -> None:
        """Lead partitions, each once its log is open. Outside of a broker epoch nothing is led."""
        if not self._broker_epoch or self._over:
            return
        wanted = []
        configs: dict[str, LogConfig] = {}
        for name, row in elections:
            if not self._elections.elected(name, self._me, row.leader_epoch):
                continue
            config = configs.get(name.topic)
            if config is None:
                # Its settings may be others by now; it is gone where it was deleted in the meantime.
                topic = self._image.topic_by_id(row.topic_id) or image.topic_by_id(row.topic_id)
                assert topic is not None
                config = configs[name.topic] = self._config_of(topic)
            wanted.append(LogToOpen(name, row.partition_id, row.leader_epoch, config))
        if wanted:
            log.debug("image %d: %d logs are to be opened", image.version, len(wanted))
        self._logs.open(wanted, self._opened)

    def _config_of(self, topic: TopicRow) -> LogConfig:
        """Return the settings of a topic's logs; many have none of their own."""
        if not topic.configs:
            return self._settings.log_base
        config, _ = self._settings.stored_log_config(topic.configs)
        return config

    def _opened(self, name: TopicPartition, _: object) -> None:
        log.debug("%s is open", name)
        self._elections.opened(name)

    def is_settled(self) -> bool:
        """Return whether all is loaded that groups and transactions wait for, by the image."""
        return not self._elected and not self._elections.is_loading()

    def weigh(self, partition: PartitionRow) -> int:
        """Return the size of all that groups or transactions have written to a partition that is led; of
        their story, that it goes last.
        """
        topic = self._image.topic_by_id(partition.topic_id)
        if topic is None:
            return 0
        if topic.name == STORY_TOPIC:
            return GOES_LAST
        return self._elections.weigh(TopicPartition(topic.name, partition.number))

    # -- broker epochs

    def serve(self, broker_epoch: int) -> None:
        """Lead what the image says, in this broker epoch."""
        self._take_elections()
        self._broker_epoch, self._over = broker_epoch, False
        self._logs.begin(broker_epoch, self.member.history or "")
        image = self._image
        led = [
            Election(TopicPartition(topic.name, row.number), row)
            for topic in image.topics()
            for row in image.partitions(topic.topic_id)
            if row.leader == self._me
        ]
        log.info("broker epoch %d begins; %d partitions are to be led", broker_epoch, len(led))
        self._lead(led, image)

    def suspend(self, why: str) -> None:
        """Answer that others may lead."""
        log.warning("suspended: %s", why)
        self.suspensions += 1
        self._elections.suspend()

    def resume(self, *, anew: bool) -> None:
        """Go on, unless what was led does not stand. At an engine that may have gone back, the lanes look
        before anybody is answered whether what it had confirmed is there.
        """
        self._take_elections()
        if self._over:
            return
        log.info("resumed: the database has answered a heartbeat, and nobody has taken over")
        self._logs.expect_repeats()
        if not anew:
            self._elections.resume()
            return
        resumed = (self._broker_epoch, self.suspensions)

        def looked() -> None:
            if not self._over and resumed == (self._broker_epoch, self.suspensions):
                self._elections.resume()

        self._logs.go_on(self.member.history or "")
        self._logs.drained(looked)

    def fence(self) -> None:
        """Lead nothing any more."""
        log.info("nothing is led any more: broker epoch %d is over", self._broker_epoch)
        self._broker_epoch, self._over = 0, False
        self._take_elections()
        self._elections.fenced()
        self._logs.end()

    def drain(self, done: Callable[[], None]) -> None:
        """Decide and append nothing more; `done` is called once all has landed."""
        log.info("leaving: what is decided is written, and then others lead")
        self._take_elections()
        self._elections.drain(lambda: self._logs.drained(done))

    def release(self, partitions: Sequence[PartitionKey], done: Callable[[], None]) -> None:
        """Decide and append nothing more in some partitions, until another image says who leads them."""
        self._take_elections()
        names = []
        for topic_id, number, _ in partitions:
            topic = self._image.topic_by_id(topic_id)
            if topic is not None:
                names.append(TopicPartition(topic.name, number))
        log.debug("to be given away: %s", _listed(names))
        self._elections.drain(lambda: self._logs.drained(done, names), names)

    def _register_anew(self) -> None:
        if self._broker_epoch and not self._over:
            self._over = True
            epoch = self._broker_epoch
            self._scheduler.call_soon(lambda: self.member.refused(epoch))

    # -- what the lanes say

    def fenced(self) -> None:
        """The broker epoch is gone from the gate."""
        self._register_anew()

    def lost(self, names: frozenset[TopicPartition]) -> None:
        """Rows are gone that were confirmed: lead on in new leader epochs, from what there is."""
        log.error("the database lacks what it had confirmed, in %s", _listed(names))
        self._register_anew()

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        """Another leader's rows are where one's own were to be, which cannot be: begin anew."""
        log.error("rows of another leader are in one of %s", _listed(names))
        self._register_anew()

    def full(self) -> None:
        """Read from no client while the lanes hold too much."""
        self._peers.pause_reading()
        self._logs.when_room(self._peers.resume_reading)


def _nothing() -> None:
    """Do nothing; the member looks at what has changed by itself."""


def _endpoints(image: Image, listener: str, broker_ids: Iterable[int]) -> list[NodeEndpoint]:
    """Return brokers, each where clients reach it, or reached it last."""
    rows = [image.brokers[broker_id] for broker_id in broker_ids]
    return [_endpoint(row, listener) for row in rows if row.listeners]


def _endpoint(row: BrokerRow, listener: str) -> NodeEndpoint:
    found = next((one for one in row.listeners if one.name == listener), row.listeners[0])
    return NodeEndpoint(row.broker_id, found.host, found.port, row.rack)


def _listed(names: Iterable[TopicPartition]) -> str:
    return ", ".join(sorted(map(str, names))) or "no log that is open"
