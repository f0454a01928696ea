"""Large requests are read, and large responses written, in pieces: what comes out is what comes out whole."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import fields, replace
from mmap import mmap
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coterie.base.errors import Corrupt
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import (
    decode_request,
    encode_request,
    encode_response_parts,
    read_request_header,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
    response_type,
)
from coterie.wire.api.guards import LIGHT_ITEMS
from coterie.wire.api.layout import plan_of
from coterie.wire.api.piecemeal import ITEMS_MOST, decode_in_pieces, decode_light, encode_in_pieces
from coterie.wire.varints import uvarint

sys.path.append(str(Path(__file__).parents[2] / "fuzz"))
from entities import an_entity

# Of each API the oldest version and the newest: fields before compact lengths, and as they are now.
EVERY = [(key, version) for key, api in APIS.items() for version in sorted({api.served_from, api.most})]
MANY = LIGHT_ITEMS + 100


def drained(pieces: Generator[None, None, Any]) -> tuple[Any, int]:
    """Return what came out, and how often others had their turn."""
    stops = 0
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, stops
        stops += 1


def with_long_lists(one: Any, random: Random) -> Any:
    """Return an entity with a first list of many items, and the others as they were."""
    for field in plan_of(one.__class__):
        items = getattr(one, field.name)
        if field.is_array and items and field.tag is None:
            long = tuple(random.choice(items) for _ in range(MANY))
            return replace(one, **{field.name: long})
        if field.entity is not None and field.is_array and items:
            return one
    return one


def frame_of(request: Any) -> bytes:
    return encode_request(7, "test", request)[4:]


def as_gathered(frame: bytes) -> Any:
    """Return the frame as the server gathers a large one."""
    room = mmap(-1, len(frame))
    room.write(frame)
    return memoryview(room).toreadonly()


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_a_request_read_in_pieces_is_the_request_read_whole(key: int, version: int):
    random = Random(f"{key} {version}")
    for _ in range(2):
        request = with_long_lists(an_entity(request_type(key, version), random), random)
        frame = frame_of(request)
        header = read_request_header(frame)

        read, _ = drained(decode_in_pieces(header, frame))

        assert read == decode_request(header, frame)
        mapped = as_gathered(frame)  # as the server has it where it is large
        assert repr(drained(decode_in_pieces(read_request_header(mapped), mapped))[0]) == repr(read)


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_a_response_written_in_pieces_is_the_response_written_whole(key: int, version: int):
    random = Random(f"{key} {version}")
    for _ in range(2):
        response = with_long_lists(an_entity(response_type(key, version), random), random)

        parts, _ = drained(encode_in_pieces(9, response))

        assert b"".join(parts) == b"".join(encode_response_parts(9, response))


def metadata_of(count: int) -> bytes:
    topic = entity("metadata", 9, "MetadataRequestTopic")
    return frame_of(build(request_type(3, 9), topics=tuple(build(topic, name=f"t{n}") for n in range(count))))


def test_what_holds_many_things_is_not_light_and_others_have_their_turn_while_it_is_read():
    frame = metadata_of(20_000)
    header = read_request_header(frame)

    request, stops = drained(decode_in_pieces(header, frame))

    assert decode_light(header, frame) is None
    assert len(request.topics) == 20_000
    assert stops >= 20_000 // 64


def test_one_long_batch_is_light():
    data = build(entity("produce", 9, "PartitionProduceData"), index=0, records=bytes(100_000))
    topic = build(entity("produce", 9, "TopicProduceData"), name="t", partition_data=(data,))
    frame = frame_of(build(request_type(0, 9), topic_data=(topic,), acks=1))

    assert decode_light(read_request_header(frame), frame).topic_data == (topic,)


def test_a_request_of_more_items_than_any_client_needs_is_refused_before_it_is_read():
    few = metadata_of(MANY)
    at = read_request_header(few).body_at
    frame = few[:at] + uvarint(ITEMS_MOST + 2) + few[at + 2 :] + bytes(2 * ITEMS_MOST)

    with pytest.raises(Corrupt, match=f"at most {ITEMS_MOST}"):
        next(decode_in_pieces(read_request_header(frame), frame))


@pytest.mark.parametrize("cut", [1, 7, 1_000, 9_999])
def test_a_long_request_that_is_cut_is_corrupt(cut: int):
    frame = metadata_of(5_000)

    with pytest.raises(Corrupt):
        drained(decode_in_pieces(read_request_header(frame), frame[:-cut]))


def test_tags_that_nobody_knows_are_passed_over_in_a_long_request():
    kind = entity("metadata", 9, "MetadataRequestTopic")
    names = [field.name for field in fields(kind)]
    frame = metadata_of(MANY)
    header = read_request_header(frame)
    tagged = frame[: header.body_at + 2] + frame[header.body_at + 2 :].replace(
        b"\x03t7\0", b"\x03t7\x01\x63\x01x"
    )

    request, _ = drained(decode_in_pieces(header, tagged + bytes(20_000)))

    assert names == ["name"]
    assert [topic.name for topic in request.topics][:9] == [f"t{n}" for n in range(9)]
    assert len(request.topics) == MANY


def test_more_tags_than_any_schema_has_are_corrupt():
    frame = frame_of(build(request_type(18, 3), client_software_name="a", client_software_version="1"))

    with pytest.raises(Corrupt, match="tags"):
        decode_request(read_request_header(frame), frame[:-1] + b"\xff\x7f" + b"\x63\x00" * 16_383)
