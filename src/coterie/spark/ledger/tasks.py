"""Who writes and cuts a ledger's files: Spark's tasks; or this process, for rows that come from elsewhere."""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.files import (
    WRITTEN,
    WRITTEN_SCHEMA,
    Offsets,
    TableFiles,
    WrittenFile,
    batches_in,
    rows_where,
)
from coterie.spark.ledger.layout import Layout
from coterie.spark.ledger.location import TableLocation

Writer = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Job = Callable[[bytes], str]


class Tasks(Protocol):
    """Who works on a batch."""

    def write(self, writer: Writer) -> list[WrittenFile]:
        """Have the batch's rows written, and return the files."""

    def each(self, job: Job, asked: Sequence[bytes]) -> list[str]:
        """Have a job done for each that is asked, and return the answers."""


class SparkTasks:
    """The tasks of a batch of Spark's."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def write(self, writer: Writer) -> list[WrittenFile]:
        """Have the batch's rows written, and return the files."""
        return [WrittenFile.read(row.file) for row in self._batch.mapInArrow(writer, WRITTEN).collect()]

    def each(self, job: Job, asked: Sequence[bytes]) -> list[str]:
        """Have a job done for each that is asked, on executors, and return the answers."""

        def done(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for one in batch.column(0).to_pylist():
                    yield pa.RecordBatch.from_pydict({"file": [job(one)]}, WRITTEN_SCHEMA)

        frame = self._batch.sparkSession.createDataFrame([(bytearray(one),) for one in asked], "asked binary")
        return [row.file for row in frame.mapInArrow(done, WRITTEN).collect()]


class OwnTasks:
    """This process, with rows that it has."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def write(self, writer: Writer) -> list[WrittenFile]:
        """Write the rows, and return the files."""
        found = [one for batch in writer(self._rows.to_batches()) for one in batch.column("file").to_pylist()]
        return [*map(WrittenFile.read, found)]

    def each(self, job: Job, asked: Sequence[bytes]) -> list[str]:
        """Do a job for each that is asked, and return the answers."""
        return [*map(job, asked)]


class OffsetRuns(NamedTuple):
    """Offsets, or other numbers, as runs of those that follow each other."""

    firsts: Offsets
    lasts: Offsets

    @classmethod
    def of(cls, offsets: Offsets) -> "OffsetRuns":
        """Return the runs of offsets in any order."""
        ordered = np.unique(offsets)
        breaks = np.flatnonzero(np.diff(ordered) > 1)
        return cls(ordered[np.r_[0, breaks + 1]], ordered[np.r_[breaks, len(ordered) - 1]])

    def have(self, offsets: Offsets) -> Any:
        """Return for each offset whether it is one of these."""
        places = np.searchsorted(self.firsts, offsets, "right") - 1
        return (places >= 0) & (offsets <= self.lasts[places])


class CutOrder(NamedTuple):
    """A file of which a part is to be left out: rows that the table has."""

    file: WrittenFile
    spare: Mapping[TopicPartition, OffsetRuns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutter:
    """Cuts files, where a task runs: few rows are held at once."""

    place: TableLocation
    tag: str
    layout: Layout

    def __call__(self, asked: bytes) -> str:
        """Return the file's path, and the file with the rest of its rows; None if there are none."""
        order: CutOrder = pickle.loads(asked)
        one = order.file
        with TableFiles(self.place, self.tag, self.layout) as files:
            for batch in batches_in(self.place.store(), one.path, one.values, self.layout.schema):
                files.add(batch.filter(pa.array(~spare_in(batch, order.spare))))
        return json.dumps([one.path, next(iter(files.written()), None)])


def spare_in(batch: pa.RecordBatch, spare: Mapping[TopicPartition, OffsetRuns]) -> Any:
    """Return for each row whether it is spare."""
    return rows_where(batch, lambda at, offsets: spare[at].have(offsets) if at in spare else False)


def cut(tasks: Tasks, cutter: Cutter, orders: Sequence[CutOrder]) -> dict[str, WrittenFile | None]:
    """Have files cut; return the rest of each by the path of the whole."""
    answers = tasks.each(cutter, [pickle.dumps(one) for one in orders]) if orders else []
    found = (json.loads(one) for one in answers)
    return {path: None if rest is None else WrittenFile.read(json.dumps(rest)) for path, rest in found}
