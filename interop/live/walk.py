"""What every walk has: a seed, actors that ask, pauses in which time-outs strike, and the comparison."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any
from uuid import UUID

from coterie.wire.api.entities import (
    build,
    entity,
)
from interop.live.moments import Moments
from interop.live.mutations import mutated
from interop.live.twin import Answered, Call, Different, Twin

__all__ = ["Options", "Walk", "part"]

ADMIN = "admin"
STEP_S = 0.08
LONGEST_CALM_S = 3.5
CODES_TO_RETRY = (
    "concurrent_transactions",
    "coordinator_load_in_progress",
    "coordinator_not_available",
    "not_coordinator",
    "leader_not_available",
    "unknown_topic_or_partition",
)
RETRIES, RETRY_S = 100, 0.1
# By API: the list in its answer whose order is nobody's business, and what tells whose each item is.
LISTS = {
    "list_groups": ("groups", "group_id"),
    "describe_groups": ("groups", "group_id"),
    "delete_groups": ("results", "group_id"),
}
# Answers whose lists come out of hash maps throughout.
UNORDERED = (
    "produce",
    "list_offsets",
    "fetch",
    "add_partitions_to_txn",
    "describe_transactions",
    "describe_producers",
)
UNBENT = (
    "fetch",
    "list_offsets",
)  # asked for what they show of transactions; their checks are others' business
LISTS_OF_ALL = ("list_groups",)


@dataclass(frozen=True, slots=True)
class Options:
    """What one seed draws before it walks: which habits its clients have."""

    steps: int
    groups: int
    actors: int
    statics: int
    mutations: float
    fresh: float
    """How likely a request is in the newest version rather than in any."""
    session_ms: tuple[int, ...]
    rebalance_ms: tuple[int, ...]
    delay_ms: int
    burst: int
    """Steps between two pauses; 0 where nothing times out."""
    transactions: bool = False


def part(api: str, version: int, kind: str, /, **values: Any) -> Any:
    """Return a part of a request, of those values that its version has."""
    return build(entity(api, version, kind), **values)


class Walk(ABC):
    """A seeded walk of requests over a twin."""

    def __init__(self, twin: Twin, *, key: str, random: Random, options: Options) -> None:
        self.twin, self.key, self.random, self.options = twin, key, random, options
        spans_ms = {*options.session_ms, *options.rebalance_ms, options.delay_ms} - {0}
        self._moments = Moments(tuple(span_ms / 1000 for span_ms in sorted(spans_ms)))
        self._pauses = options.burst > 0
        self.topics: dict[str, UUID] = {}
        self.claimed: int | None = None

    # -- the walk

    async def run(self) -> None:
        """Make all steps; raises `Different` where the brokers do not agree."""
        await self.prepare()
        for step in range(self.options.steps):
            if self._pauses and step % self.options.burst == self.options.burst - 1:
                await self.pause()
            await self.one_step()
        await self.pause() if self._pauses else await self.take_answers()
        await self.compare_logs()

    async def prepare(self) -> None:
        """Find the coordinator, then make this seed's own topics, one by one: their ids get like names."""
        await self.ask_now("find_coordinator", 3, key=self.key, key_type=0, note="until it is there")
        for name, partitions in (("t0", 3), ("t1", 1)):
            await self.make_topic(f"{self.key}-{name}", partitions)

    async def make_topic(self, name: str, partitions: int) -> None:
        """Create a topic and learn its id."""
        topic = part(
            "create_topics", 7, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1
        )
        answer = await self.ask_now("create_topics", 7, topics=(topic,), timeout=20_000, note=name)
        self.topics[name] = UUID(answer["topics"][0]["topic_id"])
        wanted = part("metadata", 9, "MetadataRequestTopic", name=name)
        await self.ask_now("metadata", 9, note="until it is known", topics=(wanted,))

    @abstractmethod
    async def compare_logs(self) -> None:
        """Compare what the brokers have written."""

    @abstractmethod
    async def one_step(self) -> None:
        """Make one request that the state of the clients allows."""

    @abstractmethod
    def learn(self, call: Call, answer: Any) -> None:
        """Take in what a client was answered."""

    # -- asking

    def version(self, *versions: int) -> int:
        """Return one of the versions, often the newest."""
        return max(versions) if self.random.random() < self.options.fresh else self.random.choice(versions)

    async def ask(
        self, actor: str, api: str, version: int, note: str, *, spared: tuple[str, ...] = (), **values: Any
    ) -> list[Answered]:
        """Send a request, bent where this seed bends it, and take every answer that has come."""
        name = "".join(word.capitalize() for word in api.split("_"))
        request = part(api, version, f"{name}Request", **values)
        if self.random.random() < self.options.mutations and api not in UNBENT:
            how, request = mutated(
                request, self.random, known=self.known_strings(), spared=spared, key=self.key
            )
            note = f"{note} {how}"
        claimed, self.claimed = self.claimed, None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.twin.send(actor, api, version, request, note, claimed=claimed)
        answered = await self.take_answers()
        self._moments.asked(begun, loop.time())
        return answered

    def known_strings(self) -> tuple[str, ...]:
        """Return strings that mean something to the brokers, for requests to be bent with."""
        return tuple(self.topics)

    async def ask_now(self, api: str, version: int, note: str, **values: Any) -> Any:
        """Ask as the administrator, never bent, and return Apache Kafka's answer.

        What both brokers refuse only for the moment is asked again.
        """
        for _ in range(RETRIES):
            name = "".join(word.capitalize() for word in api.split("_"))
            self.twin.send(
                ADMIN, api, version, part(api, version, f"{name}Request", **values), note, claimed=None
            )
            answered = await self.twin.settle()
            mine = next(one for one in answered if one.call.actor == ADMIN)
            self.hear([one for one in answered if one is not mine])
            if not any(code in repr(side) for code in CODES_TO_RETRY for side in (mine.kafka, mine.ours)):
                self.hear([mine])
                return mine.kafka
            await asyncio.sleep(RETRY_S)
        raise Different(f"{mine.call}: still {mine.kafka} of Apache Kafka, {mine.ours} here")

    async def take_answers(self) -> list[Answered]:
        """Wait until nothing more comes; compare and learn what came."""
        answered = await self.twin.settle()
        self.hear(answered)
        return answered

    def hear(self, answered: list[Answered]) -> None:
        """Compare the answers, then let the clients know them."""
        for one in map(self._of_this_seed, answered):
            self.twin.compare(one.call, one.kafka, one.ours)
        for one in answered:
            self.learn(one.call, one.kafka)

    def _of_this_seed(self, one: Answered) -> Answered:
        """Return the answers in an order of their own, without what other seeds do at the same time."""
        if one.call.api == "offset_fetch":
            return Answered(one.call, *(in_order(one.call.request, side) for side in (one.kafka, one.ours)))
        if one.call.api in UNORDERED:
            return Answered(one.call, in_any_order(one.kafka), in_any_order(one.ours))
        listed = LISTS.get(one.call.api)
        if listed is None:
            return one
        name, by = listed
        sides = []
        for side in (one.kafka, one.ours):
            own = side.get(name, [])
            if one.call.api in LISTS_OF_ALL:
                own = [each for each in own if each[by].startswith(f"{self.key}-")]
            sides.append(side | {name: sorted(own, key=lambda each: str(each[by]))})
        return Answered(one.call, *sides)

    # -- time

    async def calm(self) -> None:
        """Wait until nothing is about to come due at the brokers, and take what came due meanwhile."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        at = min(self._moments.next_calm(now, STEP_S * self.options.burst), now + LONGEST_CALM_S)
        if at > now:
            await asyncio.sleep(at - now)
            await self.take_answers()

    async def pause(self) -> None:
        """Let time pass: about one of the time-outs in use, and on until nothing is about to come due."""
        spans_ms = (*self.options.session_ms, *self.options.rebalance_ms, max(self.options.delay_ms, 200))
        await asyncio.sleep(self.random.choice(spans_ms) / 1000 * self.random.choice((0.4, 1.0)))
        await self.calm()
        await self.take_answers()


def in_order(request: Any, answer: Any) -> Any:
    """Return the answer to an OffsetFetch; where everything was asked for, hash maps made its order."""
    if "groups" in answer:
        if len(answer["groups"]) != len(request.groups):
            return answer
        pairs = zip(request.groups, answer["groups"], strict=True)
        return answer | {"groups": [in_order(asked, group) for asked, group in pairs]}
    if getattr(request, "topics", ()) is not None or "topics" not in answer:
        return answer
    topics = [
        topic | {"partitions": sorted(topic["partitions"], key=itemgetter("partition_index"))}
        for topic in answer["topics"]
    ]
    return answer | {"topics": sorted(topics, key=lambda topic: str(topic.get("name") or topic["topic_id"]))}


def in_any_order(answer: Any) -> Any:
    """Return an answer with its lists sorted, but for the records that were fetched."""
    if isinstance(answer, dict):
        return {name: inner if name == "records" else in_any_order(inner) for name, inner in answer.items()}
    if isinstance(answer, list):
        return sorted(map(in_any_order, answer), key=repr)
    return answer
