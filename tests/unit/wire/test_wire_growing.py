"""A batch that grows is the batch that its records make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coterie.wire.records.batches import GrowingBatch, Record, build_batch, sized

blobs = st.binary(max_size=20) | st.sampled_from([b"x" * 300, b"y" * 70_000])
records = st.tuples(blobs, st.none() | blobs, st.integers(-1, 1_000) | st.integers(2**40, 2**41))


@given(
    added=st.lists(records, min_size=1, max_size=40),
    producer=st.none() | st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1)),
)
def test_a_batch_that_grew_is_as_one_that_was_built(added, producer):
    growing = GrowingBatch()
    for key, value, timestamp in added:
        growing.add(key, value, timestamp)

    whole = [Record(at, timestamp, key, value) for at, (key, value, timestamp) in enumerate(added)]
    terms = {}
    if producer is not None:
        terms = {"producer_id": producer[0], "producer_epoch": producer[1], "transactional": True}

    assert len(growing) == len(added)
    assert growing.build(**terms) == build_batch(whole, **terms)


def test_a_long_batch_needs_longer_deltas():
    growing = GrowingBatch()
    for at in range(2_000):
        growing.add_sized(sized(b"k"), sized(None), 5 + at)

    whole = [Record(at, 5 + at, b"k", None) for at in range(2_000)]

    assert growing.build() == build_batch(whole)
    assert not GrowingBatch()
