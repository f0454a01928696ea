"""How logs are opened, asked of the database in memory and of PostgreSQL alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.postgres.reading import FEW_BYTES
from coterie.storage.remote.reading import (
    DeletedRow,
    LogLed,
    LogWanted,
    RemoteReader,
    RetainedLog,
    RetentionWanted,
    RowHeads,
    RowsWanted,
    SizeWanted,
    StartWanted,
    StoredLog,
    StoredRows,
    StoredSize,
)
from coterie.storage.remote.session import Broken
from coterie.wire.records.batches import HEADER_SIZE

from .rigs.lane_places import (
    ANSWERED_WITHIN_S,
    Asking,
    LaneDatabase,
    Play,
    a_chunk,
    joined,
    joined_heads,
    whole,
)


async def read(
    database: LaneDatabase,
    *wanted: tuple[int, ...],
    reader: RemoteReader | None = None,
    history: str = "",
    first: bool = False,
) -> dict[int, StoredLog] | Broken:
    """Return the logs by partition id, or the `first` of them, as they come."""
    reader = reader or database.reader()
    answered: asyncio.Future[list[StoredLog] | Broken] = asyncio.get_running_loop().create_future()
    asked = [LogWanted(*one) for one in wanted]
    reader.read_logs(asked, answered.set_result, history=history or database.history)  # type: ignore[arg-type]
    assert not answered.done()
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        logs = await answered
    if isinstance(logs, Broken):
        return logs
    expected = [partition for partition, *_ in wanted]
    assert [log.partition_id for log in logs] == (expected[: len(logs)] if first else expected)
    return {log.partition_id: whole(log) for log in logs}


async def one_of(database: LaneDatabase, partition: int, epoch: int) -> StoredLog:
    """Return one log."""
    logs = await read(database, (partition, epoch))
    assert not isinstance(logs, Broken)
    return logs[partition]


async def save(
    database: LaneDatabase, *wanted: tuple[int, int, int], history: str = ""
) -> Sequence[int] | Broken:
    """Write down where logs start, each in a leader epoch; return the partitions that have a later one."""
    answered: asyncio.Future[Sequence[int] | Broken] = asyncio.get_running_loop().create_future()
    starts = [StartWanted(*one) for one in wanted]
    database.reader().save_starts(starts, answered.set_result, history=history or database.history)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        return await answered


async def lacking(database: LaneDatabase, *led: tuple[int, ...], history: str = "") -> Sequence[int] | Broken:
    """Return the partitions that lack an epoch, or a compaction."""
    answered: asyncio.Future[Sequence[int] | Broken] = asyncio.get_running_loop().create_future()
    asked = [LogLed(*one) for one in led]
    database.reader().find_lacking(asked, answered.set_result, history=history or database.history)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        return await answered


def test_an_epoch_begins_where_each_log_ends_and_all_of_it_is_read(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        rows = [a_chunk(0, 2), a_chunk(3, 9), a_chunk(0, partition=2)]
        await lane.reopen(1)
        await lane.append(1, *rows)
        logs = await read(database, (2, 4), (1, 5), (3, 6))
        assert logs == {
            1: StoredLog(1, 0, 10, [(5, 10)], joined(rows[:2]), []),
            2: StoredLog(2, 0, 1, [(4, 1)], rows[2:], []),
            3: StoredLog(3, 0, 0, [(6, 0)], [], []),
        }

    play(scene)


def test_of_older_rows_the_heads_are_read_and_of_the_newest_so_much_data_as_is_wanted(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        rows = [a_chunk(base) for base in range(5)]  # of one byte each
        older = [RowHeads(row.base_offset, row.last_offset, 3, 1, row.heads) for row in rows]
        await lane.reopen(1)
        await lane.append(1, *rows)
        for data_bytes in range(7):
            logs = await read(database, (1, 4, data_bytes), (2, 4))
            assert not isinstance(logs, Broken)
            first = max(0, 5 - data_bytes)
            assert (logs[1].older, logs[1].chunks) == (joined_heads(older[:first]), joined(rows[first:]))

    play(scene)


def test_long_logs_are_read_whole_among_short_ones(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        many = [a_chunk(base)._replace(data=b"x" * (FEW_BYTES // 5)) for base in range(3)]
        few = [a_chunk(base, partition=2) for base in range(3)]
        await lane.reopen(1)
        await lane.append(1, *many, *few)
        wanted, found = [(2, 4), (1, 4), (3, 4)], {}
        reader = database.reader()
        while wanted:
            logs = await read(database, *wanted, reader=reader, first=True)
            assert not isinstance(logs, Broken)
            assert logs
            wanted = wanted[len(logs) :]
            found |= {partition: (log.older, log.chunks) for partition, log in logs.items()}
        assert found == {1: ([], joined(many)), 2: ([], joined(few)), 3: ([], [])}

    play(scene)


def test_an_epoch_that_has_begun_stays_where_it_has_and_none_begins_behind_a_later_one(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await read(database, (1, 4))
        await lane.reopen(1)
        await lane.append(1, a_chunk(0, 2))
        again = await one_of(database, 1, 4)
        assert (again.end_offset, again.epochs) == (3, [(4, 0)])
        assert sorted((await one_of(database, 1, 6)).epochs) == [(4, 0), (6, 3)]
        late = await one_of(database, 1, 5)
        assert (sorted(late.epochs), late.newest_epoch) == ([(4, 0), (6, 3)], 6)

    play(scene)


def test_it_is_known_which_epochs_have_not_begun_and_which_compactions_are_lacking(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await read(database, (1, 4), (2, 6))
        assert await lacking(database, (3, 1), (1, 4), (2, 5)) == [2, 3]
        assert await lacking(database, (1, 4, 0), (2, 6, 1)) == [2]
        assert await lacking(database) == []

    play(scene)


def test_a_start_moves_up_and_never_back_and_the_row_that_holds_it_is_read(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        rows = [a_chunk(0, 1), a_chunk(2, 3), a_chunk(4, 5)]
        await lane.reopen(1)
        await lane.append(1, *rows)
        assert await save(database, (1, 1, 3), (2, 1, 7)) == []
        assert await save(database, (1, 1, 1)) == []
        log = await one_of(database, 1, 1)
        assert (log.start_offset, log.chunks) == (3, joined(rows[1:]))
        assert (await one_of(database, 2, 1)).start_offset == 7

    play(scene)


def test_a_start_is_not_moved_by_who_led_in_an_earlier_epoch(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0, 4), a_chunk(0, 4, partition=2), a_chunk(0, 4, partition=3))
        await read(database, (1, 4), (2, 4), (3, 4))
        await read(database, (1, 5), (3, 6))
        assert await save(database, (3, 4, 2), (2, 4, 2), (1, 4, 2)) == [1, 3]
        assert [(await one_of(database, number, 9)).start_offset for number in (1, 2, 3)] == [0, 2, 0]

    play(scene)


def test_a_database_of_another_history_is_not_asked(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        reader = database.reader()
        assert isinstance(await read(database, (1, 4), reader=reader, history="another"), Broken)
        assert isinstance(await save(database, (1, 1, 3), history="another"), Broken)
        assert isinstance(await lacking(database, (1, 4), history="another"), Broken)
        assert await read(database, (1, 3), reader=reader) == {1: StoredLog(1, 0, 0, [(3, 0)], [], [])}

    play(scene)


def test_any_number_of_questions_are_under_way_and_each_is_answered(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        reader = database.reader()
        asked = [read(database, (number, 4), reader=reader) for number in range(9)]
        answers = await asyncio.gather(*asked)
        assert [[*one] for one in answers if not isinstance(one, Broken)] == [[number] for number in range(9)]

    play(scene)


def test_a_reader_goes_on_after_its_connection_has_ended(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        reader = database.reader()
        await read(database, (1, 4), reader=reader)
        await database.end_connections()
        logs = await read(database, (1, 5), reader=reader)
        if isinstance(logs, Broken):  # it was sent before the end was noticed
            logs = await read(database, (1, 5), reader=reader)
        assert not isinstance(logs, Broken)
        assert logs[1].newest_epoch == 5

    play(scene)


async def recall(
    database: LaneDatabase, offset: int, end_offset: int, reader: RemoteReader | None = None, **terms: Any
) -> list[int]:
    """Return the first offsets of the rows that are read."""
    rows = (await recall_all(database, offset, end_offset, reader, **terms)).chunks
    there = {row.base_offset: row for row in await database.rows(1)}
    assert all(row == there[row.base_offset] for row in rows)
    return [row.base_offset for row in rows]


async def recall_all(
    database: LaneDatabase, offset: int, end_offset: int, reader: RemoteReader | None = None, **terms: Any
) -> StoredRows:
    """Return the rows that are read, and what was aborted of them."""
    answered: asyncio.Future[StoredRows | Broken] = asyncio.get_running_loop().create_future()
    wanted = RowsWanted(1, offset, end_offset, **terms)
    (reader or database.reader()).read_rows(wanted, answered.set_result, history=database.history)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        rows = await answered
    assert not isinstance(rows, Broken)
    return rows


def test_rows_are_read_from_the_one_that_holds_an_offset_or_comes_after_it(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0, 2), a_chunk(3, 4), a_chunk(7, 9), a_chunk(0, 9, partition=2))
        reader = database.reader()
        found = [await recall(database, offset, 10, reader, max_bytes=99) for offset in range(10)]
        assert found == [[0, 3, 7]] * 3 + [[3, 7]] * 2 + [[7]] * 5
        assert await recall(database, 0, 7, reader, max_bytes=99) == [0, 3]
        assert await recall(database, 8, 7, reader, max_bytes=99) == []

    play(scene)


def test_so_many_rows_are_read_as_it_takes_to_have_so_many_bytes(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, *[a_chunk(base) for base in range(5)])  # of one byte each
        reader = database.reader()
        found = [await recall(database, 1, 9, reader, max_bytes=size) for size in (0, 1, 2, 3, 9)]
        assert found == [[1], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]

    play(scene)


def test_rows_are_read_by_the_time_of_their_youngest_record(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        rows = [a_chunk(place)._replace(max_timestamp=time) for place, time in enumerate((5, 9, 7, 9, 8))]
        await lane.append(1, *rows)
        reader = database.reader()
        assert await recall(database, 0, 9, reader, since_ms=6) == [1]
        assert await recall(database, 2, 9, reader, since_ms=8, max_bytes=9) == [3, 4]
        assert await recall(database, 0, 9, reader, since_ms=10) == []

    play(scene)


def test_the_youngest_rows_are_read_by_their_times_but_those_without_a_record(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        times, empty, size = (5, 9, 7, 9, 8, 9, -1), 3, HEADER_SIZE + 1
        rows = [
            a_chunk(place)._replace(max_timestamp=time, data=bytes(size - (place == empty)))
            for place, time in enumerate(times)
        ]
        await lane.append(1, *rows)
        reader = database.reader()

        async def youngest(offset: int, end_offset: int, **terms: Any) -> list[int]:
            return await recall(database, offset, end_offset, reader, youngest=True, **terms)

        assert await youngest(0, 9, max_bytes=9 * size) == [1, 5, 4, 2, 0, 6]
        assert await youngest(0, 9, max_bytes=9 * size, since_ms=8) == [1, 5, 4]
        assert [await youngest(0, 9, max_bytes=size * count) for count in (0, 1, 2)] == [[1], [1], [1, 5]]
        assert await youngest(2, 5, max_bytes=9 * size) == [4, 2]
        assert await youngest(3, 4) == []
        found = [await youngest(0, 9, after=(times[place], place)) for place in (1, 5, 4, 2, 0, 6)]
        assert found == [[5], [4], [2], [0], [6], []]

    play(scene)


def test_with_rows_come_the_aborted_transactions_of_which_they_have_records(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        spans = [
            AbortedSpan(7, 1, 3, 0),
            AbortedSpan(8, 0, 4, 5),
            AbortedSpan(7, 6, 8, 6),
            AbortedSpan(9, 6, 9, 10),
        ]
        markers = {span.last_offset: (span,) for span in spans}
        await lane.reopen(1)
        await lane.append(1, *[a_chunk(at)._replace(aborted=markers.get(at, ())) for at in range(12)])
        await lane.append(1, a_chunk(0, partition=2)._replace(aborted=(AbortedSpan(5, 0, 0, 0),)))
        reader = database.reader()

        async def aborted(offset: int, rows: int, **terms: int) -> list[int]:
            found = await recall_all(database, offset, 12, reader, max_bytes=rows, **terms)
            return [spans.index(span) for span in found.aborted]

        assert [await aborted(0, rows) for rows in (1, 2, 6, 7, 12)] == [
            [1],
            [0, 1],
            [0, 1],
            [0, 1, 2, 3],
            [0, 1, 2, 3],
        ]
        assert [await aborted(offset, 1) for offset in (3, 4, 5, 6, 8, 9, 10)] == [
            [0, 1],
            [1],
            [],
            [2, 3],
            [2, 3],
            [3],
            [],
        ]
        assert await aborted(0, 12, since_ms=0) == await aborted(0, 1, youngest=True) == []

    play(scene)


def test_rows_are_read_while_logs_are_opened(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0, 2))
        reader = database.reader()
        _, rows = await asyncio.gather(
            read(database, (1, 4), reader=reader), recall(database, 0, 3, reader, max_bytes=1)
        )
        assert rows == [0]

    play(scene)


async def retain(
    database: LaneDatabase,
    reader: RemoteReader,
    *,
    epoch: int = 4,
    start: int = 0,
    end: int = 99,
    **terms: int,
) -> RetainedLog:
    """Have partition 1 start behind what it need not keep; return where, and how old the next row is."""
    answered: asyncio.Future[RetainedLog | Broken] = asyncio.get_running_loop().create_future()
    limits = {"before_ms": -1, "surplus_bytes": -1, **terms}
    wanted = RetentionWanted(1, epoch, start, end, **limits)
    reader.retain(wanted, answered.set_result, history=database.history)
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        answer = await answered
    assert not isinstance(answer, Broken)
    return answer


async def delete(database: LaneDatabase, reader: RemoteReader, before: int) -> list[int]:
    """Delete rows of partition 1 that end before an offset, all that may go; return where each ended."""
    deleted: list[int] = []
    while True:
        answered: asyncio.Future[Sequence[DeletedRow] | Broken] = asyncio.get_running_loop().create_future()
        reader.delete_rows(1, before, answered.set_result, history=database.history)
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            answer = await answered
        assert not isinstance(answer, Broken)
        if not answer:
            return sorted(deleted)
        assert {row.size for row in answer} == {1}
        deleted += [row.last_offset for row in answer]


def test_a_log_is_as_large_as_its_rows_before_an_offset_and_those_that_are_compacted(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        rows = [a_chunk(0, 1), a_chunk(2, 9), a_chunk(10, 14), a_chunk(15)]
        rows[2] = rows[2]._replace(heads=b"those of the third")
        await lane.append(1, *rows, a_chunk(0, 99, partition=2))
        reader = database.reader()

        async def measured(*wanted: int) -> tuple[int, int, bytes]:
            answered: asyncio.Future[StoredSize | Broken] = asyncio.get_running_loop().create_future()
            reader.measure(SizeWanted(1, *wanted), answered.set_result, history=database.history)
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                answer = await answered
            assert not isinstance(answer, Broken)
            return tuple(answer)  # type: ignore[return-value]

        sizes = [len(row.data) for row in rows]
        assert sizes == [1, 1, 2, 2]
        assert await measured(0, 16, 0) == (6, 0, b"")
        assert await measured(0, 15, 10) == (4, 2, b"")
        assert await measured(2, 12, 99) == (1, 5, b"those of the third")
        assert await measured(9, 10, 10) == (1, 1, b"")
        assert await measured(16, 16, 0) == (0, 0, b"")

    play(scene)


def test_a_log_starts_behind_rows_that_are_too_old_or_too_much_and_these_are_deleted(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        rows = [a_chunk(place)._replace(max_timestamp=time) for place, time in enumerate((5, 7, 6, -1, 5, 9))]
        await lane.append(1, *rows, a_chunk(0, partition=2))
        reader = database.reader()
        await read(database, (1, 4), reader=reader)
        assert await retain(database, reader) == RetainedLog(0, 5)
        assert await retain(database, reader, before_ms=5) == RetainedLog(0, 5)
        assert await delete(database, reader, 3) == []  # that is not where it starts
        assert await retain(database, reader, before_ms=7) == RetainedLog(1, 7)
        assert await delete(database, reader, 3) == [0]
        assert (await retain(database, reader, epoch=3, start=1, before_ms=8)).start_offset == 1
        assert (await retain(database, reader, start=1, before_ms=8)).start_offset == 3
        assert await retain(database, reader, start=3, before_ms=8) == RetainedLog(3, -1)
        assert await retain(database, reader, start=3, surplus_bytes=2) == RetainedLog(5, 9)
        assert await delete(database, reader, 99) == [1, 2, 3, 4]
        assert (await retain(database, reader, start=5, end=5, before_ms=99)).start_offset == 5
        assert (await retain(database, reader, start=5, before_ms=99)).start_offset == 6
        assert await delete(database, reader, 99) == [5]
        log = await one_of(database, 1, 5)
        assert (log.start_offset, log.end_offset, log.chunks) == (6, 6, [])
        assert len(await database.rows(2)) == 1

    play(scene)


def test_a_log_of_which_an_administrator_has_deleted_all_goes_on_where_it_has_ended(play: Play):
    async def scene(database: LaneDatabase, lane: Asking) -> None:
        await lane.reopen(1)
        await lane.append(1, a_chunk(0, 4))
        assert await save(database, (1, 3, 5)) == []
        assert await delete(database, database.reader(), 5) == [4]
        assert (await one_of(database, 1, 4)).end_offset == 5

    play(scene)
