"""Who makes, empties and deletes topics while the broker is killed, and what must be there of them then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from interop.kills.actors import QUIET, Actor
from interop.kills.probe import Probe

__all__ = ["Administrator"]

NAMES = ("x", "y", "z")
GROUP = "of-short-lived-topics"
CALL_S = 5.0
WITHIN = {"request_timeout": 4.0}  # after which nothing is asked again
BATCH, KEYS = 30, 7
SMALL = {"internal.segment.bytes": "4096"}
KINDS: tuple[dict[str, str], ...] = (
    SMALL,
    SMALL | {"flush.messages": "1"},
    SMALL | {"retention.bytes": "20000", "file.delete.delay.ms": "0"},
    SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "0"},
)
EARLIEST = -2


@dataclass(slots=True)
class Life:
    """One life of a topic: what was acknowledged of it."""

    configs: dict[str, str]
    records: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """By offset, its key and value."""
    start: int = 0
    """Up to where a deletion of records was acknowledged."""
    asked: int = 0
    """Up to where one was asked for."""
    sent: int = 0
    """How many records were sent; those that were not acknowledged may be there."""


class Administrator(Actor):
    """Works on three names, a step at a time. What was not answered is asked for before it goes on."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__("administrator", bootstrap)
        self._random = Random(seed)
        self._topics: dict[str, Life] = {}
        self._committed: dict[str, int] = {}
        self._doubtful: dict[str, Life | None] = {}
        self._lock = threading.Lock()
        self._probe = Probe(bootstrap)

    def work(self) -> None:
        client: dict[str, Any] = {"bootstrap.servers": self.bootstrap, **QUIET}
        self._admin = AdminClient(client)
        self._producer = Producer({**client, "linger.ms": 0, "retries": 0, "message.timeout.ms": 5_000})
        self._consumer = Consumer({**client, "group.id": GROUP})
        try:
            while not self.stopping:
                try:
                    with self._lock:
                        self._settle()
                        self._step()
                except (KafkaException, CoterieError):
                    time.sleep(0.01)  # nobody is there
                    continue
                self.done += 1
                time.sleep(0.002)
        finally:
            self._producer.flush(CALL_S)
            self._consumer.close()
            self._probe.close()

    # -- steps

    def _step(self) -> None:
        free = [name for name in NAMES if name not in self._topics]
        chance = self._random.random()
        if free and (chance < 0.3 or len(free) == len(NAMES)):
            self._create(self._random.choice(free))
            return
        name = self._random.choice(sorted(self._topics))
        if chance < 0.4:
            self._delete(name)
        elif chance < 0.5:
            self._delete_records(name)
        elif chance < 0.6:
            self._commit(name)
        else:
            self._produce(name)

    def _create(self, name: str) -> None:
        configs = self._random.choice(KINDS)
        self._doubtful[name] = Life(configs)
        _ask(lambda: self._admin.create_topics([NewTopic(name, 1, config=configs)], **WITHIN)[name])
        self._topics[name] = Life(configs)
        del self._doubtful[name]

    def _delete(self, name: str) -> None:
        self._doubtful[name] = None
        _ask(lambda: self._admin.delete_topics([name], **WITHIN)[name])
        self._gone(name)
        del self._doubtful[name]

    def _gone(self, name: str) -> None:
        self._topics.pop(name, None)
        self._committed.pop(name, None)

    def _settle(self) -> None:
        """Find out what became of what was not answered. A topic that comes is as it was asked for."""
        if not self._doubtful:
            return
        there = self._admin.list_topics(timeout=CALL_S).topics
        for name, wanted in list(self._doubtful.items()):
            if wanted is not None and name in there:
                self._topics[name] = wanted
            elif wanted is None and name not in there:
                self._gone(name)
            del self._doubtful[name]

    def _delete_records(self, name: str) -> None:
        life = self._topics[name]
        if "compact" in life.configs.get("cleanup.policy", "") or not life.records:
            return
        offset = self._random.choice(sorted(life.records))
        life.asked = max(life.asked, offset)
        _ask(lambda: next(iter(self._admin.delete_records([Place(name, 0, offset)], **WITHIN).values())))
        life.start = max(life.start, offset)

    def _commit(self, name: str) -> None:
        offset = self._committed.get(name, 0) + 1
        answers = self._consumer.commit(offsets=[Place(name, 0, offset)], asynchronous=False)
        if answers[0].error is None:
            self._committed[name] = offset

    def _produce(self, name: str) -> None:
        life = self._topics[name]

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                life.records[message.offset()] = message.key(), message.value()

        for _ in range(BATCH):
            life.sent += 1
            key = b"%d" % (life.sent % KEYS)
            self._producer.produce(name, b"%d" % life.sent, key, on_delivery=delivered)
        self._producer.flush(2 * CALL_S)

    # -- what must be there

    def check(self, probe: Probe) -> None:
        """Every topic is there or not, as was answered, with its records, and nothing of an earlier one."""
        with self._lock:
            probe.patiently(self._patient_settle)
            there = self._admin.list_topics(timeout=2 * CALL_S).topics
            for name in NAMES:
                life = self._topics.get(name)
                assert (name in there) == (life is not None), (
                    f"{name} is {'' if name in there else 'not '}there"
                )
                if life is not None:
                    self._check_records(probe, TopicPartition(name, 0), life)
            self._check_commits(probe)

    def _patient_settle(self) -> None:
        try:
            self._settle()
        except KafkaException as error:
            raise CoterieError(str(error)) from error

    def _check_records(self, probe: Probe, where: TopicPartition, life: Life) -> None:
        start = probe.patiently(lambda: self._start_of(probe, where))
        assert start >= life.start, f"{where} starts at {start}; {life.start} was acknowledged"
        if "retention.bytes" not in life.configs:
            assert start <= life.asked, f"{where} starts at {start}; nobody asked for more than {life.asked}"
        found = {one.offset: (one.key, one.value) for one in probe.records(where, first=start)}
        wanted = {offset: record for offset, record in life.records.items() if offset >= start}
        if "compact" in life.configs.get("cleanup.policy", ""):
            newest = {key: offset for offset, (key, _) in sorted(wanted.items())}
            later = {key: max(o for o, one in found.items() if one[0] == key) for key, _ in found.values()}
            missing = [key for key, offset in newest.items() if later.get(key, -1) < offset]
            assert not missing, f"{where} has lost the newest of {missing}"
            odd = [offset for offset, one in found.items() if wanted.get(offset, one) != one]
        else:
            odd = [offset for offset, record in wanted.items() if found.get(offset) != record]
        assert not odd, f"{where}: acknowledged, and not there or not so: {odd[:5]}"
        foreign = [one for one in found.values() if int(one[1] or b"0") > life.sent]
        assert not foreign, f"{where} has {foreign[:3]}, of an earlier topic"

    def _start_of(self, probe: Probe, where: TopicPartition) -> int:
        answer = probe.call(
            ApiKey.LIST_OFFSETS,
            lambda version: messages.list_offsets(version, {where: EARLIEST}, isolation=0),
        )
        return int(messages.read_list_offsets(answer)[where].offset)

    def _check_commits(self, probe: Probe) -> None:
        found = probe.committed(GROUP, [TopicPartition(name, 0) for name in self._topics])
        for where, offset in found.items():
            least = self._committed.get(where.topic, -1)
            assert least <= offset <= max(least, 0) + 1, (
                f"{offset} is committed of {where}; {least} was acknowledged"
            )


def _ask(ask: Callable[[], Future[Any]]) -> None:
    """Wait for an answer of the admin client."""
    try:
        ask().result(CALL_S)
    except TimeoutError as error:
        raise CoterieError("no answer") from error
