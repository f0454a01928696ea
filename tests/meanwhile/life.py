"""One life by seed: requests whose pieces are done in an order that is drawn, and what holds after it.

No socket, no clock, no thread: handlers are asked, and every stop of their work is a place where another's
goes on. Pieces are made as small as they can be (`finely`), so that a few partitions make as many places as
thousands.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.api import FAMILIES
from coterie.broker.net.context import WAITS, Context, Hangup, Origin
from coterie.broker.runtime.pieces import Aside, Until
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import (
    RequestHeader,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.records.batches import Record, build_batch, records_of, scan
from unit.broker.group_api_rig import ApiRig

__all__ = ["Outcome", "run"]

PRODUCE, COMMIT, CREATE, DELETE, DELETE_RECORDS = 0, 8, 19, 20, 21
GROW, DELETE_GROUPS, CONFIGURE, OFFSET_DELETE = 37, 42, 44, 47
TOPICS, GROUPS, PARTITIONS_MOST = ("a", "b", "c"), ("g", "h"), 4
OPERATIONS, AT_ONCE = 40, 6
CROWDED_EACH = 5  # one life of so many is of administrators who all want the same names, many at a time
MANY = tuple("abcdefghijkl")
PACES = (
    1,
    1,
    10,
    100,
)  # how much more often one has its turn than another: most of one between two of others
STEPS_MOST = 20_000
NO_ONE = {"generation_id_or_member_epoch": -1, "member_id": ""}
# One thing at a time, instead of as many as take no time.
FINE = {
    "ITEMS_AT_ONCE": 1,
    "FEW": 0,  # what would be done at once is done in pieces as well
    "OFFSETS_AT_ONCE": 1,
    "TOPICS_AT_ONCE": 1,
    "APPENDS_AT_ONCE": 1,
    "COMMITS_LOOKED_AT_ONCE": 1,
}


class Outcome(NamedTuple):
    """What came of a seed."""

    seed: int
    violation: str
    stops: int
    told: tuple[str, ...]


class Violation(AssertionError):
    """What must hold does not."""


@dataclass(slots=True)
class Operation:
    """A request under way or answered: what it is about, and between which steps."""

    kind: str
    begun: int
    about: tuple[Any, ...]  # topic, its id if it was named by it, and what else
    ended: int = sys.maxsize
    codes: dict[Any, Code] = field(default_factory=dict)

    def told(self) -> str:
        codes = ", ".join(f"{key}: {Code(code).name}" for key, code in self.codes.items())
        return f"{self.begun}-{self.ended} {self.kind} {self.about} -> {codes}"


@contextmanager
def finely() -> Iterator[None]:
    """Have every piece of work as small as can be."""
    for family in {*FAMILIES.values(), "txn_offsets"}:
        importlib.import_module(f"coterie.broker.api.{family}")
    before: list[tuple[Any, str, int]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith("coterie.broker."):
            before += [(module, one, getattr(module, one)) for one in FINE if hasattr(module, one)]
    for module, one, _ in before:
        setattr(module, one, FINE[one])
    try:
        yield
    finally:
        for module, one, value in before:
            setattr(module, one, value)


class Life:
    """A broker, the requests under way, and what was answered."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = ApiRig()
        self.node = self.rig.node
        self.at = self.stops = self.values = 0
        self.operations: list[Operation] = []
        self.crowded = seed % CROWDED_EACH == CROWDED_EACH - 1
        self.taken: tuple[str, ...] = ()  # who was refused a name is about to try again
        self.names, self.at_once = (MANY, 10) if self.crowded else (TOPICS, AT_ONCE)
        self.gone: list[str] = []  # topics that have just been deleted
        self.tasks: list[Task] = []
        self.ids: list[tuple[str, UUID]] = []  # all that there were
        for name in ("orders", "other"):
            self.rig.node.topics.delete([name])
            for partition in range(2):
                if TopicPartition(name, partition) in self.rig.store.logs:
                    self.rig.store.delete_log(name, partition, now_ms=self.rig.now_ms)
            self.rig.node.topics.gone(name)

    def run(self) -> None:
        """Live. Raises `Violation`."""
        begun = 0
        while begun < OPERATIONS or self.tasks or self.rig.soon:
            self.at += 1
            if self.at > STEPS_MOST:
                raise Violation(f"{len(self.tasks)} requests do not end")
            if begun < OPERATIONS and len(self.tasks) < self.at_once and self.random.random() < 0.3:
                begun += 1
                self.begin()
            elif self.rig.soon and (not self.tasks or self.random.random() < 0.2):
                self.rig.soon.pop(0)()
            elif self.tasks:
                (task,) = self.random.choices(self.tasks, [task.pace for task in self.tasks])
                self.step(task)

    # -- requests

    def begin(self) -> None:
        """Begin a request that is drawn; whoever deletes a topic likes to make it anew."""
        if self.crowded:
            self.begin_among_many()
            return
        if self.gone and self.random.random() < 0.7:
            self.creation(self.gone.pop())
            return
        draw = self.random.choice(
            (self.creation, self.creation, self.deletion, self.growth, self.configuration, self.produce,
             self.records_deletion, self.commit, self.commit, self.offsets_deletion, self.groups_deletion)
        )  # fmt: skip
        draw()

    def begin_among_many(self) -> None:
        """Begin what claims names for long, gives them up late, or asks for them between."""
        if self.taken and self.random.random() < 0.5:
            again, self.taken = self.taken, ()
            self.creation(*again)
        else:
            draws = self.creation, self.creation, self.deletion, self.deletion, self.deletion, self.commit
            self.random.choice(draws)()

    def ask(
        self,
        operation: Operation,
        api: int,
        version: int,
        read: Callable[[Any], dict[Any, Any]],
        **terms: Any,
    ) -> None:
        header = RequestHeader(api, version, 1, "life", 0)
        handler = self.node.handlers[header[:2]]
        assert handler is not None
        self.operations.append(operation)

        def answered(_: Context, response: Any) -> None:
            if type(response) is GeneratorType:
                pace = self.random.choice(PACES)
                self.tasks.append(Task(response, lambda whole: answered(context, whole), pace))
            elif response is not WAITS:
                operation.ended = self.at
                operation.codes = {key: Code(int(code)) for key, code in read(response).items()}

        context = Context(header, Origin(("127.0.0.1", 9092), "/127.0.0.1"), answered)
        answered(context, handler(context, build(request_type(api, version), **terms)))

    def step(self, task: Task) -> None:
        """Do one piece of work, unless it waits for an answer."""
        self.stops += 1
        if task.waits:
            return
        try:
            wanted = task.pieces.send(task.result)
        except StopIteration as done:
            self.tasks.remove(task)
            task.done(done.value)
        except Hangup as refused:
            raise Violation(f"hung up: {refused}") from refused
        else:
            task.result = wanted.work(*wanted.arguments) if isinstance(wanted, Aside) else None
            if isinstance(wanted, Until):
                task.waits = True
                wanted.ask(task.take)

    def topic(self) -> str:
        return self.random.choice(self.names)

    def life_of(self, name: str) -> UUID | None:
        """Return an id that the topic has or had, if it is to be named by one."""
        ids = [topic_id for one, topic_id in self.ids if one == name]
        return self.random.choice(ids[-2:]) if ids and self.random.random() < 0.5 else None

    def creation(self, *names: str) -> None:
        several = (3, 6, 9) if self.crowded else (1, 1, 2)
        names = names or tuple(self.random.sample(self.names, self.random.choice(several)))
        count = 1 if self.crowded else self.random.randint(1, PARTITIONS_MOST)
        cls = entity("create_topics", 7, "CreatableTopic")
        topics = tuple(build(cls, name=n, num_partitions=count, replication_factor=1) for n in names)

        def read(response: Any) -> dict[Any, Any]:
            self.ids += [(one.name, one.topic_id) for one in response.topics if not int(one.error_code)]
            codes = {one.name: one.error_code for one in response.topics}
            self.taken = tuple(name for name, code in codes.items() if code) or self.taken
            return codes

        self.ask(Operation("create", self.at, (*names, count)), CREATE, 7, read, topics=topics, timeout=1_000)

    def deletion(self) -> None:
        name = self.topic()
        topic_id = self.life_of(name)
        cls = entity("delete_topics", 6, "DeleteTopicState")
        several = (4, 6, 8) if self.crowded else (0, 0, 1)
        others = self.random.sample([one for one in self.names if one != name], self.random.choice(several))
        topics = (
            build(cls, name=None if topic_id else name, topic_id=topic_id),
            *(build(cls, name=one, topic_id=None) for one in others),
        )
        operation = Operation("delete", self.at, (name, topic_id, *others))

        def read(response: Any) -> dict[Any, Any]:
            codes = {one.name: one.error_code for one in response.responses if one.name in others}
            codes[name] = next(one.error_code for one in response.responses if one.name not in others)
            self.gone += [one for one, code in codes.items() if not int(code)]
            return codes

        self.ask(operation, DELETE, 6, read, topics=topics, timeout=1_000)

    def growth(self) -> None:
        name, count = self.topic(), self.random.randint(2, PARTITIONS_MOST + 3)
        cls = entity("create_partitions", 3, "CreatePartitionsTopic")
        topics = (build(cls, name=name, count=count, assignments=None),)
        operation = Operation("grow", self.at, (name, None, count))
        self.ask(
            operation, GROW, 3, lambda told: {name: told.results[0].error_code}, topics=topics, timeout=1_000
        )

    def configuration(self) -> None:
        name, value = self.topic(), str(1_000_000 + self.at)
        config = build(
            entity("incremental_alter_configs", 1, "AlterableConfig"),
            name="retention.ms", config_operation=0, value=value,
        )  # fmt: skip
        resource = build(
            entity("incremental_alter_configs", 1, "AlterConfigsResource"),
            resource_type=2, resource_name=name, configs=(config,),
        )  # fmt: skip
        operation = Operation("configure", self.at, (name, None, value))
        self.ask(
            operation, CONFIGURE, 1, lambda told: {name: told.responses[0].error_code}, resources=(resource,)
        )

    def records_deletion(self) -> None:
        name = self.topic()
        cls = entity("delete_records", 2, "DeleteRecordsPartition")
        partitions = tuple(build(cls, partition_index=index, offset=-1) for index in range(3))
        topics = (build(entity("delete_records", 2, "DeleteRecordsTopic"), name=name, partitions=partitions),)
        operation = Operation("delete records", self.at, (name, None))

        def read(response: Any) -> dict[Any, Any]:
            return {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}

        self.ask(operation, DELETE_RECORDS, 2, read, topics=topics, timeout=1_000)

    def produce(self) -> None:
        name = self.topic()
        topic_id = self.life_of(name)
        version = 13 if topic_id else 12
        self.values += 1
        value = self.values
        batch = build_batch([Record(0, self.rig.now_ms, b"k", str(value).encode())])
        cls = entity("produce", version, "PartitionProduceData")
        data = tuple(build(cls, index=index, records=batch) for index in range(PARTITIONS_MOST))
        named = {"topic_id": topic_id} if topic_id else {"name": name}
        asked = build(entity("produce", version, "TopicProduceData"), partition_data=data, **named)

        def read(response: Any) -> dict[Any, Any]:
            return {one.index: one.error_code for one in response.responses[0].partition_responses}

        operation = Operation("produce", self.at, (name, topic_id, value))
        self.ask(operation, PRODUCE, version, read, topic_data=(asked,), acks=-1, timeout=1_000)

    def commit(self) -> None:
        group, name = self.random.choice(GROUPS), self.topic()
        topic_id = self.life_of(name)
        version = 10 if topic_id else 9
        self.values += 1
        cls = entity("offset_commit", version, "OffsetCommitRequestPartition")
        partitions = tuple(build(cls, partition_index=i, committed_offset=self.values) for i in range(3))
        named = {"topic_id": topic_id} if topic_id else {"name": name}
        topic = build(
            entity("offset_commit", version, "OffsetCommitRequestTopic"), partitions=partitions, **named
        )
        operation = Operation("commit", self.at, (name, topic_id, self.values, group))

        def read(response: Any) -> dict[Any, Any]:
            return {one.partition_index: one.error_code for t in response.topics for one in t.partitions}

        self.ask(operation, COMMIT, version, read, group_id=group, topics=(topic,), **NO_ONE)

    def offsets_deletion(self) -> None:
        group, name = self.random.choice(GROUPS), self.topic()
        cls = entity("offset_delete", 0, "OffsetDeleteRequestPartition")
        partitions = tuple(build(cls, partition_index=index) for index in range(3))
        topic = build(
            entity("offset_delete", 0, "OffsetDeleteRequestTopic"), name=name, partitions=partitions
        )
        operation = Operation("delete offsets", self.at, (name, None, None, group))
        self.ask(
            operation, OFFSET_DELETE, 0, lambda told: {"": told.error_code}, group_id=group, topics=(topic,)
        )

    def groups_deletion(self) -> None:
        operation = Operation("delete groups", self.at, ("", None, None, *GROUPS))

        def read(response: Any) -> dict[Any, Any]:
            return {one.group_id: one.error_code for one in response.results}

        self.ask(operation, DELETE_GROUPS, 2, read, groups_names=GROUPS)


