"""What if every group had had other settings: replayed on Spark, many groups a task.

found = read_directory(spark, "/var/lib/kafka")
what_if(found, ["group.instance.id=on", "session.timeout.ms=10000|30000"]).show()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_type_hints

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from coterie.simulate.what_if.what_if import Question, WhatIf, answers, questions
from coterie.spark.history.histories import histories_from
from coterie.spark.history.schemas import column
from coterie.spark.history.session import cores
from coterie.spark.history.tables import Histories

COLUMNS = tuple(column(name, name, hint) for name, hint in get_type_hints(WhatIf).items())
SCHEMA = StructType([StructField(one.name, one.spark, True) for one in COLUMNS])
TASKS_A_CORE = 4
"""Groups differ in what their replay costs: so many tasks that all cores end together."""
ROWS_AT_ONCE = 1_000


def what_if(found: Histories, asked: Sequence[str]) -> DataFrame:
    """Return a row for each group and question, and one for each group with its own settings.

    Raises `BadScript` at once for a question that cannot be asked.
    """
    wanted = [question for one in asked for question in questions(one)]
    tasks = TASKS_A_CORE * cores(found.spark)
    return found.sorted_events(tasks).mapInArrow(answering(wanted), SCHEMA)


def answering(
    wanted: Sequence[Question],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a task applies to the events of its groups."""

    def answer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[WhatIf] = []
        for history in histories_from(batches):
            rows += answers(history, wanted)
            if len(rows) >= ROWS_AT_ONCE:
                yield batch_of(rows)
                rows = []
        if rows:
            yield batch_of(rows)

    return answer


def batch_of(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows in columns."""
    values = zip(*rows, strict=True)
    arrays = [pa.array(mine, one.arrow) for one, mine in zip(COLUMNS, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[one.name for one in COLUMNS])
