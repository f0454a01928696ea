"""Requests by seed: of every API and version that is served, well-formed, and as extreme as can be.

How odd a request is, is drawn first: in some every value is what no client would say, in others one or two,
and some are odd by their size alone. So what lies behind a check is reached as often as the check.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from anyrequest.values import GROUPS, KAFKAS_OWN, ODD_NAMES, TOPICS, edges_of, numbers_of, setting_value
from coterie.base.settings.topic import TOPIC
from coterie.broker.api import served_apis
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.api.layout import FieldPlan, plan_of
from coterie.wire.records.batches import Record, build_batch, head_for
from coterie.wire.records.compression import compress

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
from entities import BITS

__all__ = ["TOPICS", "Drawn", "Grammar", "Produced"]

ODDNESS = (0.0, 0.0, 0.03, 0.1, 0.5, 1.0)  # the share of values that are odd; drawn once for each request
ITEMS_MOST = 20_000  # of all lists of a request
SHORT, LONG = (1, 1, 1, 2, 3), (40, 700, 5_000, 20_000)
LONG_SHARE = 0.4  # of the requests that have long lists at all
EDGES_AT_ONCE = 8
SMALLEST = bytes((14, 0, 0, 0, 2, 97, 1, 0))  # a record of eight bytes
HOUR_MS = 3_600_000
SERVED = tuple(sorted(served_apis(alone=True, replicas_are_moved=False)))
# Produce, Fetch, Metadata, CreateTopics, AlterConfigs, IncrementalAlterConfigs: what leaves most behind.
OFTEN = (0, 0, 0, 1, 1, 3, 3, 19, 33, 44)
NAMES = ("name", "topic", "topic_name", "topic_names", "resource_name")
OWN_NAMES = ("name", "topic", "transactional_id", "group_id", "resource_name")
SELDOM_FILLED = ("assignments", "forgotten_topics_data")  # what excludes most of the rest


class Produced(NamedTuple):
    """A batch that was asked to be written, and the greatest time of its records if it cannot be a repeat."""

    topic: str
    partition: int
    youngest: int | None


class Drawn(NamedTuple):
    """A request, and the one batch in it whose records' times are known."""

    request: Any
    batch: Produced | None


