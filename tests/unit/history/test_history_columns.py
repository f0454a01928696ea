"""What is read in columns is what is read record by record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import drawn

pa = pytest.importorskip("pyarrow")

from coterie.arrow.commits import epochs_table  # noqa: E402
from coterie.arrow.types import TIMESTAMP  # noqa: E402
from coterie.base.errors import Corrupt, CoterieError  # noqa: E402
from coterie.history.group import history_of  # noqa: E402
from coterie.history.log.runs import Commit, Run, runs_of  # noqa: E402
from coterie.history.log.segments import entries_of, groups_of  # noqa: E402
from coterie.history.ownership import silences  # noqa: E402
from coterie.history.tables import History, Ownership  # noqa: E402
from coterie.spark.history.commits import commits_of_units  # noqa: E402
from coterie.spark.history.files import Unit, shared_out, units  # noqa: E402
from coterie.spark.history.histories import packed_histories  # noqa: E402
from coterie.spark.history.reading import (  # noqa: E402
    ORDER,
    events_of_records,
    events_of_story,
    events_of_units,
    histories_of_units,
)
from coterie.spark.history.reduce import (  # noqa: E402
    EVENTS,
    offset_values,
)
from coterie.spark.history.schemas import COLUMNS, histories_in  # noqa: E402
from coterie.spark.history.silences import RunColumns, silences_in  # noqa: E402
from coterie.wire.api.writers import writer_of  # noqa: E402
from coterie.wire.payloads.consumer_offsets import (  # noqa: E402
    OFFSET_VALUE,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    group_metadata_record,
    offset_commit_record,
)
from coterie.wire.records.batches import Record, build_batch  # noqa: E402
from unit.history.history_rig import CAPTURES, Tale, captured_history, told  # noqa: E402

texts = st.text(max_size=200)
values = st.builds(
    OffsetCommitValue,
    offset=st.integers(0, 2**62),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=texts,
    commit_timestamp=st.integers(0, 2**50),
    expire_timestamp=st.just(-1),
    topic_id=st.none() | st.uuids(),
)


def value_bytes(version: int, value: OffsetCommitValue) -> bytes:
    """Return a committed offset as a coordinator of some version writes it."""
    out = [version.to_bytes(2, "big")]
    writer_of(OFFSET_VALUE.at(version))(out, value)
    return b"".join(out)


@settings(max_examples=drawn(50), deadline=None)
@given(st.lists(st.tuples(values, st.integers(0, 4)), min_size=1, max_size=20))
def test_values_of_every_version_are_read_as_the_general_reader_reads_them(given_values):
    """VT of section 3: versions 0 to 4, with and without metadata and a topic's id."""
    raw = [value_bytes(version, value) for value, version in given_values]

    found = offset_values(pa.array(raw, pa.binary()), np.arange(len(raw)))

    assert found.offset.tolist() == [value.offset for value, _ in given_values]
    assert found.at_ms.tolist() == [value.commit_timestamp for value, _ in given_values]
    epochs = [value.leader_epoch if version >= 3 else -1 for value, version in given_values]
    assert found.leader_epoch.tolist() == epochs
    data = b"".join(raw)
    texts_read = [
        data[at : at + size] for at, size in zip(found.metadata_at, found.metadata_size, strict=True)
    ]
    assert texts_read == [value.metadata.encode() for value, _ in given_values]


@pytest.mark.parametrize("size", range(24))
def test_a_value_that_is_cut_is_corrupt(size: int):
    whole = value_bytes(4, OffsetCommitValue(7, 0, "", 1000, -1, UUID(int=5)))

    with pytest.raises(Corrupt):
        offset_values(pa.array([whole, whole[:size]], pa.binary()), np.arange(2))


@st.composite
def logs(draw):
    """A log of a few groups: commits in any order of time, generations among them."""
    records = []
    for _ in range(draw(st.integers(1, 30))):
        group = draw(st.sampled_from(("a", "b")))
        at_ms = draw(st.integers(0, 40)) * 1_000_000 + 1_760_000_000_000
        if draw(st.integers(0, 9)) == 0:
            value = GroupMetadataValue("consumer", len(records) + 1, None, None, at_ms)
            records.append((at_ms, *group_metadata_record(GroupMetadataKey(group), value)))
            continue
        key = OffsetCommitKey(group, draw(st.sampled_from(("t", "u"))), draw(st.integers(0, 1)))
        commit = OffsetCommitValue(draw(st.integers(0, 100)), 0, "", at_ms)
        records.append((at_ms, *offset_commit_record(key, commit if draw(st.booleans()) else None)))
    size = draw(st.integers(1, 7))
    return records, size


def written(folder: Path, records, size: int) -> bytes:
    batches = []
    for first in range(0, len(records), size):
        rows = [Record(first + place, *row) for place, row in enumerate(records[first : first + size])]
        batches.append(build_batch(rows, base_offset=first))
    target = folder / "__consumer_offsets-0"
    target.mkdir(exist_ok=True)
    (target / f"{0:020d}.log").write_bytes(b"".join(batches))
    return b"".join(batches)


