"""The heads of batches: producers and aborted transactions are known by them as by the batches."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from store_rig import NOW, ORDERS, TOPIC_ID, a_batch, a_config, a_marker, idempotent

from coterie.storage.log.contract import AppendRefused
from coterie.storage.log.producers import ProducerState
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.heads import heads_of, learn_heads, scan_heads
from coterie.wire.records.batches import HEADER_SIZE, read_marker, scan
from unit.storage.remote_rig import PARTITION, OneLog

PIDS = st.integers(1, 3)
WRITES = st.one_of(
    st.tuples(st.just("plain"), PIDS),
    st.tuples(st.just("sequenced"), PIDS),
    st.tuples(st.just("transactional"), PIDS),
    st.tuples(st.sampled_from(("commit", "abort")), PIDS),
)


@given(st.lists(st.lists(WRITES, max_size=4), max_size=12))
def test_producers_are_known_by_the_heads_alone(rounds: list[list[tuple[str, int]]]):
    """Whatever goes into one row, and whoever is in a transaction."""
    store = OneLog(None, a_config())
    log = store.create_log(*ORDERS, TOPIC_ID, a_config())
    aborted = []
    for writes in rounds:
        for kind, pid in writes:
            known = log.producers.producers.get(pid)
            sequence = 0 if known is None else known.last_sequence + 1
            if kind in ("commit", "abort"):
                batch = a_marker(commit=kind == "commit", pid=pid, coordinator_epoch=pid)
            elif kind == "plain":
                batch = a_batch("plain")
            else:
                batch = idempotent(sequence, pid=pid, transactional=kind == "transactional")
            try:
                log.append(
                    batch, now_ms=NOW, origin="client" if kind in ("plain", "sequenced") else "coordinator"
                )
            except AppendRefused:
                continue
        store.settle()

    producers = ProducerState()
    for _, heads in store.engine.tables.heads(PARTITION):
        aborted += [ended[:4] for ended in learn_heads(producers, heads) or () if ended.aborted]

    assert producers.snapshot() == log.producers.snapshot()
    assert aborted == [tuple(span) for chunk in store.engine.tables.rows(PARTITION) for span in chunk.aborted]


def test_the_head_of_a_batch_is_its_header_and_that_of_a_marker_is_all_of_it():
    batches = [a_batch("x" * 100), a_marker(commit=False), a_batch("y")]
    data = b"".join(batches)
    spans = [(header, header.base_offset, NOW) for _, header in scan(data)]

    heads = heads_of(data, spans)

    assert len(heads) == 2 * HEADER_SIZE + len(batches[1])
    (_, (at, marker), _) = scan_heads(heads)
    assert marker.control
    assert read_marker(heads, at) == read_marker(batches[1], 0)


class HeadsLookedThrough(bytes):
    """Heads that count how often the first bytes of all producer ids are looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and place.step is not None:
            self.looks += 1
        return super().__getitem__(place)


def test_a_row_that_was_there_is_looked_through_once_for_producers():
    store = OneLog(None, a_config())
    log = store.create_log(*ORDERS, TOPIC_ID, a_config())
    data = b"".join(a_batch(value) for value in "abc")
    heads = HeadsLookedThrough(
        heads_of(data, [(header, header.base_offset, NOW) for _, header in scan(data)])
    )

    counts = [*log.take_in([Chunk(PARTITION, 0, 2, 0, NOW, 3, heads, data)])]

    assert (counts, heads.looks) == ([1], 1)
