"""Kafka's uuids, partitions, codes, and what our exceptions say."""

from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, CoterieError, Refused, RefusedBy
from coterie.base.ids import ZERO_UUID, ShortNames, TopicPartition, uuid_from_text, uuid_text


def test_a_uuid_is_written_as_kafka_writes_it():
    assert uuid_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_text(UUID("00000000-0000-0001-0000-000000000002")) == "AAAAAAAAAAEAAAAAAAAAAg"
    assert uuid_text(UUID(int=2**128 - 1)) == "_____________________w"


@settings(deadline=None)
@given(st.uuids())
def test_a_uuid_survives_being_written(uuid):
    assert uuid_from_text(uuid_text(uuid)) == uuid


@pytest.mark.parametrize(
    "text", ["", "AAAA", "A" * 21, "A" * 23, "A" * 21 + "!", "A" * 21 + "é", "A" * 20 + "=="]
)
def test_rubbish_is_no_uuid(text):
    with pytest.raises(Corrupt):
        uuid_from_text(text)


def test_partitions_sort_by_topic_then_number_and_print_as_kafka_prints_them():
    partitions = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]

    assert [str(partition) for partition in sorted(partitions)] == ["a-9", "a-10", "b-0"]


def test_codes_are_kafkas():
    assert (Code.NONE, Code.UNKNOWN_SERVER_ERROR, Code.ILLEGAL_GENERATION) == (0, -1, 22)
    assert sorted(Code) == list(range(-1, 135))


def test_corrupt_says_what_where_and_what_was_expected():
    failure = Corrupt("magic 1", at=16, expected="2")

    assert str(failure) == "magic 1 at byte 16, expected 2"
    assert (failure.what, failure.at, failure.expected) == ("magic 1", 16, "2")
    assert str(Corrupt("rubbish")) == "rubbish"
    assert isinstance(failure, CoterieError)


def test_a_refusal_carries_its_code_and_the_slug_of_its_heading():
    refusal = RefusedBy(Code.UNKNOWN_MEMBER_ID, "m-1 is not in the group")

    assert str(refusal).startswith("UNKNOWN_MEMBER_ID: m-1 is not in the group; ")
    assert (refusal.code, refusal.slug) == (Code.UNKNOWN_MEMBER_ID, "unknown-member-id")
    assert str(RefusedBy(Code.NOT_COORDINATOR)).startswith("NOT_COORDINATOR; ")
    assert isinstance(refusal, Refused)


class Member(NamedTuple):
    member_id: str
    client_id: str
    instance_id: str | None = None


def an_id(client: str, four: str) -> str:
    """Return a member id as brokers make them."""
    return f"{client}-{four}1a2b-0000-4000-8000-{'0' * 12}"


def test_a_member_is_called_by_what_stays_when_its_client_is_started_again():
    first, again = an_id("app", "8ce6"), an_id("app", "9df7")
    static = Member(an_id("i-1", "aaaa"), "app", "i-1")
    names = ShortNames([[Member(first, "app"), static], [Member(again, "app"), static]])

    assert [names.of(one) for one in (first, again, static.member_id)] == ["app", "app", "i-1"]


def test_members_of_a_generation_that_share_a_client_id_are_told_apart_in_all_generations():
    ids = [an_id("app", four) for four in ("8ce6", "9df7", "aaaa")]
    names = ShortNames([[Member(ids[0], "app")], [Member(one, "app") for one in ids[1:]]])

    assert [names.of(one) for one in ids] == ["app-8ce6…", "app-9df7…", "app-aaaa…"]


def test_member_ids_that_are_alike_when_shortened_are_not_shortened():
    ids = [an_id("app", "8ce6"), an_id("app", "8ce6").replace("1a2b", "ffff")]
    names = ShortNames([[Member(one, "app") for one in ids]])

    assert [names.of(one) for one in ids] == ids


def test_a_member_that_no_generation_has_is_called_by_its_short_id():
    assert ShortNames().of(an_id("app", "8ce6")) == "app-8ce6…"
    assert ShortNames().of("no uuid") == "no uuid"
