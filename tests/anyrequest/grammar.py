"""Requests by seed: of every API and version that is served, well-formed, and as extreme as can be."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from coterie.broker.known_settings import TOPIC
from coterie.broker.node import FAMILIES
from coterie.wire.apis import APIS
from coterie.wire.batches import Record, build_batch, head_for
from coterie.wire.codec import build, request_type
from coterie.wire.compression import compress
from coterie.wire.plan import FieldPlan, plan_of

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
from entities import BITS

__all__ = ["TOPICS", "Drawn", "Grammar", "Produced"]

TOPICS = ("t0", "t1", "compacted", "wide")
ODD_NAMES = (
    "",
    ".",
    "..",
    "a/b",
    "x" * 250,
    "漢字",
    "__cluster_metadata",
    "__consumer_offsets",
    "__transaction_state",
)
GROUPS = ("g0", "g1", "", "g" * 300)
NUMBERS = (0, 1, -1, 2, 7, 1_000)
PARTITION_COUNTS = (1, 2, 3, -1, 0, -5_000, 12_000, 2**31 - 1, -(2**31))
TIMES = (-1, -2, -3, -4, -5, 0, 2**63 - 1, -(2**63))
VALUES = (
    "", "0", "1", "-1", "-2", "compact", "delete", "compact,delete", "gzip", "LogAppendTime", "true", "0.5",
    "1000", "-9223372036854775808", "9223372036854775807", "2147483647", "9223372036854775808", "NaN", "1e3",
    " 5 ", "x" * 2_000, "-9223372036854775808",
)  # fmt: skip
ITEMS_MOST = 20_000  # of all lists of a request
LENGTHS = (0, 1, 1, 1, 2, 3, 40, 700, 5_000, 20_000)
SMALLEST = bytes((14, 0, 0, 0, 2, 97, 1, 0))  # a record of eight bytes
HOUR_MS = 3_600_000
# Produce, Fetch, Metadata, CreateTopics, AlterConfigs, IncrementalAlterConfigs: what leaves most behind.
OFTEN = (0, 0, 0, 1, 1, 3, 3, 19, 33, 44)


class Produced(NamedTuple):
    """A batch that was asked to be written, and the greatest time of its records."""

    topic: str
    partition: int
    youngest: int


class Drawn(NamedTuple):
    """A request, and the one batch in it whose records' times are known."""

    request: Any
    batch: Produced | None


class Grammar:
    """Draws requests. One object draws the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.number = 0

    def draw(self) -> Drawn:
        """Return the next request."""
        api = APIS[self.random.choice(OFTEN if self.random.random() < 0.5 else sorted(FAMILIES))]
        version = self.random.randint(api.served_from, api.most)
        self.left = ITEMS_MOST
        if api.title == "Produce" and self.random.random() < 0.6:
            return self.one_batch(version)
        return Drawn(self.entity(request_type(api.key, version), api.title), None)

    @staticmethod
    def apis() -> tuple[int, ...]:
        """Return the APIs that are served."""
        return tuple(FAMILIES)

    def small(self, api_key: int, *, newest: bool, long: bool) -> Any:
        """Return a request that has everything it needs imported and compiled: its codecs, its handler."""
        api = APIS[api_key]
        self.left = 2_000 if long else 0
        return self.entity(request_type(api_key, api.most if newest else api.served_from), api.title)

    # -- entities

    def entity(self, cls: type, where: str) -> Any:
        plan = plan_of(cls)
        return build(cls, **{field.name: self.value(field, f"{where}.{field.name}") for field in plan})

    def value(self, field: FieldPlan, where: str) -> Any:
        if field.nullable and self.random.random() < 0.2 and (field.tag is None or field.default is None):
            return None
        if field.tag is not None and self.random.random() < 0.8:
            return field.default
        if not field.is_array:
            return self.item(field, where)
        length = min(self.left, self.random.choice(LENGTHS))
        self.left -= length
        if length <= 3:
            return tuple(self.item(field, where) for _ in range(length))
        if self.random.random() < 0.5:  # the same again and again
            kept, self.left = self.left, min(self.left, 3)
            few = [self.item(field, where) for _ in range(self.random.choice((1, 1, 2, 5)))]
            self.left = kept
            return tuple(few[place % len(few)] for place in range(length))
        kept, self.left = self.left, 0
        items = tuple(self.numbered(self.item(field, where), BITS.get(field.kind, 32)) for _ in range(length))
        self.left = kept
        return items

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
        for name in ("name", "topic", "transactional_id", "group_id", "resource_name"):
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
            return UUID(int=self.random.getrandbits(128) | 1)
        if kind in ("bool", "error_code"):
            return self.random.randrange(2)
        if kind == "float64":
            return self.random.random()
        return self.whole(kind, where)

    def text(self, where: str) -> str:
        last = where.rpartition(".")[2]
        if ("configs" in where and last in ("name", "value")) or last == "configuration_keys":
            return self.random.choice(VALUES if last == "value" else sorted(TOPIC))
        if last in ("group_id", "groups", "groups_names", "coordinator_keys", "key"):
            return self.random.choice(GROUPS)
        if last in ("transactional_id", "transactional_ids", "v3_and_below_transactional_id"):
            return self.random.choice(("tx", "", "tx" * 100))
        if last in ("name", "topic", "topic_names", "resource_name"):
            if self.random.random() < 0.25:
                return self.random.choice(ODD_NAMES)
            self.number += 1
            return self.random.choice((*TOPICS, f"x{self.number % 50}"))
        return self.random.choice(("", "a", "consumer", "range", "x" * 300))

    def whole(self, kind: str, where: str) -> int:
        bits = BITS.get(kind, 32)
        last = where.rpartition(".")[2]
        pool: tuple[int, ...] = (*NUMBERS, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))
        if last in ("num_partitions", "count"):
            pool = PARTITION_COUNTS
        elif last in ("partition_index", "partition", "partitions", "partition_indexes", "index"):
            pool = (0, 0, 0, 1, 2, -1, 2**31 - 1)
        elif last == "timestamp":
            pool = (*TIMES, now_ms())
        elif last == "resource_type":
            pool = (2, 2, 2, 4, 8, 3)
        elif last in ("session_timeout", "rebalance_timeout", "max_wait"):
            pool = (0, 10_000, 60_000)
        elif last in ("replication_factor", "controller_id"):
            pool = (1, -1, 1, 0)
        number = self.random.choice(pool)
        if kind.startswith("uint"):
            return abs(number) % 2**bits
        return max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, number))

    # -- batches

    def one_batch(self, version: int) -> Drawn:
        """Return a request that writes one batch to one partition that is there."""
        from coterie.wire.codec import entity

        records, youngest = self.batch()
        topic, partition = self.random.choice(TOPICS), self.random.choice((0, 0, 1))
        data = build(entity("produce", version, "PartitionProduceData"), index=partition, records=records)
        asked = build(entity("produce", version, "TopicProduceData"), name=topic, partition_data=(data,))
        request = build(
            request_type(0, version), acks=self.random.choice((1, -1)), timeout=1_000, topic_data=(asked,)
        )
        return Drawn(request, Produced(topic, partition, youngest))

    def batch(self) -> tuple[bytes, int]:
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
        return head + body, youngest


def now_ms() -> int:
    return int(time.time() * 1000)
