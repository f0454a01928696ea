"""`coterie assign`: the assignments that an assignor makes, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from coterie.base.errors import CoterieError

if TYPE_CHECKING:
    from coterie.cli.assign.trial import Outcome

HEAD = ("MEMBER", "LOAD", "KEPT", "GAINED", "LOST", "PARTITIONS")


@click.command("assign")
@click.argument("file", default="-", metavar="[FILE|-]")
@click.option("--explain", is_flag=True, help="Print tables of loads, spread and moves instead of JSON.")
def command(file: str, explain: bool) -> None:
    """Try an assignor without a cluster.

    Each line of FILE is a JSON object with: assignor; partitions, a number for each topic; subscriptions, the
    topics of each member; and steps, each with its members and the partitions they owned before. It may also
    have case, replicas, broker_racks, instances and racks.

    Prints the same lines, with the assignment of each step.
    """
    for number, text in _lines(file):
        try:
            document = _document(text)
            outcomes = _played(document)
        except CoterieError as error:
            raise CoterieError(f"line {number}: {error}") from None
        if explain:
            for line in _explained(document, outcomes):
                click.echo(line)
        else:
            click.echo(json.dumps(document, separators=(",", ":")))


def _lines(file: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers."""
    try:
        with click.open_file(file, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise CoterieError(f"cannot read {file}: {error.strerror}") from None


def _document(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CoterieError(f"this is not JSON: {error}") from None


def _played(document: Any) -> list[Outcome]:
    """Return the outcome of each step, whose assignment is added to the document."""
    from coterie.cli.assign.trial import Trial
    from coterie.client.consumer.assignors import assignor_factory

    trial = Trial.of(document)
    outcomes = list(trial.play(assignor_factory(trial.assignor)))
    for step, outcome in zip(document["steps"], outcomes, strict=True):
        step["assignment"] = outcome.document()
    return outcomes


def _explained(document: dict[str, Any], outcomes: list[Outcome]) -> Iterator[str]:
    """Yield a table for each step: the load of each member, and the partitions it kept, gained and lost."""
    from coterie.base.plain import counted
    from coterie.cli.tables import by_topic, partitions_text, table

    case = f"case {document['case']}, " if "case" in document else ""
    for number, outcome in enumerate(outcomes, start=1):
        assigned = outcome.assigned
        yield (
            f"{case}{document['assignor']}, step {number} of {len(outcomes)}:"
            f" {counted(len(assigned), 'member')}, {counted(sum(map(len, assigned.values())), 'partition')}"
        )
        rows = []
        for member, partitions in sorted(assigned.items()):
            kept = outcome.kept(member)
            gained = len(partitions) - kept
            shown = partitions_text(by_topic(partitions)) or None
            rows.append((member, len(partitions), kept, gained, outcome.lost(member), shown))
        yield from table(HEAD, rows)
        waiting = f", {outcome.withheld} withheld until their owners give them up" if outcome.withheld else ""
        yield f"loads {_loads(outcome)}, spread {outcome.spread}, {counted(outcome.moves, 'move')}{waiting}"
        yield ""


def _loads(outcome: Outcome) -> str:
    loads = outcome.loads.values()
    return f"{min(loads, default=0)} to {max(loads, default=0)}"
