"""The broker of a scenario: a production node in virtual time, asked in the core's own commands.

Requests and answers are handed over as values: what bytes they would be is proven elsewhere, and a thousand
members could not live through a day in a minute if each were written and read. All behind that is what a
broker runs: the shard, its log on a pretended disk, its timers, and the story that it tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from coterie.base.codes import Code
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.node import Node
from coterie.broker.topics.registry import Topics
from coterie.coordinator.group.apply import line_up
from coterie.coordinator.group.classic.sync import renewal
from coterie.coordinator.group.model import Group
from coterie.simulate.agenda import Agenda, Queue
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.story.model import Move, Rebalance
from coterie.story.topic import EndedRebalance, StoryParts, StoryTopic, rebalance_of

if TYPE_CHECKING:
    from coterie.broker.runtime.groups import ShardHost
    from coterie.coordinator.group.commands import Heartbeat

ALARMS, FLUSHES = 1, 1 << 30
"""Ranks: timers ring before any client acts, and what one millisecond decided is appended together."""

LOG_BYTES, SEGMENT_BYTES = 32 << 20, 16 << 20

OWN_SETTINGS = {
    "node.id": "1",
    "listeners": "PLAINTEXT://broker:9092",
    "log.dirs": "data",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(SEGMENT_BYTES),
}


class Open:
    """A call that the broker owes an answer. Whoever asks says what `take` does with it.

    It gets the answer once, or None when the broker goes. This one has no use for it.
    """

    __slots__ = ("_place",)

    def __init__(self) -> None:
        self._place: tuple[ShardHost, int] | None = None

    def take(self, answer: Any) -> None:
        """Take the answer."""

    def answered_by(self, host: ShardHost, call: int) -> None:
        """Note where the answer comes from."""
        self._place = host, call

    def hang_up(self) -> None:
        """Be answered no more: who asked is gone."""
        if self._place is not None:
            host, call = self._place
            host.calls.pop(call, None)


class Station:
    """One broker that stops and starts again; it coordinates the one group of the scenario."""

    def __init__(self, agenda: Agenda, *, group_id: str, settings: Mapping[str, str], random: Random) -> None:
        self.agenda = agenda
        self.group_id = group_id
        self.story: list[Move | Rebalance] = []
        self.node: Node | None = None
        self.first: tuple[str, ...] = ()
        """Clients whose members come first in the group: the first is elected if the leader is gone."""
        self._settings = BrokerSettings.of({**settings, **OWN_SETTINGS})
        self._random = random
        self._disk = MemoryDisk()
        self._calls: dict[Open, None] = {}
        self._life = 0
        self._alarms = 0

    # -- life

    def start(self) -> None:
        """Start on what the disk holds."""
        assert self.node is None
        self._life += 1
        store = MemoryStore.open(
            now_ms=self.agenda.now_ms, disk=self._disk, cluster_id="simulated", node_id=1
        )
        node = self.node = Node(
            settings=self._settings,
            topics=Topics.open(self._settings, store, new_uuid=self._new_uuid),
            store=store,
            clock=self.agenda.clock,
            call_soon=self._call_soon,
            alarm=self._alarm,
            aside=self._aside,
            new_uuid=self._new_uuid,
        )
        node.coordinator.stories.topic = Listener(node.parts(StoryParts), self.story)
        node.start()

    def stop(self) -> None:
        """Stop as an administrator does; connections break."""
        assert self.node is not None
        node, self.node = self.node, None
        node.stop()
        calls, self._calls = self._calls, {}
        for call in calls:
            call.take(None)

    def _new_uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    # -- what the node's shell owes it

    def _call_soon(self, do: Callable[[], None]) -> None:
        self._at(self.agenda.now_ms, FLUSHES, do)

    def _alarm(self, at_ms: int) -> None:
        self._alarms += 1
        self._at(at_ms, ALARMS, self._ring, self._alarms)

    def _ring(self, number: int) -> None:
        if number == self._alarms and self.node is not None:
            self._line_up()
            self.node.purgatory.expire(self.agenda.now_ms)
            self._trim()

    def _line_up(self) -> None:
        """Put those first that are to be. On Apache Kafka a hash says who is first, and that is chance."""
        group = self.group() if self.first else None
        if group is None:
            return
        ranks = {name: rank for rank, name in enumerate(self.first)}
        last = len(ranks)
        wanted = sorted(group.members.values(), key=lambda one: (ranks.get(one.client_id, last), one.order))
        if wanted != list(group.members.values()):
            for order, member in enumerate(wanted):
                member.order = order
            line_up(group)

    def _trim(self) -> None:
        """Let go of old records: the last one of a group says all, and there is one group and no offset."""
        host = self.host()
        if host is not None and host.log.size_bytes > LOG_BYTES:
            host.log.delete_before(host.log.end_offset - 1, self.agenda.now_ms)

    def _aside(
        self,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        finish: Callable[[Any], None],
        *,
        computes: bool,
    ) -> None:
        result = work(*arguments)
        self._at(self.agenda.now_ms + 1, FLUSHES, finish, result)

    def _at(self, at_ms: int, rank: int, do: Callable[..., None], *arguments: Any) -> None:
        self.agenda.at(at_ms, rank, self._alive, self._life, do, arguments, queue=Queue.BROKER)

    def _alive(self, life: int, do: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Do something unless the process for which it was planned is gone."""
        if self.node is not None and life == self._life:
            do(*arguments)

    # -- what is asked

    def ask(self, command: Callable[[int], Any], call: Open) -> None:
        """Have the shard decide; the answer is the core's, or a `Code` that comes before it (P-7)."""
        host = self.host()
        if host is None:
            call.take(None)
            return
        unavailable = host.unavailable()
        if unavailable:
            call.take(unavailable)
            return
        self._calls[call] = None
        self._line_up()
        number = host.new_call(lambda answer: self._answer(call, answer))
        call.answered_by(host, number)
        host.execute(command(number))

    def _answer(self, call: Open, answer: Any) -> None:
        if self._calls.pop(call, self) is None:
            call.take(answer)

    def forget(self, call: Open) -> None:
        """Answer a call no more."""
        self._calls.pop(call, None)
        call.hang_up()

    def heartbeat(self, heartbeat: Heartbeat) -> Code | None:
        """Return the answer to a heartbeat as `broker.fastpath` does; None where the core has to decide."""
        host = self.host()
        if host is None or host.unavailable() or host.is_appending:
            return None
        renewed = renewal(host.shard.groups.get(self.group_id), heartbeat)
        if renewed is None:
            return None
        code, member = renewed
        due_ms = self.agenda.now_ms + member.session_timeout_ms
        return code if host.purgatory.move(member.session_key, due_ms) else None

    # -- how it stands

    def host(self) -> ShardHost | None:
        """Return the group's shard, None while the broker is down."""
        if self.node is None:
            return None
        coordinator = self.node.coordinator
        return coordinator.hosts.get(0) or coordinator.host_of(self.group_id)

    def stance(self) -> tuple[object, ...]:
        """Return the group's state and sizes: as long as they are the same, it has not moved."""
        group = self.group()
        if group is None:
            return ()
        return group.state, group.generation, len(group.members), len(group.pending), len(group.pending_sync)

    def group(self) -> Group | None:
        """Return the group, None where there is none that answers."""
        host = self.host()
        return None if host is None or host.unavailable() else host.shard.groups.get(self.group_id)


class Listener(StoryTopic):
    """Keeps the story as it is told, with the times it happened at, where a broker writes it to a topic."""

    def __init__(self, parts: StoryParts, story: list[Move | Rebalance]) -> None:
        super().__init__(parts)
        self._story = story

    def add(self, what: Move | EndedRebalance) -> None:
        """Keep a move or a rebalance."""
        self._story.append(what if isinstance(what, Move) else rebalance_of(what))
