"""Three brokers of one cluster whose clients change the same few topics at once, by seed.

Each broker hears of the metadata when chance lets it; proposals wait, and reach the engine in any order; some
are lost, some lose their answers, some happen after they were given up. What clients are answered is held
against all that the metadata has been.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from coterie.base.topic_names import metric_name
from coterie.broker.cluster.changes import Change, Changed
from coterie.broker.cluster.image import Image, TopicRow
from unit.broker.admin_rig import part
from unit.broker.cluster_rig import Answered, Asked, ClusterRig

METADATA, CREATE, DELETE, GROW, INCREMENTAL = 3, 19, 20, 37, 44
TOPIC, APPEND = 2, 2
LIST = "leader.replication.throttled.replicas"  # a setting that takes any number of items
NAMES = ("a", "b", "c.d", "c_d")
OPERATIONS, AT_ONCE, STEPS_MOST, PARTITIONS_MOST = 40, 8, 5_000, 9
TIMED_OUT = "request_timed_out"


class Violation(AssertionError):
    """What must hold does not."""


class Proposal(NamedTuple):
    """A change on its way."""

    rig: ClusterRig
    change: Change
    answered: Answered


class OneOfThree(ClusterRig):
    """A broker whose proposals wait until chance lets them happen."""

    def __init__(self, life: Life, node_id: int) -> None:
        self.life = life
        super().__init__(node_id=node_id, engine=life.engine, num_partitions=2)

    def propose(self, change: Change, answered: Answered) -> None:
        self.life.proposals += 1
        if self.life.proposals > STEPS_MOST:
            raise Violation("somebody proposes without end")
        self.life.pending.append(Proposal(self, change, answered))


@dataclass(slots=True, eq=False)
class Operation:
    """A request about topics, and the versions of the metadata that it may have been judged by."""

    kind: str
    rig: ClusterRig
    about: dict[str, Any]  # by topic: partitions, or an item
    asked: Asked
    seen: int
    """The version that the broker went by when the request came."""
    begun: int
    """The version that there was."""
    ended: int = -1

    def overlaps(self, other: Operation) -> bool:
        """Return whether another request was under way at the same time."""
        return self.begun <= other.ended and other.begun <= self.ended


class Life:
    """The brokers, the engine, and what is on its way between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.proposals = self.losses = 0
        first = ClusterRig()
        self.engine = first.engine
        self.images: dict[int, Image] = {self.engine.image.version: self.engine.image}
        self.pending: list[Proposal] = []
        self.late: list[Change] = []
        self.answers: list[tuple[ClusterRig, Any, Answered]] = []
        self.operations: list[Operation] = []
        self.rigs = [OneOfThree(self, node_id) for node_id in (1, 2, 3)]
        self._items = iter(range(1_000))

    def run(self) -> None:
        """Live, until every request is answered. Raises `Violation`."""
        for _ in range(STEPS_MOST):
            open_now = [one for one in self.operations if one.ended < 0]
            acts: list[Callable[[], None]] = []
            if len(self.operations) < OPERATIONS and len(open_now) < AT_ONCE:
                acts += [self.begin] * 3
            acts += [self.execute] * (3 * bool(self.pending)) + [self.deliver] * (3 * bool(self.answers))
            acts += [self.execute_late] * bool(self.late)
            if not acts and not open_now:
                break
            self.random.choice([*acts, self.hear])()
            for one in open_now:
                if one.asked.answer is not None:
                    one.ended = self.engine.image.version
        else:
            raise Violation("requests do not end")
        for one in self.operations:
            judge(self, one)
        self.judge_items()

    # -- what happens

    def make(self, change: Change) -> Any:
        """Have the engine make a change."""
        answer = self.engine.execute(change)
        self.images[self.engine.image.version] = self.engine.image
        return answer

    def execute(self) -> None:
        """Let a proposal reach the engine, or not."""
        rig, change, answered = self.pending.pop(self.random.randrange(len(self.pending)))
        draw = self.random.random()
        if draw < 0.8:
            self.answers.append((rig, self.make(change), answered))
            return
        self.losses += 1
        if draw < 0.87:
            self.make(change)
        elif draw < 0.94:
            self.late.append(change)
        self.answers.append((rig, None, answered))

    def execute_late(self) -> None:
        """Have a change happen that somebody has given up."""
        self.make(self.late.pop(self.random.randrange(len(self.late))))

    def deliver(self) -> None:
        """Bring an answer; the broker's image shows by then what was made, and not what was refused."""
        rig, answer, answered = self.answers.pop(self.random.randrange(len(self.answers)))
        if isinstance(answer, Changed) and rig.topics.image.version < answer.version:
            rig.hear()
        answered(answer)

    def hear(self) -> None:
        """Have a broker go by the newest metadata."""
        self.random.choice(self.rigs).hear()

    # -- requests

    def begin(self) -> None:
        """Begin a request that is drawn."""
        draw = self.random.choice(
            (self.creation, self.creation, self.deletion, self.growth, self.append, self.append, self.ask)
        )
        rig = self.random.choice(self.rigs)
        names = self.random.sample(NAMES, self.random.choice((1, 1, 2, 3)))
        kind, about, begin = draw(rig, names)
        seen, begun = rig.topics.image.version, self.engine.image.version
        self.operations.append(Operation(kind, rig, about, begin(), seen, begun))

    def creation(self, rig: ClusterRig, names: list[str]) -> Any:
        about = {name: self.random.randint(1, 4) for name in names}
        topics = tuple(
            part(CREATE, 7, "CreatableTopic", name=name, num_partitions=count, replication_factor=2)
            for name, count in about.items()
        )
        return "create", about, lambda: rig.begin(CREATE, 7, topics=topics)

    def deletion(self, rig: ClusterRig, names: list[str]) -> Any:
        topics = tuple(part(DELETE, 6, "DeleteTopicState", name=name, topic_id=None) for name in names)
        return "delete", dict.fromkeys(names), lambda: rig.begin(DELETE, 6, topics=topics)

    def growth(self, rig: ClusterRig, names: list[str]) -> Any:
        about = {name: self.random.randint(2, PARTITIONS_MOST) for name in names}
        topics = tuple(
            part(GROW, 3, "CreatePartitionsTopic", name=name, count=count, assignments=None)
            for name, count in about.items()
        )
        return "grow", about, lambda: rig.begin(GROW, 3, topics=topics)

    def append(self, rig: ClusterRig, names: list[str]) -> Any:
        about = {name: f"{next(self._items)}:1" for name in names}
        resources = tuple(
            part(
                INCREMENTAL,
                1,
                "AlterConfigsResource",
                resource_type=TOPIC,
                resource_name=name,
                configs=(
                    part(INCREMENTAL, 1, "AlterableConfig", name=LIST, config_operation=APPEND, value=item),
                ),
            )
            for name, item in about.items()
        )
        return "append", about, lambda: rig.begin(INCREMENTAL, 1, resources=resources)

    def ask(self, rig: ClusterRig, names: list[str]) -> Any:
        topics = tuple(part(METADATA, 12, "MetadataRequestTopic", name=name) for name in names)
        return "ask", dict.fromkeys(names), lambda: rig.begin(METADATA, 12, topics=topics)

    # -- what must hold

    def between(self, first: int, last: int) -> list[Image]:
        """Return what the metadata was, from one version to another."""
        return [image for version, image in sorted(self.images.items()) if first <= version <= last]

    def judge_items(self) -> None:
        """What one has appended to a setting no other's change takes away."""
        had: dict[Any, set[str]] = {}
        for _, image in sorted(self.images.items()):
            for row in image.topics():
                lost = had.get(row.topic_id, set()) - items_of(row)
                if lost:
                    raise Violation(f"{sorted(lost)} of {row.name} are gone at version {image.version}")
                had[row.topic_id] = items_of(row)


