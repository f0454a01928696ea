"""Compactions over the database in memory: each statement of one takes effect by itself, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coterie.storage.remote.compaction import (
    Compacted,
    CompactedTo,
    CompactionWanted,
    RowsReplaced,
    SpansWanted,
    Statement,
    Statements,
    compaction,
)
from coterie.storage.remote.pretended import (
    ANSWERED_WITHIN_MS,
    OTHER_HISTORY,
    REFUSED_MS,
    PretendedEngine,
    Tables,
)
from coterie.storage.remote.session import Broken, Failed


class PretendedCompactor:
    """The `Compactor` of a broker."""

    def __init__(self, engine: PretendedEngine, broker_id: int) -> None:
        self._engine, self._broker_id = engine, broker_id

    def compact(
        self, wanted: CompactionWanted, done: Callable[[Compacted | Broken], None], *, history: str
    ) -> None:
        self._go_on(compaction(wanted), None, done, history)

    def _go_on(
        self, statements: Statements, answer: Any, done: Callable[[Compacted | Broken], None], history: str
    ) -> None:
        engine = self._engine
        try:
            statement = statements.send(answer)
        except StopIteration as ended:
            done(ended.value)
            return
        if engine.history != history:
            engine.later(REFUSED_MS, lambda: done(Broken(OTHER_HISTORY)))
            return

        def failed(why: Failed | Broken) -> None:
            connection.abandon()
            done(why if isinstance(why, Broken) else Broken(f"{why.sqlstate} {why.message}".rstrip()))

        def answered(result: Any) -> None:
            connection.abandon()
            self._go_on(statements, result, done, history)

        connection = engine.connect(lambda reason: None)
        connection.execute(
            _name_of(statement),
            partial(carry_out, engine.tables, self._broker_id, statement),
            answered,
            failed,
            within_ms=ANSWERED_WITHIN_MS,
        )


def _name_of(statement: Statement) -> str:
    if isinstance(statement, RowsReplaced):
        return "replace-rows"
    return "save-compacted" if isinstance(statement, CompactedTo) else "read-to-compact"


def carry_out(tables: Tables, broker_id: int, statement: Statement) -> Any:
    """Return the answer to a statement of a broker's compaction, as it takes effect."""
    if isinstance(statement, RowsReplaced):
        return tables.leads(broker_id, *statement.leads) and _replace(tables, statement)
    if isinstance(statement, CompactedTo):
        return tables.leads(broker_id, *statement.leads) and _save(tables, statement)
    if isinstance(statement, SpansWanted):
        spans = [span for row in tables.rows(statement.partition_id) for span in row.aborted]
        return [span for span in spans if span.first_offset < statement.end_offset]
    return tables.read_rows(statement)


def _replace(tables: Tables, statement: RowsReplaced) -> bool:
    partition_id = statement.leads.partition_id
    for place in statement.old:
        row = tables.chunks.get((partition_id, place.base_offset))
        if row is None or (row.base_offset, row.last_offset, len(row.data)) != place:
            return False
    kept = {row.base_offset for row in statement.new}
    tables.take_out([(partition_id, one.base_offset) for one in statement.old if one.base_offset not in kept])
    for row in statement.new:
        tables.journal.put(tables.chunks, row.key, row)
    return True


def _save(tables: Tables, statement: CompactedTo) -> bool:
    partition_id, upto = statement.leads.partition_id, statement.upto
    if upto > tables.compacted_to.get(partition_id, 0):
        tables.journal.put(tables.compacted_to, partition_id, upto)
    return True
