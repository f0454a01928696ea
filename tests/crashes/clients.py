"""What groups and transactional producers do to a broker, by real requests, and what they must find again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.shards import HostedShard
from coterie.client.net import messages
from coterie.storage.log.partition import PartitionLog
from coterie.storage.log.producers import marker_of
from coterie.wire.api.codec import encode_request
from coterie.wire.records.batches import build_batch, read_header
from crashes.checks import batches_of, demand
from crashes.model import Batch
from crashes.owed_clients import Key, Producer, Seat, Txn
from unit.broker.rig import Client

if TYPE_CHECKING:
    from crashes.life import Life

__all__ = ["CLIENT_STEPS", "Clients", "markers_of"]

PRODUCE, COMMIT, FETCH_OFFSETS, JOIN, BEAT, LEAVE, SYNC, DELETE_GROUPS = 0, 8, 9, 11, 12, 13, 14, 42
INIT, END, COMMIT_IN_TRANSACTION = 22, 26, 28
GROUPS = ("g", "h")
IDS = ("t", "u")
SESSION_MS = 1_800_000
TRANSACTION_MS = 900_000
AGAIN = 3
"""How often a producer asks for its id, which ends what the one before has left open."""


class Clients:
    """Everybody who speaks to one life of a broker."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.random = life.random
        self.owed = life.owed.clients
        self._client: Client | None = None

    # -- requests

    @property
    def node(self) -> Any:
        """The broker, for `Client`."""
        return self.life.node

    def settle(self) -> None:
        """Have the broker do what it has put off."""
        self.life.run_due()

    def ask(self, api_key: int, version: int, request: Any) -> Any:
        """Return the answer to a request, None if there is none yet: whoever asked goes away then."""
        client = self._client
        if client is None:
            client = self._client = Client(self, "crashes")  # type: ignore[arg-type]
        client.asked.append((api_key, version))
        client.connection.data_received(encode_request(len(client.asked), client.client_id, request))
        self.settle()
        answers = client.answers()
        if not answers:
            client.connection.connection_lost(None)
            self._client = None
            return None
        return answers[0]

    # -- groups

    def commit(self) -> str:
        """Commit offsets of nobody's group, or of a member's."""
        group = self.random.choice(GROUPS)
        seat = self.owed.seats.get(group, Seat())
        place, _, _ = self.life.somewhere()
        key, value = Key(group, place), self.random.randrange(1_000)
        number = self.owed.of(key).maybe[value] = self.owed.next()
        answer = self.ask(
            COMMIT,
            9,
            messages.offset_commit(
                9,
                group,
                {place: value},
                generation=seat.generation,
                member_id=seat.member_id,
                instance_id=None,
            ),
        )
        code = None if answer is None else messages.read_offset_commit(answer)
        if code is Code.NONE:
            self.owed.settle()
            self.owed.of(key).acknowledge(value, number)
            self._flushed()
        return f"commit {value} of {place} for {group}: {code}"

    def _flushed(self) -> None:
        if self.life.owed.flushes:
            self.owed.certain()

    def join(self) -> str:
        """Begin a new generation of a group of one."""
        group = self.random.choice(GROUPS)
        seat = self.owed.seats.setdefault(group, Seat())
        seat.moving = True
        joined = self._join(group, seat.member_id)
        if joined is not None and joined.error_code == Code.MEMBER_ID_REQUIRED:
            joined = self._join(group, joined.member_id)
        if joined is None or joined.error_code:
            if joined is not None and joined.error_code == Code.UNKNOWN_MEMBER_ID:
                self._expect_expired(group, seat)
            return f"join {group}: {joined and Code(joined.error_code).name}"
        synced = self.ask(
            SYNC,
            3,
            messages.sync_group(
                3,
                group_id=group,
                generation=joined.generation_id,
                member_id=joined.member_id,
                instance_id=None,
                protocol="range",
                assignments={joined.member_id: b"all"},
            ),
        )
        code = None if synced is None else Code(synced.error_code)
        if code is Code.NONE:
            demand(
                joined.generation_id > seat.generation, f"{group}: generation {joined.generation_id} again"
            )
            self.owed.settle()
            self.owed.seats[group] = Seat(joined.member_id, joined.generation_id, self.life.owed.now_ms)
            self._flushed()
        return f"join {group} in generation {joined.generation_id}: {code}"

    def _join(self, group: str, member_id: str) -> Any:
        return self.ask(
            JOIN,
            5,
            messages.join_group(
                5,
                group_id=group,
                member_id=member_id,
                instance_id=None,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                protocols=(("range", b"m"),),
                reason="",
            ),
        )

    def _expect_expired(self, group: str, seat: Seat) -> None:
        overdue = self.life.owed.now_ms - seat.synced_ms >= SESSION_MS
        demand(overdue or seat.generation < 0, f"{group}: its member {seat.member_id} is forgotten")
        del self.owed.seats[group]

    def leave(self) -> str:
        """Have a member leave, and perhaps its group deleted."""
        group = self.random.choice(GROUPS)
        seat = self.owed.seats.get(group)
        if seat is not None and seat.member_id:
            seat.moving = True
            request = messages.leave_group(3, group_id=group, member_id=seat.member_id, reason="")
            answer = self.ask(LEAVE, 3, request)
            if answer is None or answer.error_code or answer.members[0].error_code:
                return f"leave {group}: refused"
            self.owed.settle()
            del self.owed.seats[group]
            self._flushed()
        return self.delete_group(group) if self.random.random() < 0.5 else f"leave {group}"

    def delete_group(self, group: str) -> str:
        """Delete a group, with what it has committed."""
        keys = [key for key in self.owed.commits if key.group == group]
        for key in keys:
            self.owed.of(key).maybe[None] = self.owed.next()
        answer = self.ask(DELETE_GROUPS, 2, messages.request(DELETE_GROUPS, 2, groups_names=(group,)))
        code = None if answer is None else Code(answer.results[0].error_code)
        if code is Code.NONE:
            self.owed.settle()
            self.owed.seats.pop(group, None)
            for key in keys:
                self.owed.of(key).acknowledge(None, self.owed.next())
            for txn in self._running():
                txn.offsets = {key: value for key, value in txn.offsets.items() if key.group != group}
            self._flushed()
        return f"delete group {group}: {code}"

    def topic_gone(self, name: str, *, sure: bool) -> None:
        """A topic is deleted: what was committed for it never comes back, once that was acknowledged."""
        for txn in self._running():
            gone = {key: value for key, (value, _) in txn.offsets.items() if key.where.topic == name}
            txn.offsets = {key: one for key, one in txn.offsets.items() if key not in gone}
            if txn.asked == "abort":
                continue
            for key, value in gone.items():  # the transaction may still commit them: if their tombstones
                commits = self.owed.of(key)  # could not be written, or a loss of power takes those
                if sure:
                    commits.told.append(value)
                else:
                    commits.left_over.add(value)
        for key, commits in self.owed.commits.items():
            if key.where.topic == name:
                if not sure:
                    commits.left_over |= commits.allowed(power_lost=False)
                commits.acknowledge(None, self.owed.next())

    def topic_wanted(self, name: str) -> None:
        """Somebody asks for a topic: even if it is not made, what was committed for the last may go."""
        for key, commits in self.owed.commits.items():
            if key.where.topic == name:
                commits.left_over.add(None)

    def topic_made(self, name: str) -> None:
        """A topic is made: for that one nobody has committed anything, whatever a loss of power takes."""
        for key, commits in self.owed.commits.items():
            if key.where.topic == name:
                commits.begin_anew(self.owed.next())

    # -- transactions

    def _running(self) -> Iterator[Txn]:
        yield from self.owed.ended
        for producer in self.owed.producers.values():
            if producer.txn is not None:
                yield producer.txn

    def begin(self) -> str:
        """Have a producer take its transactional id over; what the one before has left open is aborted."""
        name = self.random.choice(IDS)
        producer = self.owed.producers.setdefault(name, Producer())
        txn = producer.txn
        if txn is not None:
            txn.broken = txn.taken_over = True
            txn.asked = txn.asked or "abort"
        request = messages.request(
            INIT,
            4,
            transactional_id=name,
            transaction_timeout=timedelta(milliseconds=TRANSACTION_MS),
            producer_id=-1,
            producer_epoch=-1,
        )
        code: Code | None = None
        for _ in range(AGAIN):
            answer = self.ask(INIT, 4, request)
            code = None if answer is None else Code(answer.error_code)
            if code is not Code.CONCURRENT_TRANSACTIONS:
                break
        if code is Code.NONE:
            if txn is not None:
                self._over(txn, answered=txn.asked == "abort")
            self.owed.producers[name] = Producer(answer.producer_id, answer.producer_epoch)
        self.life.read_markers()
        return f"begin {name}: {code}"

    def _over(self, txn: Txn, *, answered: bool) -> None:
        txn.answered = answered
        self.owed.ended.append(txn)
        if txn.asked == "commit":
            self._may_be_in_part(txn)
            for key, (value, number) in txn.offsets.items():
                commits = self.owed.of(key)
                if answered:
                    commits.acknowledge(value, number)
                else:
                    commits.maybe[value] = number

    def _may_be_in_part(self, txn: Txn) -> None:
        """A loss of power may leave what a transaction itself has replaced, and not what has replaced it."""
        for key, value in txn.replaced:
            self.owed.of(key).told.insert(0, value)

    def _writing(self) -> tuple[str, Producer, Txn] | None:
        """Return somebody who can write, in a transaction of his."""
        ready = [
            name
            for name, one in sorted(self.owed.producers.items())
            if one.producer_id >= 0 and not (one.txn is not None and (one.txn.broken or one.txn.asked))
        ]
        if not ready:
            return None
        name = self.random.choice(ready)
        producer = self.owed.producers[name]
        if producer.txn is None:
            producer.txn = Txn(producer.producer_id, producer.epoch, self.life.owed.now_ms)
        return name, producer, producer.txn

    def produce(self) -> str:
        """Write a batch in a transaction; the partition joins it by that."""
        writing = self._writing()
        if writing is None:
            return self.begin()
        name, producer, txn = writing
        where, topic, owed = self.life.somewhere()
        sequence = producer.sequences.get(where, 0)
        batch = Batch(0, self.life.records(topic, 1), producer.producer_id, producer.epoch, sequence)
        data = build_batch(
            list(batch.records),
            producer_id=batch.producer,
            producer_epoch=batch.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        owed.maybe.append(batch)
        request = messages.request(
            PRODUCE,
            12,
            transactional_id=name,
            acks=-1,
            timeout=timedelta(seconds=1),
            topic_data=(
                {
                    "name": where.topic,
                    "partition_data": ({"index": where.partition, "records": data},),
                },
            ),
        )
        answer = self.ask(PRODUCE, 12, request)
        told = None if answer is None else answer.responses[0].partition_responses[0]
        code = None if told is None else Code(told.error_code)
        if code is Code.NONE:
            if batch.repeats(owed.batches, told.base_offset):  # of what a kill has left unanswered
                owed.maybe.remove(batch)
            else:
                self.life.owe(where, topic, owed, batch, told.base_offset)
            txn.places.setdefault(where, (topic.topic_id, told.base_offset))
            producer.sequences[where] = sequence + 1
        else:
            txn.broken = True
        return f"produce to {where} in a transaction of {name}: {code}"

    def commit_in_transaction(self) -> str:
        """Commit an offset in a transaction."""
        writing = self._writing()
        if writing is None:
            return self.begin()
        name, producer, txn = writing
        group = self.random.choice(GROUPS)
        place, _, _ = self.life.somewhere()
        key, value = Key(group, place), self.random.randrange(1_000)
        self.owed.of(key)
        request = messages.request(
            COMMIT_IN_TRANSACTION,
            5,
            transactional_id=name,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=(
                {
                    "name": place.topic,
                    "partitions": (
                        {
                            "partition_index": place.partition,
                            "committed_offset": value,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        },
                    ),
                },
            ),
        )
        txn.broken = True  # unless it is answered that all is well: a kill may leave it without an answer
        answer = self.ask(COMMIT_IN_TRANSACTION, 5, request)
        code = None if answer is None else Code(answer.topics[0].partitions[0].error_code)
        if code is Code.NONE:
            self.owed.settle()
            if key in txn.offsets:
                txn.replaced.append((key, txn.offsets[key][0]))
            txn.offsets[key] = value, self.owed.next()
            self.owed.of(key).undecided = True
            txn.broken = False
        return f"commit {value} of {place} for {group} in a transaction of {name}: {code}"

    def end(self) -> str:
        """End a transaction, or ask once more for the end that was not answered."""
        open_ones = [name for name, one in sorted(self.owed.producers.items()) if one.txn is not None]
        if not open_ones:
            return self.produce()
        name = self.random.choice(open_ones)
        producer = self.owed.producers[name]
        txn = producer.txn
        assert txn is not None
        if txn.asked == "abort" and not txn.answered and txn.broken and self.random.random() < 0.5:
            return self.begin()
        commit = txn.asked == "commit" or (not txn.asked and not txn.broken and self.random.random() < 0.7)
        txn.asked = "commit" if commit else "abort"
        request = messages.request(
            END,
            5,
            transactional_id=name,
            producer_id=txn.producer_id,
            producer_epoch=txn.epoch,
            committed=commit,
        )
        answer = self.ask(END, 5, request)
        code = None if answer is None else Code(answer.error_code)
        if code is Code.NONE:
            self._over(txn, answered=True)
            self.owed.producers[name] = Producer(answer.producer_id, answer.producer_epoch)
            self._flushed()
        else:
            txn.broken = True
        self.life.read_markers()
        return f"{txn.asked} of {name}, {txn.producer_id} in epoch {txn.epoch}: {code}"

    def grow_old(self) -> None:
        """Take note of transactions that the broker may abort for their age."""
        for txn in self._running():
            txn.overdue |= self.life.owed.now_ms - txn.began_ms >= TRANSACTION_MS

    # -- what must be there

    def settle_after(self, *, power_lost: bool) -> None:
        """See what a crash has left, and owe that; raise `Lost` if it is too little."""
        lost = power_lost and not self.life.owed.flushes
        self._check_loaded()
        if lost:
            self._let_go()
        else:
            self._settle_transactions()
        found = self.committed()
        for key, commits in self.owed.commits.items():
            allowed = commits.allowed(power_lost=lost)
            value = found.get(key)
            demand(value in allowed, f"{key}: {value} is committed, and one of {allowed} is owed")
            commits.become(value, certain=power_lost, flushes=self.life.owed.flushes)
        demand(found.keys() <= self.owed.commits.keys(), f"nobody has committed {found}")
        self._settle_seats(lost=lost)

    def _let_go(self) -> None:
        """A loss of power may have left anything of what is not flushed: the clients begin again."""
        for txn in self._running():
            self._may_be_in_part(txn)
            for key, (value, number) in txn.offsets.items():
                self.owed.of(key).maybe[value] = number
        self.owed.producers.clear()
        self.owed.ended.clear()

    def _check_loaded(self) -> None:
        for kind in (self.node.coordinator, self.node.transactions):
            for host in kind.hosts.values():
                demand(host.status == HostedShard.ACTIVE, f"{host} is {host.status} after the start")

    def _settle_transactions(self) -> None:
        """No transaction is decided in one place and not, or otherwise, in another."""
        for txn in self.owed.ended:
            how = self._outcome(txn)
            wanted = {txn.asked} if txn.answered else {"commit", "abort"}
            demand(how in wanted | {""}, f"{txn} has come to {how or 'nothing'}, and {wanted} was answered")
        self.owed.ended.clear()
        for producer in self.owed.producers.values():
            txn = producer.txn
            if txn is None:
                continue
            how = self._outcome(txn)
            allowed = (
                {"open", ""} | ({txn.asked} - {""}) | ({"abort"} if txn.overdue or txn.taken_over else set())
            )
            demand(how in allowed, f"{txn} has come to {how}, and only {allowed} was asked for")
            if how != "open":
                self._resolve(producer, txn, how)

    def _resolve(self, producer: Producer, txn: Txn, how: str) -> None:
        """A client whose question was not answered learns what has come of it."""
        txn.broken = True
        if how != "abort":
            self._may_be_in_part(txn)
        if how == "commit":
            for key, (value, number) in txn.offsets.items():
                self.owed.of(key).acknowledge(value, number)
        elif not how:  # it had reached nothing that tells
            for key, (value, number) in txn.offsets.items():
                self.owed.of(key).maybe[value] = number

    def _outcome(self, txn: Txn) -> str:
        """Return how a transaction has ended in all its places; "" if none of them can tell."""
        told = set()
        for where, (topic_id, first) in txn.places.items():
            topic = self.life.owed.topics.get(where.topic)
            if topic is None or topic.topic_id != topic_id:
                continue  # deleted meanwhile
            batches = topic.partitions[where.partition].batches
            after = [
                one for one in batches if one.producer == txn.producer_id and one.base > first and one.ends
            ]
            there = any(one.producer == txn.producer_id and one.base == first for one in batches)
            if after:
                told.add(after[0].ends)
            elif there:
                told.add("open")
        if txn.offsets:
            log = self.node.replica_manager.log_of(OFFSETS_TOPIC, 0)
            epochs = {one.producer_id: one.epoch for one in log.active_producers() if one.open_since >= 0}
            if epochs.get(txn.producer_id) == txn.epoch:
                told.add("open")
            told |= {how for epoch, how in markers_of(log, txn.producer_id) if epoch == txn.epoch + 1}
        demand(len(told) <= 1, f"{txn} has come to {told}: it is half decided")
        return next(iter(told), "")

    def committed(self) -> dict[Key, int]:
        """Return what is committed, as groups are told it."""
        found = {}
        for group in GROUPS:
            request = messages.request(
                FETCH_OFFSETS,
                8,
                groups=({"group_id": group, "topics": None},),
                require_stable=False,
            )
            answer = self.ask(FETCH_OFFSETS, 8, request)
            _, offsets = messages.read_offset_fetch(answer)
            found |= {Key(group, where): value for where, value in offsets.items() if value is not None}
        return found

    def _settle_seats(self, *, lost: bool) -> None:
        for group, seat in list(self.owed.seats.items()):
            overdue = self.life.owed.now_ms - seat.synced_ms >= SESSION_MS
            if lost or overdue or seat.moving or seat.generation < 0:
                del self.owed.seats[group]
                continue
            request = messages.heartbeat(
                3, group_id=group, generation=seat.generation, member_id=seat.member_id, instance_id=None
            )
            code = Code(self.ask(BEAT, 3, request).error_code)
            demand(code is Code.NONE, f"{group}: a heartbeat of generation {seat.generation}: {code.name}")

    def check(self) -> None:
        """Raise `Lost` unless what is committed is what was acknowledged last."""
        self.life.run_due()
        hosts = self.node.transactions.hosts.values()
        if any(host.is_ending(name) for host in hosts for name in IDS):
            return  # the disk was ill: markers are still to be written
        found = self.committed()
        for key, commits in self.owed.commits.items():
            allowed = commits.allowed(power_lost=False)
            demand(found.get(key) in allowed, f"{key}: {found.get(key)} is committed, not {allowed}")


def markers_of(log: PartitionLog, producer_id: int) -> Iterator[tuple[int, str]]:
    """Yield the epoch and the meaning of each marker of a producer that is there."""
    for _, data in batches_of(log):
        header = read_header(data)
        if header.control and header.producer_id == producer_id and (marker := marker_of(data)):
            yield header.producer_epoch, "commit" if marker.commit else "abort"


CLIENT_STEPS: tuple[tuple[Callable[[Clients], str], int], ...] = (
    (Clients.commit, 8),
    (Clients.join, 3),
    (Clients.leave, 1),
    (Clients.begin, 2),
    (Clients.produce, 7),
    (Clients.commit_in_transaction, 5),
    (Clients.end, 7),
)
