"""A broker whose appends land, or are refused, when a seed says so, and clients that ask it for all sorts of
things meanwhile.

`PYTHONPATH=.:tests python tests/property/landing_driver.py SEED` tells what happens by one seed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.shards import HostedShard
from coterie.coordinator.txn.model import State
from coterie.wire.api.apis import APIS
from coterie.wire.records.batches import Record, build_batch
from unit.broker.group_api_rig import (
    ApiRig,
    assignment,
    commit_topic,
    fetch_topic,
    join_terms,
    leaver,
    part,
)
from unit.broker.late_rig import LateRig
from unit.broker.rig import Client

__all__ = ["Driver", "violation_of"]

PRODUCE, COMMIT, OFFSET_FETCH, JOIN, BEAT, LEAVE, SYNC, DESCRIBE = 0, 8, 9, 11, 12, 13, 14, 15
INIT, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_COMMIT, DELETE, OFFSET_DELETE = 22, 24, 25, 26, 28, 42, 47
OF_MEMBERS = {JOIN, BEAT, LEAVE, SYNC}
CLIENTS, STEPS = 12, 180
ROUNDS_MOST = 400
"""Between two passings of time, when nobody asks for anything any more: several times what there can be."""
BATCH_BYTES_MOST, TOO_LONG = 3_000, "x" * 4_000
"""A batch of commits with such metadata the log refuses at once."""
LONG_MS = 30_000
LONG_TIMES = 12
"""Until each session and each transaction has run out."""
GROUPS = ("g", "h")
SIMPLE = "simple"  # behind a group's name, of one without members
TRANSACTIONAL_IDS = 5
UNKNOWN_PRODUCER = 5
WRITTEN_MS = 1_700_000_000_000
ENDED = {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}


class Request(NamedTuple):
    """What a client asks."""

    api_key: int
    version: int
    fields: dict[str, Any]

    def __str__(self) -> str:
        values = {
            name: value for name, value in self.fields.items() if name not in ("topic_data", "protocols")
        }
        return f"{APIS[self.api_key].name} {self.version} {values}".replace(TOO_LONG, "(too long)")


@dataclass(slots=True)
class Party:
    """A client, and what it knows of itself: as a member of its group, and as a producer."""

    number: int
    client: Client
    waits_for: Request | None = None
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    assigns: bool = False
    producer_id: int = -1
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def group_id(self) -> str:
        return GROUPS[self.number % len(GROUPS)]

    @property
    def is_member(self) -> bool:
        return bool(self.member_id) and self.generation >= 0

    @property
    def transaction(self) -> dict[str, Any]:
        """The fields that name a transaction and its producer."""
        return {
            "transactional_id": f"tx{self.number % TRANSACTIONAL_IDS}",
            "producer_id": UNKNOWN_PRODUCER if self.producer_id < 0 else self.producer_id,
            "producer_epoch": self.epoch,
        }

    def joined(self, answer: Any) -> None:
        """Take in the answer to a JoinGroup."""
        if answer.member_id:
            self.member_id, self.assigns = answer.member_id, True
        if answer.error_code == Code.NONE:
            self.generation = answer.generation_id
        self.leads = answer.error_code == Code.NONE and answer.leader == answer.member_id

    def produces_as(self, answer: Any) -> None:
        """Take in an answer that may give a producer's id and epoch."""
        if answer.error_code == Code.NONE and getattr(answer, "producer_id", -1) >= 0:
            self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}