def an_item(item: str) -> Any:
    return part(INCREMENTAL, 1, "AlterableConfig", name=LIST, config_operation=APPEND, value=item)


def items_of(row: TopicRow) -> set[str]:
    return set(filter(None, row.configs.get(LIST, "").split(",")))


def answers_of(operation: Operation) -> dict[str, Any]:
    answer = operation.asked.answer
    match operation.kind:
        case "create" | "ask":
            return {one.name: one for one in answer.topics}
        case "append":
            return {one.resource_name: one for one in answer.responses}
    return {one.name: one for one in (answer.responses if operation.kind == "delete" else answer.results)}


def judge(life: Life, operation: Operation) -> None:
    """Raise `Violation` for an answer that no state of the metadata accounts for."""
    answers = answers_of(operation)
    if answers.keys() != operation.about.keys():
        raise Violation(f"{operation.kind} of {[*operation.about]} is answered about {[*answers]}")
    seen = life.between(operation.seen, operation.ended)
    made = life.between(operation.begun, operation.ended)
    for name, wanted in operation.about.items():
        code = answers[name].error_code.name
        if not may_be(life, operation, name, wanted, answers[name], seen, made):
            raise Violation(
                f"{operation.kind} {name} {wanted}: {code} {getattr(answers[name], 'error_message', '')}, "
                f"at versions {operation.seen}, {operation.begun} to {operation.ended}"
            )


def may_be(
    life: Life,
    operation: Operation,
    name: str,
    wanted: Any,
    answer: Any,
    seen: list[Image],
    made: list[Image],
) -> bool:
    """Return whether the metadata, as the broker may have seen it, accounts for an answer."""
    code = answer.error_code.name
    rows = [image.topic(name) for image in seen]
    there, absent = [row for row in rows if row is not None], None in rows
    if code == TIMED_OUT:
        return life.losses > 0 and operation.kind != "ask"
    if code == "unknown_topic_or_partition":
        return operation.kind != "create" and (absent or operation.kind == "ask")
    match operation.kind, code:
        case "create", "none":
            new = [row for image in made[1:] if (row := image.topic_by_id(answer.topic_id)) is not None]
            fresh = made[0].topic_by_id(answer.topic_id) is None
            return fresh and bool(new) and (new[0].name, new[0].partitions) == (name, wanted)
        case "create", "topic_already_exists":
            return bool(there) or claimed_by_another(life, operation, name)
        case "create" | "ask", "invalid_topic_exception":
            alike = {metric_name(one) for one in operation.about if one != name}
            collides = any(image.name_like(name) not in (None, name) for image in seen)
            return collides or metric_name(name) in alike
        case "ask", "none":
            return bool(there)
        case "delete", "none":
            ids = {row.topic_id for row in there}
            return any(image.topic_by_id(one) is None for one in ids for image in made)
        case "grow", "none" | "invalid_partitions":
            return any(row.partitions >= wanted for row in there)
        case "append", "none":
            return any(wanted in items_of(row) for row in there)
    return False


def claimed_by_another(life: Life, operation: Operation, name: str) -> bool:
    """Return whether the same broker had a proposal of the name under way."""
    return any(
        one is not operation and one.rig is operation.rig and name in one.about
        for one in life.operations
        if one.overlaps(operation)
    )
