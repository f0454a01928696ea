"""A fetch that waits for records answers early when a request of another kind waits behind it.

Clients that have one connection to a broker ask it for offsets, topics and coordinators behind their own
fetch, and would wait as long as that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.broker.net.connection import UNREAD_BYTES_MAX, Connection
from coterie.broker.net.request_queue import RequestQueue
from coterie.broker.runtime.pieces import at_once
from coterie.wire.api.codec import decode_response, encode_request
from coterie.wire.api.entities import build, entity, request_type, response_type
from coterie.wire.records.batches import Record, build_batch, build_marker
from unit.broker.group_api_rig import ApiRig, commit_topic, join_terms
from unit.broker.rig import Line

PRODUCE, FETCH, LIST_OFFSETS, METADATA, COMMIT, FIND, JOIN, API_VERSIONS = 0, 1, 2, 3, 8, 10, 11, 18
VERSIONS = {PRODUCE: 9, FETCH: 11, LIST_OFFSETS: 6, METADATA: 9, COMMIT: 8, FIND: 3, JOIN: 5, API_VERSIONS: 3}
WAIT_MS = 5_000
WIDE = 130  # partitions: more than are looked at without a stop


@pytest.fixture
def rig() -> Iterator[ApiRig]:
    running = ApiRig()
    running.node.topic_manager.create_topic("wide", partitions=WIDE)
    running.settle()
    yield running
    running.close()


class Peer:
    """A client that sends what it likes without waiting for answers, and what it was answered, in order."""

    def __init__(self, rig: ApiRig, queue: RequestQueue | None = None) -> None:
        self.line = Line()
        self.connection = Connection(rig.node, queue)
        self.connection.connection_made(self.line)
        self._rig = rig
        self._asked: list[tuple[int, int]] = []

    def frame(self, api_key: int, /, values: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        version = VERSIONS[api_key]
        self._asked.append((api_key, version))
        return encode_request(len(self._asked), "peer", build(request_type(api_key, version), **values))

    def send(self, *frames: bytes) -> None:
        """Send all of them in one piece, and let the broker work until no more comes without time passing."""
        self.connection.data_received(b"".join(frames))
        self._rig.settle()

    def answers(self) -> list[tuple[int, Any]]:
        """Return the API and the answer of each that has come since the last call."""
        found = []
        while self.line.written:
            size = int.from_bytes(self.line.written[:4], "big")
            frame, self.line.written = self.line.written[4 : 4 + size], self.line.written[4 + size :]
            asked = self._asked[int.from_bytes(frame[:4], "big") - 1]
            found.append((asked[0], decode_response(response_type(*asked), frame)[1]))
        return found

    def answered(self) -> list[int]:
        """Return the APIs that have been answered since the last call."""
        return [api_key for api_key, _ in self.answers()]


def fetch(
    topic: str = "orders",
    partitions: int = 1,
    *,
    min_bytes: int = 1,
    offset: int = 0,
    committed: bool = False,
) -> dict[str, Any]:
    cls = entity("fetch", 11, "FetchPartition")
    asked = tuple(
        build(cls, partition=n, fetch_offset=offset, partition_max_bytes=1 << 20) for n in range(partitions)
    )
    topics = (build(entity("fetch", 11, "FetchTopic"), topic=topic, partitions=asked),)
    isolation_level = 1 if committed else 0
    terms = {"max_wait": WAIT_MS, "min_bytes": min_bytes, "max_bytes": 1 << 26, "topics": topics}
    return {**terms, "isolation_level": isolation_level}


def a_record(rig: ApiRig, size: int = 1, **how: Any) -> bytes:
    return build_batch([Record(0, rig.now_ms, None, bytes(size))], **how)


def record(rig: ApiRig, size: int = 1, *, partition: int = 0) -> dict[str, Any]:
    data = build(entity("produce", 9, "PartitionProduceData"), index=partition, records=a_record(rig, size))
    topic = build(entity("produce", 9, "TopicProduceData"), name="orders", partition_data=(data,))
    return {"acks": -1, "timeout": 1_000, "topic_data": (topic,)}


def list_offsets() -> dict[str, Any]:
    latest = build(entity("list_offsets", 6, "ListOffsetsPartition"), partition_index=0, timestamp=-1)
    return {
        "topics": (build(entity("list_offsets", 6, "ListOffsetsTopic"), name="orders", partitions=(latest,)),)
    }


def commit(rig: ApiRig) -> dict[str, Any]:
    return {"group_id": "g", "topics": (commit_topic(rig, 8, "orders", (0, 7, "")),)}


OTHERS: dict[int, Callable[[ApiRig], dict[str, Any]]] = {
    PRODUCE: lambda rig: record(rig, partition=1),
    LIST_OFFSETS: lambda _: list_offsets(),
    METADATA: lambda _: {},
    COMMIT: commit,
    FIND: lambda _: {"key": "g", "key_type": 0},
    API_VERSIONS: lambda _: {"client_software_name": "a", "client_software_version": "1"},
}


def fetch_before(rig: ApiRig, other: int, *, together: bool) -> Any:
    """Return the answer to a fetch that waits for something until a request of another kind comes behind it
    on its connection, which is answered next.
    """
    peer = Peer(rig)
    fetches, behind = peer.frame(FETCH, fetch()), peer.frame(other, OTHERS[other](rig))
    if together:
        peer.send(fetches, behind)
    else:
        peer.send(fetches)
        assert peer.answers() == []
        peer.send(behind)
    (_, early), (answered, _) = peer.answers()
    assert answered == other
    return early


@pytest.mark.parametrize("together", [True, False], ids=["in-one-piece", "one-after-the-other"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_request_of_another_kind_does_not_wait_for_the_fetch_before_it(
    rig: ApiRig, other: int, together: bool
):
    early = fetch_before(rig, other, together=together)

    [partition] = early.responses[0].partitions
    assert (partition.error_code, partition.records) == (Code.NONE, b"")
    assert rig.node.peers.begun_bytes == 0


def test_a_fetch_behind_a_fetch_waits_until_that_one_is_over(rig: ApiRig):
    peer = Peer(rig)

    peer.send(peer.frame(FETCH, fetch()), peer.frame(FETCH, fetch()))
    rig.pass_ms(WAIT_MS - 1)
    assert peer.answered() == []
    rig.pass_ms(1)
    assert peer.answered() == [FETCH]
    rig.pass_ms(WAIT_MS)

    assert peer.answered() == [FETCH]


def test_only_the_request_that_is_next_hurries_a_fetch(rig: ApiRig):
    peer = Peer(rig)

    peer.send(peer.frame(FETCH, fetch()), peer.frame(FETCH, fetch()), peer.frame(METADATA))
    assert peer.answered() == []
    rig.pass_ms(WAIT_MS)

    assert peer.answered() == [FETCH, FETCH, METADATA]


def test_a_fetch_waits_until_the_last_byte_of_what_is_behind_it_has_come(rig: ApiRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch()))
    behind = peer.frame(METADATA)

    for at in range(len(behind) - 1):
        peer.send(behind[at : at + 1])
        assert peer.answered() == []
    peer.send(behind[-1:])

    assert peer.answered() == [FETCH, METADATA]


def test_a_fetch_that_is_taken_up_while_another_request_waits_behind_it_does_not_wait():
    """What is before it is a join, which waits for the others of its group, whoever is behind it."""
    rig = ApiRig(group_initial_rebalance_delay_ms=3_000)
    peer = Peer(rig)
    joins = peer.frame(JOIN, join_terms(5, member_id="", group_instance_id="i", group_id="g"))

    peer.send(joins, peer.frame(FETCH, fetch()), peer.frame(METADATA))
    rig.pass_ms(2_999)
    assert peer.answered() == []
    rig.pass_ms(1)

    assert peer.answered() == [JOIN, FETCH, METADATA]
    rig.close()


def test_what_is_there_is_answered_though_the_fetch_wanted_more(rig: ApiRig):
    peer, writer = Peer(rig), Peer(rig)
    peer.send(peer.frame(FETCH, fetch(min_bytes=10_000)))
    writer.send(writer.frame(PRODUCE, record(rig, size=100)))
    assert peer.answered() == []

    peer.send(peer.frame(METADATA))

    (_, early), _ = peer.answers()
    [partition] = early.responses[0].partitions
    assert partition.high_watermark == 1
    assert len(partition.records) > 100


def a_transaction(rig: ApiRig) -> None:
    """Write what was aborted, what was committed, and what is open; all of one producer."""
    append = rig.node.replica_manager.append
    how = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for sequence, commits in enumerate((False, True, None)):
        append(
            "orders", 0, a_record(rig, base_sequence=sequence, **how), now_ms=rig.now_ms, origin="coordinator"
        )
        if commits is not None:
            marker = build_marker(
                commit=commits, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=rig.now_ms
            )
            append("orders", 0, marker, now_ms=rig.now_ms, origin="coordinator")


@pytest.mark.parametrize("partitions", [1, 2], ids=["one", "two"])
@pytest.mark.parametrize("offset", [0, 4, 5])
@pytest.mark.parametrize("committed", [False, True])
def test_a_hurried_fetch_is_answered_as_its_deadline_would_have_it(
    rig: ApiRig, committed: bool, offset: int, partitions: int
):
    a_transaction(rig)
    terms = fetch(partitions=partitions, min_bytes=1 << 20, offset=offset, committed=committed)
    patient, hasty = Peer(rig), Peer(rig)
    if partitions == 2 and offset:  # beyond the end of the other: an error, which is answered at once
        patient.send(patient.frame(FETCH, terms))
        assert patient.answered() == [FETCH]
        return
    patient.send(patient.frame(FETCH, terms))
    hasty.send(hasty.frame(FETCH, terms), hasty.frame(METADATA))
    assert patient.answered() == []

    rig.pass_ms(WAIT_MS)

    (_, early), _ = hasty.answers()
    [(_, late)] = patient.answers()
    assert early == late


def forgetting(count: int) -> dict[str, Any]:
    """Return a fetch of one partition that takes long to read: it no longer wants many others."""
    cls = entity("fetch", 11, "ForgottenTopic")
    return {**fetch(), "forgotten_topics_data": tuple(build(cls, topic="t") for _ in range(count))}


@pytest.mark.parametrize("slices", range(8))
@pytest.mark.parametrize("together", [True, False], ids=["in-one-piece", "one-after-the-other"])
@pytest.mark.parametrize("terms", [fetch("wide", WIDE), forgetting(4_000)], ids=["wide", "long"])
def test_a_fetch_that_takes_several_slices_is_hurried_at_whatever_stop_the_other_request_comes(
    rig: ApiRig, terms: dict[str, Any], together: bool, slices: int
):
    ticks = iter(range(1_000_000))
    peer = Peer(rig, RequestQueue(rig.soon.append, clock=lambda: float(next(ticks))))
    waiting = len(rig.node.purgatory)
    fetches, behind = peer.frame(FETCH, terms), peer.frame(METADATA)

    peer.connection.data_received(fetches + behind if together else fetches)
    for _ in range(slices):
        if rig.soon:
            rig.soon.pop(0)()
    peer.send(b"" if together else behind)

    (fetched, early), (other, _) = peer.answers()
    assert (fetched, other) == (FETCH, METADATA)
    assert len(early.responses[0].partitions) == len(terms["topics"][0].partitions)
    assert len(rig.node.purgatory) == waiting


def test_a_request_that_is_longer_than_what_is_read_behind_another_hurries_it_before_it_is_whole(
    rig: ApiRig,
):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch()))
    behind = peer.frame(PRODUCE, record(rig, size=3 * UNREAD_BYTES_MAX // 2, partition=1))
    at_once(rig.node.topic_manager.configure_topics({"orders": {"max.message.bytes": str(1 << 22)}}))

    peer.send(behind[:UNREAD_BYTES_MAX])
    assert peer.answered() == []
    peer.send(behind[UNREAD_BYTES_MAX : UNREAD_BYTES_MAX + 1])
    assert peer.answered() == [FETCH]
    assert peer.line.reading
    peer.send(behind[UNREAD_BYTES_MAX + 1 :])

    [(_, answer)] = peer.answers()
    assert answer.responses[0].partition_responses[0].error_code == Code.NONE


def test_a_thousand_fetches_each_with_another_request_behind_it_are_answered_one_by_one(rig: ApiRig):
    peer = Peer(rig)
    find = OTHERS[FIND](rig)

    peer.send(*[peer.frame(*one) for _ in range(1_000) for one in ((FETCH, fetch()), (FIND, find))])

    assert peer.answered() == [FETCH, FIND] * 1_000


def test_who_does_not_take_answers_hurries_nothing(rig: ApiRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch()))
    peer.connection.pause_writing()

    peer.send(peer.frame(METADATA))
    assert peer.answered() == []
    peer.connection.resume_writing()

    assert peer.answered() == [FETCH, METADATA]


def test_what_waited_no_longer_is_neither_woken_nor_withdrawn_again(rig: ApiRig):
    peer, writer = Peer(rig), Peer(rig)
    peer.send(peer.frame(FETCH, fetch()), peer.frame(METADATA))
    assert peer.answered() == [FETCH, METADATA]

    writer.send(writer.frame(PRODUCE, record(rig)))
    rig.pass_ms(WAIT_MS)
    peer.connection.connection_lost(None)

    assert peer.answered() == []


def test_who_is_hurried_within_the_waking_of_others_costs_none_of_them(rig: ApiRig):
    """The first is answered and fetches again, at the end this time, with another request behind that."""
    first, second, writer = Peer(rig), Peer(rig), Peer(rig)
    first.send(first.frame(FETCH, fetch()), first.frame(FETCH, fetch(offset=1)), first.frame(METADATA))
    second.send(second.frame(FETCH, fetch()))

    writer.send(writer.frame(PRODUCE, record(rig)))

    assert first.answered() == [FETCH, FETCH, METADATA]
    assert second.answered() == [FETCH]


def test_a_mistake_in_a_hurried_answer_ends_its_connection_and_no_other(
    rig: ApiRig, monkeypatch: pytest.MonkeyPatch
):
    peer, other = Peer(rig), Peer(rig)
    peer.send(peer.frame(FETCH, fetch()))
    monkeypatch.delattr(type(rig.node.peers), "room")

    peer.send(peer.frame(METADATA))

    assert peer.line.closed
    assert peer.answered() == []
    other.send(other.frame(METADATA))
    assert other.answered() == [METADATA]


def expected(kinds: list[int], whole: int) -> int:
    """Return how many of these requests are answered without time passing once so many are whole.

    All fetches wait, unless they are hurried.
    """
    done = 0
    while done < whole and (kinds[done] != FETCH or (done + 1 < whole and kinds[done + 1] != FETCH)):
        done += 1
    return done


@given(
    kinds=st.lists(st.sampled_from((FETCH, METADATA, COMMIT)), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 1_000), max_size=12),
)
def test_however_the_requests_are_cut_no_other_waits_for_a_fetch(kinds: list[int], cuts: list[int]):
    rig = ApiRig()
    peer = Peer(rig)
    terms = {FETCH: fetch(), METADATA: {}, COMMIT: commit(rig)}
    frames = [peer.frame(kind, terms[kind]) for kind in kinds]
    stream = b"".join(frames)
    ends = [len(b"".join(frames[: n + 1])) for n in range(len(frames))]
    answered: list[int] = []
    before = 0
    for cut in sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)}):
        peer.send(stream[before:cut])
        before = cut
        answered += peer.answered()
        whole = sum(end <= cut for end in ends)
        assert answered == kinds[: expected(kinds, whole)]
    for _ in kinds:
        rig.pass_ms(WAIT_MS)
    assert answered + peer.answered() == kinds
    rig.close()
