"""A live broker in a process of its own, one extreme request after the other, and what must hold after each.

Others are answered, soon: a produce, a new producer id, metadata of what is there and what is not. No
callback of the event loop has taken more of its thread's time than allowed, the memory is within its bound,
the log tells of no mistake, and after a kill, or a stop, everything that was acknowledged is there.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from anyrequest.grammar import TOPICS, Drawn, Grammar
from anyrequest.line import ANSWER_S, Broken, Line, Watched
from anyrequest.state import differences, look
from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.api.layout import plan_of
from coterie.wire.records.batches import Record, build_batch, read_header

__all__ = ["Broken", "Trial"]

RESIDENT_MOST = 900 << 20
DRAWN_S = 0.4  # for an answer to the request itself, which may rightly wait
# Who waits for nobody, and changes what a kill must leave as it was: topics, settings, where logs start.
AWAITED = (19, 20, 21, 33, 37, 44)
LOOK_S = 0.01  # between two looks at whether others are answered
KILL_EVERY = 40
FULL_SHARE, FULL_FOR = 0.03, 5
PARTITIONS_MOST = 2_000  # before the directory is thrown away: more only takes more time
PARTITIONS_OF_REQUEST_MOST = 10_000
MISTAKES = ("Traceback (most recent call last)",)
# How long the loop was held, and others waited, is judged by the least of a few tries on new brokers: cold
# caches, a disk that others write to, or a neighbour on the other half of the core make it up to twice as
# much. What is a multiple of what is allowed is not due to those, and found at once: it may need what a new
# broker does not hold.
TRIES, SURELY = 2, 5


class Trial:
    """One broker, and requests to it by seed."""

    def __init__(
        self, seed: int, *, held_most_s: float, answered_most_s: float = ANSWER_S, plant: str = ""
    ) -> None:
        """`held_most_s` is of the loop's own time; `answered_most_s` leaves out when other processes ran."""
        self.seed, self.plant = seed, plant
        self.held_most_s, self.answered_most_s = held_most_s, answered_most_s
        self.grammar = Grammar(seed)
        self.worst_held_s = self.worst_other_s = self.waited_s = 0.0
        self.requests = self.restarts = self.kept = self.names = 0

    def run(self, go_on: Callable[[int], bool]) -> None:
        """Send requests as long as `go_on(number)`. Raises `Broken`."""
        while go_on(self.requests):
            with tempfile.TemporaryDirectory(prefix="anyrequest-") as root, self.broker(Path(root)):
                self.life(go_on)

    @contextlib.contextmanager
    def broker(self, root: Path) -> Iterator[None]:
        self.watched = Watched(root, self.plant)
        self.kept = 0
        try:
            self.other = Line(self.watched.port)
            try:
                yield
            finally:
                self.other.close()
        finally:
            self.watched.end()

    def life(self, go_on: Callable[[int], bool]) -> None:
        """Send requests to one broker until its directory is too large."""
        self.settle_in()
        full_until = 0
        while go_on(self.requests):
            self.requests += 1
            if self.grammar.random.random() < FULL_SHARE:
                full_until = self.requests + FULL_FOR
            full = self.requests < full_until
            drawn = self.grammar.draw()
            try:
                self.step(drawn, full=full)
                if self.requests % KILL_EVERY == 0:
                    full_until = 0
                    if self.restarted() > PARTITIONS_MOST:
                        return
            except (Broken, EOFError, OSError, Corrupt) as failure:
                raise Broken(self.story(drawn, failure)) from failure

    def story(self, drawn: Drawn, failure: Exception) -> str:
        text = repr(drawn.request)
        what = f"{type(failure).__name__}: {failure}"
        where = f"seed {self.seed}, request {self.requests}"
        return f"{where}: {what}\n  after {text[:600]}\n{self.watched.news()[-1500:]}"

    # -- before

    def settle_in(self) -> None:
        """Make what the requests are about, and have everything imported once."""
        self.make_topics()
        self.commit()
        self.warm_up()

    def make_topics(self) -> None:
        """Make the topics that the requests are about, as far as they are not there."""
        cls = entity("create_topics", 7, "CreatableTopic")
        config = entity("create_topics", 7, "CreatableTopicConfig")
        compact = (build(config, name="cleanup.policy", value="compact"),)
        topics = tuple(
            build(cls, name=name, num_partitions=60 if name == "wide" else 2, replication_factor=-1,
                  configs=compact if name == "compacted" else ())
            for name in (*TOPICS, "kept")
        )  # fmt: skip
        self.other.ask(build(request_type(19, 7), topics=topics, timeout=1_000))
        named = entity("metadata", 12, "MetadataRequestTopic")
        asked = tuple(build(named, name=name, topic_id=None) for name in TOPICS)
        found = self.other.ask(build(request_type(3, 12), topics=asked)).topics
        self.grammar.ids = tuple(one.topic_id for one in found)

    def warm_up(self) -> None:
        """Have everything imported and compiled: a first time takes longer, and says nothing."""
        warm = Grammar(0)
        for number in range(3):
            for api in sorted(warm.apis()):
                line = Line(self.watched.port)
                with contextlib.suppress(EOFError, OSError):
                    request = warm.small(api, newest=number > 0, long=number > 1)
                    line.send(request)
                    line.receive(request, DRAWN_S / 10)
                line.close()
        self.watched.held_s()
        self.watched.news()

    def commit(self) -> None:
        part = build(
            entity("offset_commit", 8, "OffsetCommitRequestPartition"), partition_index=0, committed_offset=7
        )
        topic = build(entity("offset_commit", 8, "OffsetCommitRequestTopic"), name="kept", partitions=(part,))
        terms = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": (topic,)}
        self.other.ask(build(request_type(8, 8), group_id="keeper", **terms))

    # -- each request

    def step(self, drawn: Drawn, *, full: bool) -> None:
        """Send a request, and see that everything holds."""
        self.watched.fill(full=full)
        answer = None
        with contextlib.closing(Line(self.watched.port)) as line:
            with contextlib.suppress(EOFError, ConnectionError):  # a refusal; the log says why
                line.send(drawn.request)
                answer = self.answer_to(line, drawn.request)
            self.look_at(drawn, answer)
            self.ask_for_others(full=full)
        held, news = self.watched.held_s(), self.watched.news()
        waited, self.waited_s = self.waited_s, 0.0
        self.worst_held_s, self.worst_other_s = max(self.worst_held_s, held), max(self.worst_other_s, waited)
        if self.watched.process.poll() is not None:
            raise Broken(f"it has ended with {self.watched.process.returncode}")
        if any(mistake in news for mistake in MISTAKES):
            raise Broken(f"a mistake of ours: {news[-3000:]}")
        if held > self.held_most_s or waited > self.answered_most_s:
            self.judge(drawn, held, waited)
        if self.watched.resident() > RESIDENT_MOST:
            raise Broken(f"it has taken {self.watched.resident() >> 20} MB")

    def answer_to(self, line: Line, request: Any) -> Any:
        """Return the answer if it comes in time, while others look whether they are answered."""
        within_s = ANSWER_S if int(type(request).__api_key__) in AWAITED else DRAWN_S
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            self.ask_shortly()
            answer = line.receive(request, LOOK_S)
            if answer is not None:
                return answer
        return None

    def ask_shortly(self) -> None:
        """Ask what takes no time, and see that it takes none."""
        begun, not_run = time.monotonic(), self.watched.not_run_s()
        self.other.ask(build(request_type(18, 3), client_software_name="a", client_software_version="1"))
        waited = time.monotonic() - begun - (self.watched.not_run_s() - not_run)
        self.waited_s = max(self.waited_s, waited)

    def judge(self, drawn: Drawn, held_s: float, waited_s: float) -> None:
        """Raise `Broken` if a request holds the loop, or keeps others waiting, for too long by itself."""
        where, ids = self.watched.where_held(), self.grammar.ids
        surely = held_s > self.held_most_s * SURELY or waited_s > self.answered_most_s * SURELY
        for _ in range(0 if surely else TRIES):
            if held_s <= self.held_most_s and waited_s <= self.answered_most_s:
                return
            held, waited = self.alone(drawn, ids)
            held_s, waited_s = min(held_s, held), min(waited_s, waited)
        if held_s > self.held_most_s:
            raise Broken(f"the loop was held for {held_s * 1000:.0f} ms of its thread's time\n{where}")
        if waited_s > self.answered_most_s:
            raise Broken(f"others have waited for {waited_s * 1000:.0f} ms\n{where}")

    def alone(self, drawn: Drawn, ids: tuple[UUID, ...]) -> tuple[float, float]:
        """Return how long a request alone holds a new broker, and how long others wait there."""
        trial = Trial(self.seed, held_most_s=ANSWER_S, plant=self.plant)
        with tempfile.TemporaryDirectory(prefix="anyrequest-") as root, trial.broker(Path(root)):
            trial.settle_in()
            there = dict(zip(ids, trial.grammar.ids, strict=True))
            trial.step(Drawn(with_ids(drawn.request, there), drawn.batch), full=False)
        return trial.worst_held_s, trial.worst_other_s

    def look_at(self, drawn: Drawn, answer: Any) -> None:
        """Judge the answer itself, where something is known of what it must be."""
        if answer is None:
            return
        if type(drawn.request).__api_key__ == 19 and hasattr(answer, "topics"):
            made = [one for one in answer.topics if int(one.error_code) == 0]
            asked = {one.name: one for one in drawn.request.topics}
            count = sum(max(0, asked[one.name].num_partitions) for one in made)
            if count > PARTITIONS_OF_REQUEST_MOST and not drawn.request.validate_only:
                raise Broken(f"one request has made {count} partitions")
        if drawn.batch is not None and drawn.batch.youngest is not None:
            told = answer.responses[0].partition_responses[0]
            if int(told.error_code) == 0 and told.base_offset >= 0:
                topic, partition, youngest = drawn.batch
                self.look_at_batch(topic, partition, told.base_offset, youngest)

    def look_at_batch(self, topic: str, partition: int, offset: int, youngest: int) -> None:
        """See that a batch does not lie about its records' times in what nobody would undo."""
        part = build(entity("fetch", 4, "FetchPartition"), partition=partition, fetch_offset=offset,
                     partition_max_bytes=1)  # fmt: skip
        asked = build(entity("fetch", 4, "FetchTopic"), topic=topic, partitions=(part,))
        answer = self.other.ask(build(request_type(1, 4), replica_id=-1, topics=(asked,)))
        records = answer.responses[0].partitions[0].records
        if records:
            header = read_header(records)
            if header.base_offset == offset and not header.append_time and header.max_timestamp != youngest:
                raise Broken(f"a batch says {header.max_timestamp}, its youngest record is of {youngest}")

    def ask_for_others(self, *, full: bool) -> None:
        """See that others are answered: metadata, a new producer id, a produce wherever one is possible."""
        self.ask_shortly()
        cls = entity("metadata", 9, "MetadataRequestTopic")
        missing = f"new{self.names}"
        self.names += full  # with a full disk each time one that nobody could make yet
        looked = self.other.ask(
            build(request_type(3, 9), topics=tuple(build(cls, name=n) for n in ("kept", missing)))
        )
        if looked.topics[0].name != "kept" or int(looked.topics[0].error_code):
            raise Broken(f"a topic that is there is not found: {looked.topics[0]}")
        for topic in TOPICS:
            self.produce(topic)
        if full:
            return
        if self.produce("kept") is None:
            raise Broken("nobody can produce")
        producer = self.other.ask(
            build(request_type(22, 4), transactional_id=None, transaction_timeout=1_000)
        )
        if producer.error_code != Code.NONE:
            raise Broken(f"there is no producer id: {producer.error_code}")

    def produce(self, topic: str) -> int | None:
        """Write a record, and return where it landed, None if it was refused."""
        batch = build_batch([Record(0, int(time.time() * 1000), b"k", b"v")])
        data = build(entity("produce", 9, "PartitionProduceData"), index=0, records=batch)
        asked = build(entity("produce", 9, "TopicProduceData"), name=topic, partition_data=(data,))
        answer = self.other.ask(build(request_type(0, 9), acks=-1, timeout=1_000, topic_data=(asked,)))
        told = answer.responses[0].partition_responses[0]
        if told.error_code != Code.NONE:
            return None
        self.kept += topic == "kept"
        return int(told.base_offset)

    # -- after a kill or a stop

    def restarted(self) -> int:
        """End it, start it, and see that everything acknowledged is there; return how many partitions."""
        self.watched.fill(full=False)
        before = look(self.other.ask)
        for name in before.topics:
            if not name.startswith("__c") or name == "__cluster_metadata":
                self.produce(name)
        before = look(self.other.ask)
        self.other.close()
        if self.grammar.random.random() < 0.5:
            self.watched.kill()
        else:
            self.watched.stop()
        self.watched.start()
        self.restarts += 1
        self.other = Line(self.watched.port)
        difference = differences(before, look(self.other.ask))
        if difference:
            raise Broken(f"after a restart {difference}")
        self.make_topics()
        self.warm_up()
        return sum(count for _, count in before.topics.values())


def with_ids(value: Any, ids: Mapping[UUID, UUID]) -> Any:
    """Return an entity with other topics' ids in the place of some."""
    if isinstance(value, UUID):
        return ids.get(value, value)
    if isinstance(value, tuple):
        return tuple(with_ids(one, ids) for one in value)
    if not hasattr(value, "__dataclass_fields__"):
        return value
    cls = value.__class__
    return build(cls, **{one.name: with_ids(getattr(value, one.name), ids) for one in plan_of(cls)})
