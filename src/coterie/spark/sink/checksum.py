"""What a task's rows were, in a few words: by these a replay is told from other rows."""

import base64
import binascii
import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coterie.spark.sink.rows import DEAD_LETTER, columns_by_name, rows_of
from coterie.wire.records.checksum import crc32c

Places = npt.NDArray[np.int64]
NO_PLACES: Places = np.zeros(0, np.int64)
DEAD = " dead "
MOST_SIGNS = 2_000
"""So long a text may be that says which rows were dead letters: a note has room for 4,096 bytes."""
WIDTH = 4


class RowsChecksum:
    """How many rows a task had, and a checksum of their keys and values in order, however they were cut.

    What a dead letter held is left out, and which rows were some is noted: one whose schema the registry did
    not have may be a value when its batch is planned again, and the rows are the same all the same.
    """

    def __init__(self, dead_then: Places = NO_PLACES) -> None:
        """`dead_then` are the places of the rows that were dead letters when they were written."""
        self.rows = 0
        self._dead_then = dead_then
        self._dead: list[Places] = []
        self._sums: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch's rows."""
        rows = rows_of(batch)
        places = self._living(batch)
        self.rows += batch.num_rows
        for name, column in (("key", rows.key), ("value", rows.value)):
            if column is not None and len(column):
                if places is not None:
                    column = column.take(places)  # no bytes beneath a null, as if_else would leave
                sizes = pc.fill_null(pc.binary_length(column), -1)
                self._sum(f"{name} sizes", sizes.buffers()[1].slice(4 * sizes.offset, 4 * len(sizes)))
                self._sum(name, bytes_in(column))

    def _living(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the places to take rows from, null for those that are or were dead letters; None where none
        is. Those that may come to be values are noted: they name a schema.
        """
        letters = columns_by_name(batch).get(DEAD_LETTER)
        if letters is None:
            return None
        dead = np.asarray(letters.is_valid())
        places = self.rows + np.arange(batch.num_rows)
        named = "schemaId" in letters.type.names
        doubtful = dead & np.asarray(letters.field("schemaId").is_valid()) if named else dead
        self._dead.append(places[doubtful])
        left_out = dead | np.isin(places, self._dead_then)
        return pa.array(np.arange(len(dead)), mask=left_out) if left_out.any() else None

    def _sum(self, what: str, data: pa.Buffer) -> None:
        self._sums[what] = crc32c(memoryview(data), self._sums.get(what, 0))

    def __str__(self) -> str:
        summed = repr(sorted(self._sums.items())).encode()
        return f"{self.rows} rows {crc32c(summed):08x}"

    def note(self) -> str:
        """Return the checksum, and which rows were dead letters, if there is room for that."""
        places = np.concatenate([NO_PLACES, *self._dead])
        signs = written_places(places) if len(places) else ""
        return f"{self}{DEAD}{signs}" if 0 < len(signs) <= MOST_SIGNS else str(self)


def read_note(note: str) -> tuple[str, Places]:
    """Return the checksum of a note, and the places of the rows that were dead letters then."""
    checksum, _, signs = note.partition(DEAD)
    return checksum, read_places(signs) if signs else NO_PLACES


def written_places(places: Places) -> str:
    """Return ascending places as a text: how far each is from the one before, byte by byte of all."""
    steps = np.diff(places, prepend=0).astype("<u4").view(np.uint8).reshape(-1, WIDTH)
    return base64.b64encode(zlib.compress(steps.T.tobytes(), 9)).decode()


def read_places(signs: str) -> Places:
    """Return the places of a text; none for one that somebody else has written."""
    try:
        octets = np.frombuffer(zlib.decompress(base64.b64decode(signs, validate=True)), np.uint8)
        steps = np.ascontiguousarray(octets.reshape(WIDTH, -1).T).view("<u4").ravel()
    except (binascii.Error, zlib.error, ValueError):
        return NO_PLACES
    return np.cumsum(steps, dtype=np.int64)


def bytes_in(column: pa.Array) -> pa.Buffer:
    """Return the bytes of all rows of a binary column."""
    _, ends, data = column.buffers()
    bounds = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, ends], offset=column.offset)
    first, last = bounds[0].as_py(), bounds[-1].as_py()
    return pa.py_buffer(b"") if data is None else data.slice(first, last - first)