@dataclass(slots=True, eq=False)
class Task:
    """Work of which there are pieces left."""

    pieces: Any
    done: Callable[[Any], None]
    pace: int
    result: Any = None
    waits: bool = False

    def take(self, answer: Any) -> None:
        """Go on with the answer that was waited for."""
        self.result, self.waits = answer, False


# -- what must hold at the end


def judge(life: Life) -> None:
    """Raise `Violation` for what two requests have left that no order of them would."""
    unanswered = [one for one in life.operations if one.ended == sys.maxsize]
    if unanswered:
        raise Violation(f"never answered: {unanswered[0].told()}")
    for name in life.names:
        judge_lives(life, name)
    judge_logs(life)
    judge_commits(life)
    judge_records(life)


def about(life: Life, name: str, *kinds: str) -> list[Operation]:
    found = [one for one in life.operations if one.kind in kinds]
    several = ("create", "delete")
    return [one for one in found if (name in one.about if one.kind in several else one.about[0] == name)]


def later(life: Life, than: Operation, name: str, *kinds: str) -> bool:
    """Return whether anything of these kinds may have come after an operation."""
    return any(one is not than and one.ended >= than.begun for one in about(life, name, *kinds))


def judge_lives(life: Life, name: str) -> None:
    """A name is taken and given free in turn; what was promised of its present life is so."""
    there = life.node.topics.get(name)
    made = sum(one.codes.get(name) == Code.NONE for one in about(life, name, "create"))
    gone = sum(one.codes.get(name) == Code.NONE for one in about(life, name, "delete"))
    if made - gone != (there is not None):
        raise Violation(f"{name} was made {made} times and deleted {gone} times, and is {there}")
    for one in about(life, name, "delete"):
        by_id = there is not None and one.about[:2] == (name, there.topic_id)
        if by_id and one.codes[name] == Code.NONE:
            raise Violation(f"{name} is there, though it was deleted by its id")
    if there is None:
        if not life.node.topics.is_free(name):
            raise Violation(f"the name {name} is not free")
        return
    for one in about(life, name, "grow"):
        done = one.codes[name] == Code.NONE and not later(life, one, name, "create", "delete")
        if done and there.partitions < one.about[2]:
            raise Violation(f"{name} has {there.partitions} partitions after {one.told()}")
    for one in about(life, name, "configure"):
        done = one.codes[name] == Code.NONE and not later(life, one, name, "create", "delete", "configure")
        if done and there.configs.get("retention.ms") != one.about[2]:
            raise Violation(f"{name} has {there.configs} after {one.told()}")


