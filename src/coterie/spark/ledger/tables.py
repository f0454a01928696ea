"""Which Delta Lake tables a ledger writes to: those that forget nothing, and where adding files is enough.

A commit of files is taken by the library as it is. What a table asks of its writers beyond that would be
broken in silence, so such a table is refused.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from coterie.base.errors import CoterieError

RECORD_COLUMNS = ("topic", "partition", "offset")

# What writers may have to know of; of these, nothing is asked of who only adds files, or what is asked
# is looked for below.
KNOWN_FEATURES = {
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "domainMetadata",
    "generatedColumns", "identityColumns", "invariants", "timestampNtz", "v2Checkpoint",
    "vacuumProtocolCheck", "variantType",
}  # fmt: skip
RETENTION, MAPPING, CONSTRAINT = (
    "delta.setTransactionRetentionDuration",
    "delta.columnMapping.mode",
    "delta.constraints.",
)
OURS, NO_ENGINE = "delta-rs", "unnamed"
"""Who has committed, by the log; and what is said where it does not say."""
MADE_BY_WRITERS = ("delta.invariants", "delta.generationExpression", "delta.identity.")


class LedgerError(CoterieError):
    """What should be written cannot be accounted for. Says why, and what to do."""


def refuse_other_writers(
    uri: str, options: Mapping[str, str], commits: Iterable[Mapping[str, Any]], allowed: Sequence[str]
) -> None:
    """Raise LedgerError if one of these commits is another engine's, on S3, and that engine is not allowed.

    Delta Lake's own connectors write their log there without a condition: they may overwrite a commit of the
    ledger's. A locking provider keeps them from it, if they have the same.
    """
    locked = any(name.lower() == "aws_s3_locking_provider" for name in options)
    if not uri.startswith(("s3://", "s3a://")) or locked:
        return
    engines = {str(one.get("engineInfo") or NO_ENGINE) for one in commits}
    found = sorted(one for one in engines if not one.startswith((OURS, *allowed)))
    if found:
        name = re.split("[/:]", found[0])[0]
        raise LedgerError(
            f"table {uri}: {found[0]} has committed to it. On S3 other engines than deltalake may not ask"
            " whether their log entry is there already, and can overwrite a commit of the ledger's, rows and"
            " account: let it write, OPTIMIZE and VACUUM included, only while no ledger does. Where that is"
            " so, or it writes by conditional requests, allow it by name: Ledger(…,"
            f" other_writers=[{name!r}]). Nothing of this batch is written"
        )


def refuse_table(uri: str, table: Any, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise LedgerError if rows of this schema, in files that are parted so, cannot be added to the table."""
    why = next(reasons(table, schema, partition_by), None)
    if why is not None:
        raise LedgerError(f"table {uri} {why}")


def reasons(table: Any, schema: pa.Schema, partition_by: Sequence[str]) -> Iterator[str]:
    """Yield why not."""
    metadata = table.metadata()
    if [*metadata.partition_columns] != [*partition_by]:
        there, ours = (", ".join(each) or "nothing" for each in (metadata.partition_columns, partition_by))
        yield f"is partitioned by {there}, and this batch's files by {ours}: it was made anew. Start again"
    yield from property_reasons(metadata.configuration)
    unknown = sorted({*(table.protocol().writer_features or ())} - KNOWN_FEATURES)
    if unknown:
        yield f"has features that the ledger does not know: {', '.join(unknown)}"
    yield from column_reasons(table, schema)


def property_reasons(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield a reason for each of the table's properties that forbids it."""
    if RETENTION in settings:
        yield (
            f"has {RETENTION}={settings[RETENTION]}: it would forget how far each Kafka partition is in it."
            " Unset that property"
        )
    if settings.get(MAPPING, "none") != "none":
        yield f"has {MAPPING}={settings[MAPPING]}, and the ledger writes columns by their own names"
    constraints = [name.removeprefix(CONSTRAINT) for name in settings if name.startswith(CONSTRAINT)]
    if constraints:
        yield f"has constraints, which the ledger does not check: drop {', '.join(constraints)}"


def column_reasons(table: Any, schema: pa.Schema) -> Iterator[str]:
    """Yield a reason for each of the rows' columns that is not as the table's; rows may be without some."""
    from deltalake import Schema

    there = {one.name: one for one in table.schema().fields}
    ours = {one.name: one for one in Schema.from_arrow(schema).fields}
    for name, one in ours.items():
        if name not in there:
            yield (
                f"has no column {name}: have it added (Ledger(…, merge_schema=True)), or leave it out of"
                " the query"
            )
        elif one.type != there[name].type:
            yield f"has a column {name} of another type: {there[name].type}, and the query's is {one.type}"
    for name, one in there.items():
        if not one.nullable and name not in RECORD_COLUMNS:
            yield f"demands values in column {name}, which the ledger does not check"
        if any(mark.startswith(MADE_BY_WRITERS) for mark in one.metadata):
            yield f"has a column {name} that is made or checked by writers, which the ledger does not do"