class Driver:
    """One seed: what is asked, what lands, what is refused, and what must hold after each step."""

    path = "tests/property/landing_driver.py"
    """Where a seed can be lived again."""

    def __init__(self, seed: int, rig: LateRig | None = None) -> None:
        self.random = Random(seed)
        self.rig = rig or LateRig(message_max_bytes=BATCH_BYTES_MOST)
        self.parties = [self._party(number) for number in range(CLIENTS)]
        self.story: list[str] = []
        self.answered = 0
        self._offset = 0  # what is committed next: more than ever before
        self._seen = dict.fromkeys(GROUPS, -1)  # group -> the newest offset that anybody was answered with

    def _party(self, number: int) -> Party:
        return Party(number, self.rig.client(f"c{number}"))

    # -- what is asked

    def _request(self, party: Party) -> Request:
        makes, weights = ANY
        if self.random.random() < 0.75:
            makes, weights = self._purpose(party)
        return self.random.choices(makes, weights)[0](self, party)

    def _purpose(self, party: Party) -> Weighed:
        """What a client would ask that wants to get on."""
        if party.is_member:
            assigns, party.assigns = party.leads and party.assigns, False
            return weighed(
                {Driver.sync: 1} if assigns else {Driver.commit: 2, Driver.beat: 1, Driver.sync: 1}
            )
        if party.number % 2 == 0:
            return weighed({Driver.join: 1})
        return weighed({Driver.init: 1}) if party.producer_id < 0 else IN_TRANSACTION

    def commit(self, party: Party) -> Request:
        member = {"generation_id_or_member_epoch": party.generation, "member_id": party.member_id}
        return self._commit(party.group_id, 0, **member)

    def commit_simply(self, party: Party) -> Request:
        partition = self.random.randrange(2)
        return self._commit(party.group_id + SIMPLE, partition, generation_id_or_member_epoch=-1)

    def _commit(self, group_id: str, partition: int, **who: Any) -> Request:
        self._offset += 1
        topic = commit_topic(self.rig, 9, "orders", (partition, self._offset, ""))
        return Request(COMMIT, 9, {"group_id": group_id, "topics": (topic,), **who})

    def join(self, party: Party) -> Request:
        instance_id = f"i{party.number}" if party.number % 3 == 0 else None
        member_id = party.member_id if self.random.random() < 0.95 else ""
        named = {"group_id": party.group_id, "group_instance_id": instance_id, "member_id": member_id}
        return Request(JOIN, 5, join_terms(5, **named))

    def sync(self, party: Party) -> Request:
        given = (assignment(version=3, member_id=party.member_id, assignment=b"x"),) if party.leads else ()
        return Request(SYNC, 3, self._member(party) | {"assignments": given})

    def beat(self, party: Party) -> Request:
        return Request(BEAT, 3, self._member(party))

    def _member(self, party: Party) -> dict[str, Any]:
        named = {"group_id": party.group_id, "member_id": party.member_id}
        return named | {"generation_id": party.generation}

    def leave(self, party: Party) -> Request:
        return Request(LEAVE, 3, {"group_id": party.group_id, "members": (leaver(3, party.member_id),)})

    def describe(self, party: Party) -> Request:
        return Request(DESCRIBE, 4, {"groups": (party.group_id,)})

    def delete_group(self, party: Party) -> Request:
        return Request(DELETE, 2, {"groups_names": (party.group_id + SIMPLE,)})

    def delete_offset(self, party: Party) -> Request:
        kind = "OffsetDeleteRequest"
        partition = part(OFFSET_DELETE, 0, f"{kind}Partition", partition_index=0)
        topic = part(OFFSET_DELETE, 0, f"{kind}Topic", name="orders", partitions=(partition,))
        return Request(OFFSET_DELETE, 0, {"group_id": party.group_id + SIMPLE, "topics": (topic,)})

    def fetch_offsets(self, party: Party) -> Request:
        group_id = party.group_id + self.random.choice(("", SIMPLE))
        terms = {"group_id": group_id, "require_stable": self.random.random() < 0.5}
        return Request(OFFSET_FETCH, 7, terms | {"topics": (fetch_topic(self.rig, 7, "orders", 0, 1),)})

    def produce(self, party: Party) -> Request:
        """Write to one partition, or twice to one and once to the other."""
        partitions = self.random.choice(((0,), (0, 1, 0)))
        version = 13 if self.random.random() < 0.3 else 9
        return self._produce(version, {p: self._batch(party, p) for p in partitions}, party)

    def _batch(self, party: Party, partition: int) -> bytes:
        if party.producer_id < 0 or self.random.random() < 0.4:
            return a_batch()
        sequence = party.sequences.get(partition, 0)
        if self.random.random() < 0.8:  # else it comes again
            party.sequences[partition] = sequence + 1
        return a_batch(producer_id=party.producer_id, producer_epoch=party.epoch, base_sequence=sequence)

    def _produce(self, version: int, batches: dict[int, bytes], party: Party, **terms: Any) -> Request:
        kind = "PartitionProduceData"
        data = tuple(part(PRODUCE, version, kind, index=p, records=batch) for p, batch in batches.items())
        named = {"topic_id": self.rig.topic_id("orders")} if version >= 13 else {"name": "orders"}
        topic = part(PRODUCE, version, "TopicProduceData", partition_data=data, **named)
        acks = {"acks": self.random.choice((-1, 1)), "timeout": 1_000}
        return Request(PRODUCE, version, acks | terms | {"topic_data": (topic,)})

    def produce_in_transaction(self, party: Party) -> Request:
        """Write in a transaction: the partition joins it by that from version 12 on."""
        partition = self.random.randrange(2)
        terms = party.transaction
        transactional_id = terms.pop("transactional_id")
        sequence = party.sequences.get(partition, 0)
        party.sequences[partition] = sequence + 1
        batch = a_batch(**terms, base_sequence=sequence, transactional=True)
        version = self.random.choice((9, 12))
        return self._produce(version, {partition: batch}, party, transactional_id=transactional_id)

    def init(self, party: Party) -> Request:
        named = {"transactional_id": party.transaction["transactional_id"]}
        return Request(INIT, 4, named | {"transaction_timeout": timedelta(seconds=60)})

    def add_offsets(self, party: Party) -> Request:
        return Request(ADD_OFFSETS, 3, party.transaction | {"group_id": party.group_id + SIMPLE})

    def add_partitions(self, party: Party) -> Request:
        topic = part(ADD_PARTITIONS, 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0, 1))
        fields = party.transaction | {"topics": (topic,)}
        return Request(ADD_PARTITIONS, 3, {f"v3_and_below_{name}": value for name, value in fields.items()})

    def commit_in_transaction(self, party: Party) -> Request:
        """Commit in a transaction: the group joins it by that from version 5 on."""
        version, kind = self.random.choice((3, 5)), "TxnOffsetCommitRequest"
        self._offset += 1
        committed = {
            "committed_offset": self._offset,
            "committed_leader_epoch": 3,
            "committed_metadata": TOO_LONG if self.random.random() < 0.2 else None,
        }
        partition = part(TXN_COMMIT, version, f"{kind}Partition", partition_index=0, **committed)
        topic = part(TXN_COMMIT, version, f"{kind}Topic", name="orders", partitions=(partition,))
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        named = {"group_id": party.group_id + SIMPLE, "topics": (topic,)}
        return Request(TXN_COMMIT, version, named | member | party.transaction)

    def end(self, party: Party) -> Request:
        version, committed = self.random.choice((3, 5)), self.random.random() < 0.5
        return Request(END, version, party.transaction | {"committed": committed})

    # -- steps

    def step(self) -> None:
        """Do one thing, drawn by the seed, and look at what it has led to."""
        acts, weights = self._acts()
        act = self.random.choices(acts, weights)[0]
        act(self)
        self.take_answers()

    def _acts(self) -> Weighed:
        return ACTS

    def ask(self) -> None:
        """Have somebody ask who waits for nothing, and do what is put off, or not yet."""
        free = [party for party in self.parties if party.waits_for is None]
        if not free:
            self.land()
            return
        party = self.random.choice(free)
        request = party.waits_for = self._request(party)
        at_once = self.random.random() < 0.3
        self.story.append(f"{party.number} asks{' at once' if at_once else ''} {request}")
        send = party.client.send_at_once if at_once else party.client.send
        send(request.api_key, request.version, **request.fields)

    def land(self) -> None:
        if self.rig.rounds:
            self.story.append("a round lands")
            self.rig.land()

    def refuse(self) -> None:
        self.story.append("what is under way is refused")
        self.rig.refuse()

    def pass_time(self) -> None:
        span_ms = self.random.choice((0, 0, 1, 100, 3_000, 20_000))
        self.story.append(f"{span_ms} ms pass")
        self.rig.pass_ms(span_ms)

    def go(self) -> None:
        """Have a client be gone, and another come in its place."""
        party = self.random.choice(self.parties)
        self.story.append(f"{party.number} is gone")
        party.client.connection.connection_lost(None)
        party.client, party.waits_for = self.rig.client(f"c{party.number}"), None

    def elect(self) -> None:
        """Have the broker elected again, for groups or for transactions."""
        node = self.rig.node
        coordinator: Any = self.random.choice((node.coordinator, node.transactions))
        self.story.append(f"elected again: {[str(host) for host in coordinator.hosts.values()]}")
        for partition, host in tuple(coordinator.hosts.items()):
            coordinator.elected(partition, host.epoch + 1)
            coordinator.opened(partition)
        self.rig.settle()
        if self.random.random() < 0.3:  # what was sent before, and what the one elected has sent since
            self.refuse()

    # -- what is answered

    def take_answers(self) -> None:
        """Have each client take in what it is answered, which is what it waits for."""
        for party in self.parties:
            for answer in party.client.answers():
                request, party.waits_for = party.waits_for, None
                assert request is not None, f"{party.number} is answered twice: {answer}"
                self.story.append(f"{party.number} is answered {answer}")
                self.answered += 1
                self._take(party, request, answer)

    def _take(self, party: Party, request: Request, answer: Any) -> None:
        code = getattr(answer, "error_code", Code.NONE)
        own = request.api_key not in OF_MEMBERS or code != Code.UNKNOWN_SERVER_ERROR
        assert own, f"{party.number} is refused for what another has asked: {answer}"
        if code == Code.UNKNOWN_MEMBER_ID:
            party.member_id, party.generation = "", -1
        elif code == Code.PRODUCER_FENCED:
            party.producer_id = -1
        elif request.api_key == JOIN:
            party.joined(answer)
        elif request.api_key in (INIT, END):
            party.produces_as(answer)
        elif request.api_key == PRODUCE:
            self._check_produced(answer)
        elif request.api_key in (COMMIT, OFFSET_FETCH):
            self._note_committed(request, answer)

    def _check_produced(self, answer: Any) -> None:
        for topic in answer.responses:
            for one in topic.partition_responses:
                log = self.rig.node.replica_manager.logs[TopicPartition("orders", one.index)]
                if one.error_code == Code.NONE:
                    assert one.base_offset < log.high_watermark, f"acknowledged and not landed: {one}"

    def _note_committed(self, request: Request, answer: Any) -> None:
        """Note what is acknowledged, or shown: it lasts, and none is followed by a lower one."""
        group_id, is_read = request.fields["group_id"], request.api_key == OFFSET_FETCH
        if group_id not in GROUPS or not answer.topics:
            return
        partition = answer.topics[0].partitions[0]
        if partition.error_code == Code.NONE:
            named = partition if is_read else request.fields["topics"][0].partitions[0]
            self._seen[group_id] = max(self._seen[group_id], named.committed_offset)

    # -- the end

    def finish(self) -> None:
        """Have all that is asked answered and all that is begun ended, and look at what is left."""
        self._land_all()
        for _ in range(LONG_TIMES):
            self.rig.pass_ms(LONG_MS)
            self._land_all()
        waiting = {party.number: str(party.waits_for) for party in self.parties if party.waits_for}
        assert not waiting, f"never answered: {waiting}"
        self._check_left_over()
        self.rig.by_hand = False
        before = holdings(self.rig)
        for group_id, offset in self._seen.items():
            found = before[group_id].get(("orders", 0), -1)
            assert found >= offset, f"{group_id}: {offset} was seen, and {found} is left"
        after = holdings(self._started_again())
        assert before == after, f"a restart has changed {differences(before, after)}"

    def _land_all(self) -> None:
        for _ in range(ROUNDS_MOST):
            self.rig.settle()
            self.take_answers()
            if not self.rig.rounds:
                return
            self.rig.land()
        raise AssertionError(f"something is under way after {ROUNDS_MOST} rounds")

    def _check_left_over(self) -> None:
        node = self.rig.node
        for host in node.coordinator.hosts.values():
            check_idle(host)
            for group_id, group in host.shard.groups.items():
                assert not group.members, f"members of {group_id} are left"
                assert not group.pending, f"members to be of {group_id} are left"
        for partition in range(2):
            log = node.replica_manager.logs[where := TopicPartition("orders", partition)]
            assert log.last_stable_offset == log.high_watermark, f"a transaction is open in {where}"
        for host in node.transactions.hosts.values():
            check_idle(host)
            for name, transaction in host.shard.transactions.items():
                assert transaction.state in ENDED, f"{name} is left in {transaction.state}"

    def _started_again(self) -> ApiRig:
        self.rig.settle()
        again = ApiRig(self.rig.store.crash(), **self.rig.told)  # type: ignore[attr-defined]
        again.pass_ms(5_000)
        again.settle()
        return again


