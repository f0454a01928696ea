"""Everything that reads bytes from outside: how to feed it, and valid bytes to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from struct import pack
from typing import Any
from zipfile import ZipFile

from entities import a_batch, an_entity

from coterie.arrow.plan import plan
from coterie.arrow.records import record_batches
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.broker.config.properties import PropertiesError, read_properties
from coterie.broker.topics.kafka_metadata import image_of
from coterie.coordinator.group.loading import Loader
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.group.shard import Shard
from coterie.storage import checkpoints
from coterie.storage.cluster_log import CLUSTER_LOG
from coterie.storage.log.aborted import AbortedIndex, AbortedSpan
from coterie.storage.log.index import OffsetIndex, TimeIndex
from coterie.storage.log.producers import ProducerState
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from coterie.wire.api.entities import (
    request_type,
    response_type,
)
from coterie.wire.payloads import consumer_offsets, transaction_state
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription, read_topics_v0
from coterie.wire.records.batches import (
    Record,
    build_batch,
    build_marker,
    check_crc,
    read_header,
    records_of,
    scan,
)
from coterie.wire.records.checksum import crc32c
from coterie.wire.records.compression import CODECS, compress, decompress

__all__ = ["TARGETS", "Target"]

UUID_BYTES = 16
DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Target:
    """One reader. `feed` may raise what is documented, and nothing else."""

    name: str
    feed: Callable[[bytes], object]
    valid: Callable[[Random], Iterator[bytes]]
    documented: tuple[type[Exception], ...] = (Corrupt,)
    times: int = 200
    """How many times its input (and a constant) a reader may take of memory."""


# -- requests and responses


def feed_request(frame: bytes) -> object:
    header = read_request_header(frame)
    if header.api_key not in APIS or not APIS[header.api_key].serves(header.api_version):
        return header
    return decode_request(header, frame)


def valid_requests(random: Random) -> Iterator[bytes]:
    for api in APIS.values():
        for version in range(api.served_from, api.most + 1):
            request = an_entity(request_type(api.key, version), random)
            yield encode_request(random.getrandbits(31), random.choice((None, "me")), request)[4:]


def feed_response(marked: bytes) -> object:
    """The first four bytes say which response the rest is: a client knows what it has asked."""
    key, version = int.from_bytes(marked[:2]), int.from_bytes(marked[2:4])
    if len(marked) < 4 or key not in APIS or not APIS[key].serves(version):
        return None
    return decode_response(response_type(key, version), marked[4:])


def valid_responses(random: Random) -> Iterator[bytes]:
    for api in APIS.values():
        for version in range(api.served_from, api.most + 1):
            response = an_entity(response_type(api.key, version), random)
            yield pack(">hh", api.key, version) + encode_response(random.getrandbits(31), response)[4:]


# -- record batches


def feed_batches(data: bytes) -> object:
    read = [check_crc(data, at, header) for at, header in scan(data)]
    return read, [list(records_of(data, at)) for at, _ in scan(data)]


def feed_batch(data: bytes) -> object:
    return read_header(data), list(records_of(data))


def valid_batches(random: Random) -> Iterator[bytes]:
    for codec in CODECS:
        yield a_batch(random, codec=codec)
        yield a_batch(random, codec=codec) + a_batch(random)


def feed_columns(data: bytes) -> object:
    planned = plan(data, first=0, until=2**62)
    return list(record_batches(planned, topic="t", partition=0, headers=True))


def feed_compressed(codec: str) -> Callable[[bytes], object]:
    return lambda data: decompress(codec, data)


def valid_compressed(codec: str) -> Callable[[Random], Iterator[bytes]]:
    def valid(random: Random) -> Iterator[bytes]:
        for data in (b"", b"a", random.randbytes(50), b"some text, again " * 30, bytes(100_000)):
            yield compress(codec, data)

    return valid


# -- records of internal topics


def feed_offsets_record(marked: bytes) -> object:
    """The first byte says how long the key is."""
    end = 1 + (marked[0] if marked else 0)
    key, value = marked[1:end], marked[end:]
    found = consumer_offsets.read_key(key)
    if isinstance(found, consumer_offsets.OffsetCommitKey):
        consumer_offsets.check_offset_value(value)
        return consumer_offsets.read_offset_value(value)
    if isinstance(found, consumer_offsets.GroupMetadataKey):
        return consumer_offsets.read_group_value(value)
    return found


def feed_loading(marked: bytes) -> object:
    """What a broker does with a record that it finds in its log."""
    end = 1 + (marked[0] if marked else 0)
    shard = Shard(settings=GroupSettings(), new_id=lambda: "")
    shard.load([(marked[1:end], marked[end:] or None)], 0)
    return shard.loaded(0)


def feed_log(data: bytes) -> object:
    """What a broker does with its log: whole batches are all that a log gives out."""
    end = max((at + header.size for at, header in scan(data)), default=0)
    loader = Loader(Shard(settings=GroupSettings(), new_id=lambda: ""))
    if end:
        for _ in (*loader.read(data[:end], 0), *loader.settle(0)):
            pass
    return end


def valid_logs(random: Random) -> Iterator[bytes]:
    marked = list(valid_offsets_records(random))
    for codec in ("none", "zstd"):
        records = [
            Record(place, 5, one[1 : 1 + one[0]], one[1 + one[0] :] or None)
            for place, one in enumerate(random.sample(marked, 5))
        ]
        yield build_batch(records, codec=codec)
        pending = build_batch(records[:2], codec=codec, producer_id=7, producer_epoch=0, transactional=True)
        end = build_marker(commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=5)
        yield pending + end


def valid_offsets_records(random: Random) -> Iterator[bytes]:
    offset_key = consumer_offsets.OffsetCommitKey("g", "flights", 3)
    for expires in (-1, 5):
        value = consumer_offsets.OffsetCommitValue(42, 0, "md", 7, expires)
        yield marked_record(*consumer_offsets.offset_commit_record(offset_key, value))
    for count in range(3):
        members = tuple(
            consumer_offsets.MemberMetadata(
                f"m{n}", "c", "/h", 10_000, b"sub", b"assigned", "i" if n else None, 5
            )
            for n in range(count)
        )
        group = consumer_offsets.GroupMetadataValue("consumer", 3, "range", "m0", 9, members)
        yield marked_record(
            *consumer_offsets.group_metadata_record(consumer_offsets.GroupMetadataKey("g"), group)
        )
    for version in range(consumer_offsets.GROUP_VALUE.most + 1):
        yield marked_record(pack(">hh", 2, 1) + b"g", written(consumer_offsets.GROUP_VALUE, version, random))
    for version in range(consumer_offsets.OFFSET_VALUE.most + 1):
        key = pack(">hh", 1, 1) + b"g" + pack(">h", 1) + b"t" + pack(">i", 0)
        yield marked_record(key, written(consumer_offsets.OFFSET_VALUE, version, random))
    for kind in range(24):
        yield marked_record(pack(">hh", kind, 1) + b"g", b"\0\0")


def marked_record(key: bytes, value: bytes | None) -> bytes:
    return bytes((len(key),)) + key + (value or b"")


def written(schema: Any, version: int, random: Random) -> bytes:
    from coterie.wire.api.codec import encode

    return pack(">h", version) + encode(an_entity(schema.at(version), random))


def feed_transaction_record(marked: bytes) -> object:
    end = 1 + (marked[0] if marked else 0)
    key = transaction_state.read_transaction_key(marked[1:end])
    return key, transaction_state.read_transaction_value(marked[end:])


def valid_transaction_records(random: Random) -> Iterator[bytes]:
    for version in (0, 1, 1, 1):
        value = written(transaction_state.VALUE, version, random)
        yield marked_record(transaction_state.transaction_record("tx", None)[0], value)


# -- Kafka's own metadata


def feed_cluster_log(data: bytes) -> object:
    """The values of its records one after the other, each behind its length."""
    values, at = [], 0
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2])
        values.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    image = image_of(values)
    return image.by_name, image.broker_configs(1), [image.topic_configs(name) for name in image.by_name]


def valid_cluster_logs(random: Random) -> Iterator[bytes]:
    """The records of a Kafka that has lived (tests/data/kafka_directory.zip), some of them and all."""
    with ZipFile(DATA / "kafka_directory.zip") as recorded:
        names = [name for name in recorded.namelist() if name.startswith(CLUSTER_LOG)]
        logs = [recorded.read(name) for name in names if name.endswith((".log", ".checkpoint"))]
    for log in logs:
        values = [
            record.value or b""
            for at, header in scan(log)
            if not header.control
            for record in records_of(log, at)
        ]
        for count in (random.randrange(len(values)), len(values)):
            yield b"".join(pack(">H", len(value)) + value for value in values[:count])


# -- what consumers tell each other


def feed_consumer(data: bytes) -> object:
    return Subscription.decode(data), Assignment.decode(data)


def feed_topics(data: bytes) -> object:
    return read_topics_v0(data), Assignment.decode(data)


def valid_payloads(random: Random) -> Iterator[bytes]:
    owned = (TopicPartition("a", 1), TopicPartition("é", 0))
    for version in range(4):
        yield Subscription(("a", "é"), b"user", owned, 7, "rack").encode(version)
        yield Subscription(()).encode(version)
        yield Assignment(owned, b"user").encode(version)


# -- files


def feed_snapshot(data: bytes) -> object:
    state = ProducerState()
    state.restore(data)
    return state.snapshot()


def feed_snapshot_body(data: bytes) -> object:
    """The same past the checksum, which no fuzzer guesses."""
    return feed_snapshot(data[:2] + crc32c(data[6:]).to_bytes(4) + data[6:])


def valid_snapshots(random: Random) -> Iterator[bytes]:
    rows = [
        pack(">qhiqiqiq", n, 1, 5, 100 + n, 2, 1_700_000_000_000, 0, random.choice((-1, 90)))
        for n in range(3)
    ]
    for count in range(4):
        body = count.to_bytes(4) + b"".join(rows[:count])
        yield (1).to_bytes(2) + crc32c(body).to_bytes(4) + body


def feed_indexes(data: bytes) -> object:
    index = OffsetIndex.read(data, log_size=1 << 20)
    return index.at_or_before(10), index.entries()


def feed_time_index(data: bytes) -> object:
    index = TimeIndex.read(data)
    return index.at_or_before(10), index.entries()


def feed_transaction_index(data: bytes) -> object:
    index = AbortedIndex.read(data, base_offset=0)
    return index.within(0, 100), index.entries()


def valid_indexes(random: Random) -> Iterator[bytes]:
    offsets, times = OffsetIndex(), TimeIndex()
    for place in range(1, 20):
        offsets.add(place * 10, place * 500)
        times.add(1_700_000_000_000 + place, place * 10)
    spans = [AbortedSpan(7, 3 + n * 10, 9 + n * 10, 4 + n * 10) for n in range(5)]
    yield from (offsets.entries(), times.entries(), AbortedIndex(spans).entries())


def feed_checkpoints(data: bytes) -> object:
    readers: tuple[Callable[[bytes], object], ...] = (
        checkpoints.read_offsets,
        checkpoints.read_epochs,
        checkpoints.read_meta,
        checkpoints.read_partition_metadata,
        checkpoints.read_clean_stop,
    )
    return [outcome(read, data) for read in readers]


def outcome(read: Callable[[bytes], object], data: bytes) -> object:
    try:
        return read(data)
    except Corrupt:
        return Corrupt


def valid_checkpoints(random: Random) -> Iterator[bytes]:
    from uuid import UUID

    yield checkpoints.write_offsets({TopicPartition("t", 0): 5, TopicPartition("é", 12): 0})
    yield checkpoints.write_epochs([(0, 0), (3, 17)])
    yield checkpoints.write_meta(checkpoints.Meta("cluster", 1, "directory"))
    yield checkpoints.write_partition_metadata(UUID(int=7))
    yield checkpoints.write_clean_stop(199)


def feed_properties(data: bytes) -> object:
    return read_properties(data.decode("utf-8", "replace"))


def valid_properties(random: Random) -> Iterator[bytes]:
    yield b"a=b\nlong = one\\\n  two\n! no\n# no\nkey\\:1:\\u00e9\\ud83d\\ude00\nempty\n"


TARGETS = (
    Target("request", feed_request, valid_requests),
    Target("response", feed_response, valid_responses),
    Target("batch", feed_batch, valid_batches, times=100_000),  # a batch of zeros packs by the thousand
    Target("batches", feed_batches, valid_batches, times=100_000),
    Target("columns", feed_columns, valid_batches, times=100_000),
    *(
        Target(codec, feed_compressed(codec), valid_compressed(codec), times=200_000)
        for codec in CODECS
        if codec != "none"
    ),
    Target("offsets-record", feed_offsets_record, valid_offsets_records),
    Target("loading", feed_loading, valid_offsets_records),
    Target("log", feed_log, valid_logs, times=100_000),
    Target("transaction-record", feed_transaction_record, valid_transaction_records),
    Target("cluster-log", feed_cluster_log, valid_cluster_logs, times=1_000),
    Target("consumer", feed_consumer, valid_payloads),
    Target("consumer-topics", feed_topics, valid_payloads),
    Target("snapshot", feed_snapshot, valid_snapshots),
    Target("snapshot-body", feed_snapshot_body, valid_snapshots),
    Target("offset-index", feed_indexes, valid_indexes),
    Target("time-index", feed_time_index, valid_indexes),
    Target("transaction-index", feed_transaction_index, valid_indexes),
    Target("checkpoints", feed_checkpoints, valid_checkpoints),
    Target("properties", feed_properties, valid_properties, documented=(PropertiesError,)),
)
