"""`python -m coterie.arrow.precompile` compiles what Spark's workers run, for an image or an archive.

numba keeps the machine code beside the package; an executor then loads it, where it would compile for seconds
first. It fits the processor that it was made on, and one that has all of its instructions.
"""

import sys

import pyarrow as pa

from coterie.arrow.kernel import PACKAGED
from coterie.arrow.outgoing import HEADERS, Rows, pack
from coterie.arrow.plan import plan
from coterie.arrow.records import record_batches
from coterie.wire.records.batches import Record, build_batch


def precompile() -> None:
    """Have both kernels run once, with each kind of column: that compiles them and keeps the code."""
    whole = build_batch([Record(0, 0, b"key", b"value", (("name", b"tag"),))])
    planned = plan(whole, first=0, until=1)
    for headers in (False, True):
        (read,) = record_batches(planned, topic="topic", partition=0, headers=headers)
        assert read.num_rows == 1
    rows = Rows(
        value=pa.array([b"value"]),
        key=pa.array([b"key"]),
        headers=pa.array([[("name", b"tag")]], HEADERS),
        stamps=pa.array([0], pa.int64()),
    )
    (written,) = pack(rows, partitions=1, most_bytes=1, now_ms=0)
    assert written.records == 1


def main() -> None:
    """Compile, or end with a sentence where nothing can be kept."""
    precompile()
    kept = list(PACKAGED.glob("*.nbi"))
    if not kept:
        sys.exit(f"nothing is kept in {PACKAGED}: run this while the environment can be written to")
    print(f"compiled: {len(kept)} functions are kept in {PACKAGED}")


if __name__ == "__main__":
    main()