Weighed = tuple[tuple[Callable[..., Any], ...], tuple[float, ...]]


def weighed(weights: dict[Callable[..., Any], float]) -> Weighed:
    return tuple(weights), tuple(weights.values())


ANY = weighed(
    {
        Driver.commit_simply: 3,
        Driver.commit: 6,
        Driver.join: 6,
        Driver.sync: 6,
        Driver.beat: 8,
        Driver.leave: 1,
        Driver.produce: 9,
        Driver.fetch_offsets: 4,
        Driver.init: 1,
        Driver.add_offsets: 2,
        Driver.add_partitions: 2,
        Driver.commit_in_transaction: 5,
        Driver.produce_in_transaction: 4,
        Driver.end: 5,
        Driver.delete_group: 0.4,
        Driver.delete_offset: 1,
        Driver.describe: 2,
    }
)
AS_MEMBER = weighed({Driver.commit: 2, Driver.beat: 1, Driver.sync: 1})
IN_TRANSACTION = weighed(
    dict.fromkeys(
        (
            Driver.add_offsets,
            Driver.add_partitions,
            Driver.commit_in_transaction,
            Driver.produce_in_transaction,
            Driver.end,
            Driver.produce,
        ),
        1,
    )
)
ACTS = weighed(
    {
        Driver.ask: 62,
        Driver.land: 23,
        Driver.refuse: 3,
        Driver.pass_time: 5,
        Driver.go: 1,
        Driver.elect: 3,
    }
)