@settings(max_examples=20, deadline=None)
@given(logs())
def test_runs_made_in_columns_are_those_made_one_by_one(tmp_path_factory, log):
    folder = tmp_path_factory.mktemp("log")
    data = written(folder, *log)
    one_by_one = {run for group in groups_of(entries_of([data])) for run in group.runs}

    rows = pa.Table.from_batches(list(events_of_units(units(folder)))).to_pylist()

    names = (
        [name for name in type(next(iter(one_by_one)))._fields if name != "topic_id"] if one_by_one else []
    )
    in_columns = {tuple(row[name] for name in names) for row in rows if row["kind"] == -1}
    assert in_columns == {tuple(getattr(run, name) for name in names) for run in one_by_one}
    assert sum(row["kind"] != -1 for row in rows) == sum(
        len(g.entries) for g in groups_of(entries_of([data]))
    )


@settings(max_examples=drawn(50), deadline=None)
@given(logs())
def test_runs_that_go_on_from_batch_to_batch_are_those_made_one_by_one(log):
    records, size = log
    schema = pa.schema(
        [("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()), ("timestamp", TIMESTAMP)]
    )
    rows = [(key, value, place, at_ms * 1000) for place, (at_ms, key, value) in enumerate(records)]
    batches = [
        pa.RecordBatch.from_arrays([*map(pa.array, zip(*some, strict=True), schema.types)], schema=schema)
        for some in (rows[first : first + size] for first in range(0, len(rows), size))
    ]
    data = build_batch([Record(place, *row) for place, row in enumerate(records)])

    found = pa.Table.from_batches(list(events_of_records(batches))).to_pylist()

    assert {tuple(row[name] for name in Run._fields) for row in found if row["kind"] == -1} == {
        run for group in groups_of(entries_of([data])) for run in group.runs
    }


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_a_group_s_epoch_is_how_many_other_records_it_had_before(numbers):
    groups, marks = [0, 0, 1, 1, 2, 2], [True, False] * 3
    counted, seen = np.array([5, 0, 0]), [5, 0, 0]
    epochs = []
    for number in numbers:
        epochs.append(seen[groups[number]])
        seen[groups[number]] += marks[number]

    found = epochs_table(np.array(numbers), np.array(groups), np.array(marks), counted)

    assert found.tolist() == epochs
    assert counted.tolist() == seen


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")
def test_what_is_told_in_columns_of_the_captures_is_what_is_told_one_by_one():
    found = sorted(histories_told(units(CAPTURES)))

    assert [one.group_id for one in found] == ["audit", "billing", "nextgen", "shipping", "storm"]
    assert found == [captured_history(one.group_id) for one in found]


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")
def test_all_commits_are_in_their_table():
    commits = pa.Table.from_batches(list(commits_of_units(units(CAPTURES))))

    assert commits.num_rows == 8915
    assert set(commits["topic"].unique().to_pylist()) == {"orders"}


def histories_told(some):
    for batch in histories_of_units(some):
        yield from histories_in(batch.to_pylist()[0])


MEMBERS = ("a/1", "a/2", "b/1", "c@i1/1", "c@i1/2", "d@i2/1")


@st.composite
def tales(draw):
    """A group with any members and shares, cooperative or not, that commits now and then."""
    tale = Tale(cadence_ms=draw(st.sampled_from((500, 3_000))))
    at_ms = 1_760_000_000_000
    for _ in range(draw(st.integers(1, 6))):
        members = draw(st.lists(st.sampled_from(MEMBERS), unique=True, max_size=4))
        shares = {name: sorted(draw(st.sets(st.integers(0, 4)))) for name in members}
        owned = {
            name: draw(st.lists(st.sampled_from(some), unique=True)) for name, some in shares.items() if some
        }
        stamped_ms = at_ms - draw(st.sampled_from((0, 0, 0, 1, 5_000, 10**9)))  # clocks are set back
        tale.formed(
            stamped_ms,
            shares,
            owned=owned if draw(st.booleans()) else None,
            again=draw(st.integers(0, 9)) == 9,
        )
        busy = draw(st.lists(st.integers(0, 4), unique=True, max_size=4))
        for _ in range(draw(st.integers(0, 2))):
            until_ms = at_ms + draw(st.integers(0, 40)) * 1_000
            tale.commit(at_ms, until_ms, *busy)
            if busy and draw(st.booleans()):  # it hung, and commits once more what it had
                until_ms += draw(st.integers(1, 30)) * 1_000
                again = tale.commits[-1]._replace(place=tale.place, at_ms=until_ms)
                tale.commits.append(again)
                tale.place += 1
            at_ms = until_ms + draw(st.integers(1, 90)) * 1_000
        at_ms += 1_000
        if draw(st.integers(0, 9)) == 9:
            tale.gone(at_ms - 500)
    return tale


@settings(max_examples=drawn(150), deadline=None)
@given(st.lists(tales(), min_size=1, max_size=3))
def test_groups_told_together_in_columns_are_those_told_one_by_one(some):
    logs = [(f"g{number}", tale) for number, tale in enumerate(some)]

    (batch,) = packed_histories(pa.Table.from_batches([events_of(*log) for log in logs]).to_batches())

    found = {one.group_id: one for one in histories_in(batch.to_pylist()[0])}
    for name, tale in logs:
        assert found.get(name, History(name)) == history_of(name, tale.entries, tale.runs)


def test_what_several_coordinators_tell_of_a_group_is_put_in_the_order_of_time():
    first, second, third = (told(number, ["member-joined"], a=[0]) for number in (1, 2, 3))

    def lines(*values: bytes) -> dict[str, pa.Array]:
        keys = pa.array([b"g"] * len(values), pa.binary())
        return {"key": keys, "value": pa.array(values, pa.binary()), "offset": pa.array(range(len(values)))}

    by_partition = [*events_of_story([lines(third)], 0), *events_of_story([lines(first, second)], 1)]
    live = pa.RecordBatch.from_pydict(lines(third, first, second) | {"partition": pa.array([0, 1, 1])})

    for events in (by_partition, [*events_of_story([live])]):
        (batch,) = packed_histories(pa.Table.from_batches(events).sort_by(ORDER).to_batches())
        ((history,),) = (tuple(histories_in(row)) for row in batch.to_pylist())
        assert [(one.generation, one.formed_at) for one in history.generations] == [
            (1, 1_100), (2, 2_100), (3, 3_100)
        ]  # fmt: skip


gaps_ms = st.sampled_from((0, 500, 1_000, 1_000, 1_000, 1_000, 3_000, 5_000, 12_000, 60_000))


@settings(max_examples=drawn(200), deadline=None)
@given(st.lists(st.lists(st.tuples(gaps_ms, st.integers(0, 900), st.booleans()), min_size=1), min_size=1))
def test_the_silences_found_in_columns_are_those_found_partition_by_partition(partitions):
    """A commit after each gap, of so many records; some begin a run."""
    runs = [list(runs_of(commits_after(steps))) for steps in partitions]
    rows = [run for mine in runs for run in mine]
    columns = [np.array([getattr(run, name) for run in rows], np.int64) for name in RunColumns._fields]
    begins = np.array([place == 0 for mine in runs for place in range(len(mine))])

    found = [silence for _, silence in silences_in(RunColumns(*columns), begins)]

    assert found == [silence for mine in runs for silence in silences(mine)]


def commits_after(steps) -> Iterator[Commit]:
    at_ms, offset, epoch = 0, 0, 0
    for place, (gap_ms, records, begins_a_run) in enumerate(steps):
        at_ms, offset, epoch = at_ms + gap_ms, offset + records, epoch + begins_a_run
        yield Commit(place, at_ms, "t", 0, offset, epoch)


def events_of(name: str, tale: Tale) -> pa.RecordBatch:
    """Return a tale as the events of a group."""
    key = GroupMetadataKey(name)
    entries = [(one.place, one.at_ms, *group_metadata_record(key, one.value)) for one in tale.entries]
    rows = [
        {"kind": 2, "place": place, "at_ms": at_ms, "key": key, "value": value}
        for place, at_ms, key, value in entries
    ]
    rows += [{"kind": -1, **run._asdict()} for run in tale.runs]
    rows.sort(key=lambda row: row["place"])
    return pa.RecordBatch.from_pylist([{"group_id": name, **row} for row in rows], schema=EVENTS)


def test_a_directory_without_the_topic_is_an_error_that_says_what_to_give(tmp_path: Path):
    with pytest.raises(CoterieError, match=r"log\.dirs"):
        units(tmp_path)


def test_a_large_partition_is_read_by_several_tasks(tmp_path: Path):
    folder = tmp_path / "__consumer_offsets-0"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number:020d}.log").write_bytes(b"x" * 10)

    found = units(tmp_path, task_bytes=20)

    assert [(len(one.paths), len(one.later)) for one in found] == [(2, 2), (2, 0)]


def test_units_are_shared_out_by_size_so_that_all_tasks_end_together():
    found = [Unit("__consumer_offsets", number, (), (), size) for number, size in enumerate((9, 5, 4, 2, 1))]

    shares = shared_out(found, 2)

    assert [sum(unit.size for unit in share) for share in shares] == [11, 10]
    assert [len(share) for share in shared_out(found, 8)] == [1] * 5


def test_every_column_of_a_table_is_a_field_of_its_row():
    names = [column.name for column in COLUMNS["ownership"]]

    assert len(names) == len(Ownership._fields)
    assert {"owner", "from", "to"} < set(names)
