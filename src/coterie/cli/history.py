"""`coterie history`: what happened to every group, from the segments of `__consumer_offsets`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from coterie.history.tables import Generation, History

__all__ = ["command"]

LINES = 20


@click.command("history")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--parquet", metavar="OUT", help="Write every table into a folder of its own, on Spark.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option("--group", "groups", multiple=True, help="Tell of these groups only; may be repeated.")
@click.option(
    "--last", metavar="N", type=click.IntRange(min=0), default=LINES, show_default=True,
    help="How many rebalances of each group to tell.",
)  # fmt: skip
@click.option(
    "--what-if", "what_if", metavar="SETTINGS", multiple=True,
    help="Replay each group with other settings, as in session.timeout.ms=30000,group.instance.id=on; "
    "may be repeated, and a value may be several: 10000|30000.",
)  # fmt: skip
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)
def command(
    directory: Path,
    parquet: str | None,
    master: str,
    groups: tuple[str, ...],
    last: int,
    what_if: tuple[str, ...],
    output: str,
) -> None:
    """Tell what happened to every group whose log lies in DIRECTORY, a broker's log directory or a copy.

    Reads the segments of __consumer_offsets as Apache Kafka or Coterie write them, where they lie, and
    Coterie's __group_story where it is there; docs/history.md says what is told and how it is inferred.
    """
    if parquet is not None:
        write_parquet(directory, parquet, master, what_if)
        click.echo(f"written: {parquet}", err=True)
        return
    if what_if:
        tell_what_if(directory, groups, what_if, output)
        return
    for history in histories(directory, groups):
        click.echo(document(history) if output == "json" else text(history, last))


def tell_what_if(directory: Path, groups: tuple[str, ...], asked: tuple[str, ...], output: str) -> None:
    """Print what the groups would have come to under other settings."""
    from coterie.cli.what_if import check, lines

    check(asked)
    for line in lines(histories(directory, groups), asked, as_json=output == "json"):
        click.echo(line)


def write_parquet(directory: Path, into: str, master: str, asked: tuple[str, ...] = ()) -> None:
    """Write the tables, on Spark, and what was asked; say what is missing if it cannot be had."""
    from coterie.base.errors import CoterieError
    from coterie.cli.what_if import check

    try:
        from coterie.spark.history import a_session, read_directory
        from coterie.spark.whatif import what_if
    except ImportError:
        raise CoterieError("this needs Spark: pip install coterie[spark], and Java 17 or newer") from None
    check(asked)
    with a_session(master) as spark:
        found = read_directory(spark, directory)
        found.write_parquet(into)
        if asked:
            what_if(found, asked).write.mode("overwrite").parquet(f"{into}/what_if")


def histories(directory: Path, groups: tuple[str, ...]) -> Iterator[History]:
    """Yield the groups' histories, worked out in this process: for a log as one wants to look at it."""
    from coterie.history.group import history_of
    from coterie.history.layout import OFFSETS, STORY, partitions
    from coterie.history.segments import entries_of, groups_of
    from coterie.history.told import overlaid, read_story

    found = list(partitions(directory))
    values: list[bytes] = []
    for one in found:
        if one.topic == STORY:
            values += story_values([path.read_bytes() for path in one.paths])
    told = read_story(values)
    for one in found:
        if one.topic != OFFSETS:
            continue
        for log in groups_of(entries_of([path.read_bytes() for path in one.paths])):
            if not groups or log.group_id in groups:
                yield overlaid(history_of(*log), told.pop(log.group_id, []))


def story_values(segments: list[bytes]) -> Iterator[bytes]:
    """Yield the lines of Coterie's own story."""
    from coterie.history.segments import visible
    from coterie.wire.batches import records_of

    for segment in segments:
        for at, _ in visible(segment, ()):
            yield from (record.value for record in records_of(segment, at) if record.value)


def document(history: History) -> str:
    """Return a history as a line of JSON."""
    tables: dict[str, Any] = {
        name: [row._asdict() for row in rows] if isinstance(rows, tuple) else rows
        for name, rows in history._asdict().items()
    }
    return json.dumps(tables, ensure_ascii=False)


def text(history: History, last: int) -> str:
    """Return a history as people read it."""
    told = history.generations[-last:] if last else ()
    head = (
        f"{history.group_id}: {len(history.generations)} rebalances, {len(history.replacements)} replacements"
    )
    lines = [click.style(head, bold=True), *(line(one) for one in told)]
    lines += [f"  {one.kind}, {stamp(one.from_ms)} to {stamp(one.to_ms)}: {one.why}" for one in history.waves]
    return "\n".join(lines) + "\n"


def line(one: Generation) -> str:
    """Return a rebalance in two lines: what, and why it is thought so."""
    causes = ", ".join(one.causes)
    what = f"  {stamp(one.formed_at)}  generation {one.generation}, {len(one.members)} members: {causes}"
    return f"{what} ({one.confidence:.0%})\n      {'; '.join(one.evidence)}"


def stamp(at_ms: int) -> str:
    """Return a moment as people write it, in UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:23]