def a_batch(**terms: Any) -> bytes:
    return build_batch([Record(0, WRITTEN_MS, None, b"v")], **terms)


def check_idle(host: HostedShard[Any, Any]) -> None:
    """Look at what a shard holds when nothing is asked of it and nothing is under way."""
    assert not host.is_appending, f"{host}: something is in flight, or gathered"
    assert not host.calls, f"{host}: calls are left: {host.calls}"
    assert not host._due, f"{host}: somebody is due to go"
    assert not host.pending.commands, f"{host}: commands are left: {host.pending.commands}"
    assert not host.pending.held, f"{host}: somebody is put off"
    assert not host.shard.journal._entries, f"{host}: the journal is not settled"


def holdings(rig: ApiRig) -> dict[Any, Any]:
    """What a node holds that a restart must not change: offsets, transactions, the ends of logs."""
    found: dict[Any, Any] = {}
    client = rig.client("look")
    for group_id in (*GROUPS, *(name + SIMPLE for name in GROUPS)):
        topics = client.ask(OFFSET_FETCH, 7, group_id=group_id, topics=None).topics
        offsets = ((topic.name, one) for topic in topics for one in topic.partitions)
        found[group_id] = {(name, one.partition_index): one.committed_offset for name, one in offsets}
    for host in rig.node.transactions.hosts.values():
        for name, transaction in host.shard.transactions.items():
            found[name] = (transaction.producer_id, transaction.epoch, transaction.state)
    for partition in range(2):
        log = rig.store.logs[where := TopicPartition("orders", partition)]
        found[where] = (log.end_offset, log.high_watermark, log.last_stable_offset)
    return found