def judge_logs(life: Life) -> None:
    """Each partition has its log, of its topic's id and settings; and nothing else has one."""
    topics, store = life.node.topics, life.rig.store
    wanted = {TopicPartition(t.name, p): t for t in topics.all() for p in range(t.partitions)}
    if wanted.keys() != store.logs.keys():
        raise Violation(f"logs that are not as the topics are: {sorted(wanted.keys() ^ store.logs.keys())}")
    for name, topic in wanted.items():
        if store.topic_id(*name) != topic.topic_id:
            raise Violation(f"the log of {name} is of another life of its topic")
        config, _ = life.node.settings.stored_log_config(topic.configs)
        if store.logs[name].config != config:
            raise Violation(f"the log of {name} goes by other settings than its topic")


def first_possible(life: Life, name: str) -> int:
    """Return the first step in which the present life of a topic may have been there."""
    made = [one for one in about(life, name, "create") if one.codes.get(name) == Code.NONE]
    ended = max(one.ended for one in made)
    return min(one.begun for one in made if one.ended >= ended)


def judge_origin(life: Life, name: str, written: Operation, what: str) -> None:
    """What is in a topic was sent to this life of it."""
    topic = life.node.topics.get(name)
    if topic is None:
        raise Violation(f"{what} of a topic that is gone: {written.told()}")
    by_id = written.about[1] not in (None, topic.topic_id)
    if by_id or written.ended < first_possible(life, name):
        raise Violation(f"{what} of an earlier topic of the name: {written.told()}")


