"""What was fetched as one Arrow table. Imported when somebody asks for columns: it needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.client.consumer.fetch_state import FetchedFrom
from coterie.client.errors import MissingLibrary

if TYPE_CHECKING:
    import pyarrow as pa

END = 2**63 - 1


def table_of(taken: Sequence[FetchedFrom]) -> pa.Table:
    """Return all records from those offsets on, in the columns of Spark's Kafka source with headers."""
    try:
        from coterie.arrow.plan import (
            plan,
        )
        from coterie.arrow.records import (
            decoder,
            record_batches,
            table,
        )

        decoder()
    except ImportError as error:
        raise MissingLibrary(
            f"columns need pyarrow, numpy and numba ({error}); pip install 'coterie[spark]'"
        ) from None
    batches: list[pa.RecordBatch] = []
    for state, first, fetched in taken:
        planned = plan(fetched.records, first=first, until=END, aborted=fetched.aborted)
        topic, partition = state.at
        batches += record_batches(planned, topic=topic, partition=partition, headers=True)
    return table(batches, headers=True)