def differences(before: dict[Any, Any], after: dict[Any, Any]) -> dict[Any, Any]:
    either = before.keys() | after.keys()
    return {k: (before.get(k), after.get(k)) for k in either if before.get(k) != after.get(k)}


class Mistakes(logging.Handler):
    """Keeps what the broker logs of exceptions that nobody expected."""

    def __init__(self) -> None:
        super().__init__()
        self.formatter = logging.Formatter()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


@contextmanager
def mistakes_listed() -> Iterator[list[str]]:
    """Yield a list of the mistakes that are logged meanwhile."""
    logger, handler = logging.getLogger("coterie"), Mistakes()
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)


def violation_of(
    seed: int, tell: Callable[[str], None] = lambda line: None, *, drives: Callable[[int], Driver] = Driver
) -> str:
    """What was broken by a seed and how to see it again, "" if nothing was; `tell` gets the story."""
    driver = drives(seed)
    again = f"seed {seed}, PYTHONPATH=.:tests python {driver.path} {seed}"
    with mistakes_listed() as mistakes:
        try:
            for _ in range(STEPS):
                driver.step()
                assert not mistakes, mistakes[0]
            driver.finish()
            assert not mistakes, mistakes[0]
        except AssertionError as error:
            return f"{again}: {error}"
        except Exception as error:
            error.add_note(again)
            raise
        finally:
            for line in driver.story:
                tell(line)
    return ""


if __name__ == "__main__":
    sys.exit(violation_of(int(sys.argv[1]), print))