def judge_commits(life: Life) -> None:
    """No commits of topics that are gone; what was acknowledged last is there."""
    found: dict[tuple[str, str, int], int] = {}
    if "coordinator" in vars(life.node):
        for host in life.node.coordinator.hosts.values():
            if host.unavailable():
                raise Violation(f"{host} is out of service")
            for group in host.shard.offsets:
                for topic, partitions in host.shard.offsets[group].items():
                    for partition, offset in partitions.items():
                        found[group, topic, partition] = offset.offset
    commits = {one.about[2]: one for one in life.operations if one.kind == "commit"}
    for (_, name, _), value in found.items():
        judge_origin(life, name, commits[value], "a commit")
    for one in commits.values():
        name, _, value, group = one.about
        undone = later(life, one, name, "create", "delete") or any(
            other.kind in ("commit", "delete offsets", "delete groups")
            and other is not one
            and group in other.about
            and (other.about[0] in (name, ""))
            and other.ended >= one.begun
            for other in life.operations
        )
        for partition, code in one.codes.items():
            if code == Code.NONE and not undone and found.get((group, name, partition)) != value:
                raise Violation(f"lost: partition {partition} of {one.told()}")


def judge_records(life: Life) -> None:
    """No records of an earlier life; what was acknowledged is there."""
    sent = {one.about[2]: one for one in life.operations if one.kind == "produce"}
    found = set()
    for name, log in life.rig.store.logs.items():
        if name.topic not in life.names:
            continue
        data = log.read(log.start_offset, max_bytes=1 << 20) if log.end_offset > log.start_offset else b""
        for at, _ in scan(data):
            for record in records_of(data, at):
                value = int(record.value or b"0")
                judge_origin(life, name.topic, sent[value], "a record")
                if (value, name.partition) in found:
                    raise Violation(f"twice in {name}: {sent[value].told()}")
                found.add((value, name.partition))
    for one in sent.values():
        kept = not later(life, one, one.about[0], "create", "delete", "delete records")
        for partition, code in one.codes.items():
            if code == Code.NONE and kept and (one.about[2], partition) not in found:
                raise Violation(f"lost: partition {partition} of {one.told()}")


def run(seed: int) -> Outcome:
    """Live one life and judge it."""
    with finely():
        life = Life(seed)
        violation = ""
        try:
            life.run()
            judge(life)
        except Violation as broken:
            violation = f"seed {seed}: {broken}"
        except Exception as mistake:  # noqa: BLE001  any mistake of a handler's is a finding
            violation = f"seed {seed}: {type(mistake).__name__}: {mistake}"
    told = tuple(one.told() for one in life.operations)
    return Outcome(seed, violation, life.stops, told)


assert all(api in APIS for api in (PRODUCE, COMMIT, CREATE, DELETE))