class Grammar:
    """Draws requests. One object draws the same ones for the same seed and the same topics."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.number = 0
        self.left = 0
        self.oddness = 0.0
        self.long = False
        self.edges: list[tuple[str, int]] = []  # of settings, that have not had their turn
        self.ids: tuple[UUID, ...] = ()  # of topics that are there

    def draw(self) -> Drawn:
        """Return the next request."""
        api = APIS[self.random.choice(OFTEN if self.random.random() < 0.5 else SERVED)]
        version = self.random.randint(api.served_from, api.most)
        self.left = ITEMS_MOST
        self.oddness = self.random.choice(ODDNESS)
        self.long = self.random.random() < LONG_SHARE
        if api.title == "Produce" and self.random.random() < 0.6:
            return self.one_batch(version)
        if api.title == "Fetch" and self.random.random() < 0.4:
            return Drawn(self.patient_fetch(version), None)
        if api.title == "IncrementalAlterConfigs" and self.random.random() < 0.7:
            return Drawn(self.edges_of_settings(version), None)
        return Drawn(self.entity(request_type(api.key, version), api.title), None)

    @staticmethod
    def apis() -> tuple[int, ...]:
        """Return the APIs that are served."""
        return SERVED

    def small(self, api_key: int, *, newest: bool, long: bool) -> Any:
        """Return a request that has everything it needs imported and compiled: its codecs, its handler."""
        api = APIS[api_key]
        self.long, self.oddness, self.left = long, 0.3, 2_000 if long else 10
        return self.entity(request_type(api_key, api.most if newest else api.served_from), api.title)

    def odd(self) -> bool:
        """Return whether the next value is one that no client would send."""
        return self.random.random() < self.oddness

    # -- entities

    def entity(self, cls: type, where: str) -> Any:
        plan = plan_of(cls)
        values = {field.name: self.value(field, f"{where}.{field.name}") for field in plan}
        named = next((name for name in ("name", "topic") if name in values), None)
        if named and values.get("topic_id") is not None and not self.odd():  # one or the other
            nullable = any(field.name == named and field.nullable for field in plan)
            values[named if nullable and self.random.random() < 0.5 else "topic_id"] = None
        return build(cls, **values)

    def value(self, field: FieldPlan, where: str) -> Any:
        nullable = field.nullable and (field.tag is None or field.default is None)
        if nullable and self.random.random() < (0.2 if self.oddness > 0.2 else 0.05):
            return None
        if field.tag is not None and not self.odd():
            return field.default
        if not field.is_array:
            return self.item(field, where)
        if field.name in SELDOM_FILLED and not self.odd():
            return ()
        return self.listed(field, where)

    def listed(self, field: FieldPlan, where: str) -> tuple[Any, ...]:
        random = self.random
        length = random.choice(LONG) if self.long and random.random() < 0.5 else random.choice(SHORT)
        length = min(self.left, 0 if self.odd() and random.random() < 0.3 else length)
        self.left -= length
        if field.name == "configs" and not self.odd():
            return self.settings(field, where, length)
        if length <= 3:
            return tuple(self.item(field, where) for _ in range(length))
        kept = self.left
        if random.random() < 0.5:  # the same again and again
            self.left = min(self.left, 3)
            few = [self.item(field, where) for _ in range(random.choice((1, 1, 2, 5)))]
            self.left = kept
            return tuple(few[place % len(few)] for place in range(length))
        self.left = 0
        items = tuple(self.numbered(self.item(field, where), BITS.get(field.kind, 32)) for _ in range(length))
        self.left = kept
        return items

    def settings(self, field: FieldPlan, where: str, length: int) -> tuple[Any, ...]:
        """Return settings of a topic, each once."""
        assert field.entity is not None
        chosen = self.random.sample(sorted(TOPIC), min(length, self.random.choice((1, 2, 5, 30))))
        items = []
        for name in chosen:
            item = self.entity(field.entity, where)
            values = {one.name: getattr(item, one.name) for one in plan_of(field.entity)}
            values |= {"name": name, "value": setting_value(name, self.random, odd=self.odd())}
            items.append(build(field.entity, **values))
        return tuple(items)

    def numbered(self, item: Any, bits: int) -> Any:
        """Return an item with a name, or a number, of its own."""
        self.number += 1
        if isinstance(item, str):
            return f"x{self.number}"
        if isinstance(item, bool) or item is None or isinstance(item, bytes | UUID):
            return item
        if isinstance(item, int):
            return self.number % 2 ** min(15, bits - 1)
        cls = item.__class__
        values = {field.name: getattr(item, field.name) for field in plan_of(cls)}
        for name in OWN_NAMES:
            if isinstance(values.get(name), str):
                values[name] = f"x{self.number}"
        for name in ("partition_index", "partition", "index"):
            if isinstance(values.get(name), int):
                values[name] = self.number % ITEMS_MOST
        return build(cls, **values)

    def item(self, field: FieldPlan, where: str) -> Any:
        if field.entity is not None:
            return self.entity(field.entity, where)
        kind = field.kind
        if kind == "string":
            return self.text(where)
        if kind == "records":
            return self.batch()[0]
        if kind == "bytes":
            return self.random.randbytes(self.random.choice((0, 1, 20, 20_000)))
        if kind == "uuid":
            if self.ids and not self.odd():
                return self.random.choice(self.ids)
            return UUID(int=self.random.getrandbits(128) | 1)
        if kind in ("bool", "error_code"):
            return self.random.randrange(2)
        if kind == "float64":
            return self.random.random()
        return self.whole(kind, where)

    def text(self, where: str) -> str:
        last = where.rpartition(".")[2]
        if "configs" in where and last == "value":
            return setting_value("", self.random, odd=True)
        if ("configs" in where and last == "name") or last == "configuration_keys":
            return self.random.choice(sorted(TOPIC))
        if last in ("group_id", "groups", "groups_names", "coordinator_keys", "key"):
            return self.random.choice(GROUPS)
        if last in ("transactional_id", "transactional_ids", "v3_and_below_transactional_id"):
            return self.random.choice(("tx", "", "tx" * 100))
        if last in NAMES:
            return self.name(where)
        if last == "member_id" and not self.odd():
            return ""
        return self.random.choice(("", "a", "consumer", "range", "x" * 300))

    def name(self, where: str) -> str:
        """Return the name of a topic that is there, of none, or of one that is Kafka's own."""
        self.number += 1
        if self.odd() or self.random.random() < 0.05:
            return self.random.choice(ODD_NAMES)
        if self.random.random() < 0.1:
            return self.random.choice(KAFKAS_OWN)
        if where.startswith("CreateTopics") or self.random.random() < 0.15:
            return f"x{self.number}"
        if where.startswith("DeleteTopics") and self.random.random() < 0.8:
            return f"x{self.number - self.random.randrange(40)}"
        return self.random.choice(TOPICS)

    def whole(self, kind: str, where: str) -> int:
        bits = BITS.get(kind, 32)
        last = where.rpartition(".")[2]
        pool = numbers_of(last, bits, odd=self.odd())
        if last == "timestamp":
            pool = (*pool, now_ms())
        number = self.random.choice(pool)
        if kind.startswith("uint"):
            return abs(number) % 2**bits
        return max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, number))

    # -- batches

    def one_batch(self, version: int) -> Drawn:
        """Return a request that writes one batch to one partition that is there."""
        records, youngest = self.batch()
        place, partition = self.random.randrange(len(TOPICS)), self.random.choice((0, 0, 1))
        topic = TOPICS[place]
        if version >= 13 and not self.ids:
            version = 12
        data = build(entity("produce", version, "PartitionProduceData"), index=partition, records=records)
        by = {"topic_id": self.ids[place]} if version >= 13 else {"name": topic}
        asked = build(entity("produce", version, "TopicProduceData"), **by, partition_data=(data,))
        request = build(
            request_type(0, version), acks=self.random.choice((1, -1)), timeout=1_000, topic_data=(asked,)
        )
        return Drawn(request, Produced(topic, partition, youngest))

    def edges_of_settings(self, version: int) -> Any:
        """Return a change of some settings of one topic to their edges; each edge has its turn soon."""
        chosen: dict[str, int] = {}
        for _ in range(EDGES_AT_ONCE):
            if not self.edges:
                self.edges = [(name, edge) for name, known in TOPIC.items() for edge in edges_of(known)]
                self.random.shuffle(self.edges)
            name, edge = self.edges.pop()
            chosen[name] = edge
        cls = entity("incremental_alter_configs", version, "AlterableConfig")
        configs = tuple(build(cls, name=n, config_operation=0, value=str(edge)) for n, edge in chosen.items())
        resource = build(
            entity("incremental_alter_configs", version, "AlterConfigsResource"),
            resource_type=2, resource_name=self.random.choice(TOPICS), configs=configs,
        )  # fmt: skip
        return build(request_type(44, version), resources=(resource,))

    def patient_fetch(self, version: int) -> Any:
        """Return a fetch that waits for more than there will be, of one partition named again and again."""
        version = min(version, 12)
        cls = entity("fetch", version, "FetchPartition")
        times = self.random.choice(LONG)
        part = build(cls, partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        asked = build(
            entity("fetch", version, "FetchTopic"),
            topic=self.random.choice(TOPICS),
            partitions=(part,) * times,
        )
        terms = {"replica_id": -1, "max_wait": 30_000, "min_bytes": 2**31 - 1, "max_bytes": 2**31 - 1}
        return build(request_type(1, version), topics=(asked,), **terms)

    def batch(self) -> tuple[bytes, int | None]:
        """Return a batch, honest or lying or a bomb, and the greatest time of its records."""
        random, now = self.random, now_ms()
        count = random.choice((1, 2, 5, 200))
        codec = random.choice(("none", "none", "gzip", "zstd", "lz4", "snappy"))
        bomb = random.random() < 0.3
        if bomb:
            count, codec = random.choice((50_000, 300_000, 3_000_000)), "zstd"
            body = compress(codec, SMALLEST * count)
            youngest = now
        else:
            key = random.choice((None, b"k", b"k"))
            records = [Record(n, now + n, key, random.choice((None, b"v", b"v" * 900))) for n in range(count)]
            body = build_batch(records, codec=codec)[61:]
            youngest = now + count - 1
        producer = random.choice((-1, -1, -1, 5, 2**63 - 1))
        lie = random.choice((youngest, youngest, youngest, 2**63 - 1, now + 2 * HOUR_MS, 0, -1))
        head = head_for(
            body, count=count, base_timestamp=now, max_timestamp=lie, codec=codec, producer_id=producer,
            producer_epoch=-1 if producer < 0 else 0, base_sequence=-1 if producer < 0 else 0,
        )  # fmt: skip
        return head + body, youngest if producer < 0 else None


def now_ms() -> int:
    return int(time.time() * 1000)
