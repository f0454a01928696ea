"""`coterie simulate`: a group's rebalances under given settings, in virtual time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coterie.cli.numbers import WholeNumber
from coterie.cli.options import output_option
from coterie.cli.output import insist_on_writable, say_json, text_of, write_text
from coterie.cli.tables import columns

if TYPE_CHECKING:
    from coterie.simulate.scenario import Script
    from coterie.simulate.variant import Outcome

LINES = 12


@click.command("simulate")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seed", type=WholeNumber(min=0), metavar="N", help="Use this seed, not the file's.")
@click.option(
    "--story", metavar="N", type=WholeNumber(min=0), default=LINES, show_default=True,
    help="Show the first N events of each variant.",
)  # fmt: skip
@click.option(
    "--partitions", metavar="N", type=WholeNumber(min=0), default=LINES, show_default=True,
    help="List the N partitions that were without an owner for longest.",
)  # fmt: skip
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Draw which member owned which partition when, as an HTML page.",
)  # fmt: skip
@click.option("--unfolded", is_flag=True, help="Simulate every heartbeat: the same outcome, more slowly.")
@output_option
def command(
    file: Path, seed: int | None, story: int, partitions: int, html: Path | None, unfolded: bool, output: str
) -> None:
    """Simulate a consumer group, in virtual time.

    FILE is a scenario in TOML: topics, members, settings, and what happens when. docs/simulator.md describes
    it, examples/scenarios has some.

    The coordinator and the members are the same code as in production. The same file and seed always give the
    same output.
    """
    script = read(file, seed)
    if html is not None:
        insist_on_writable(html)
    with rarely_collecting():
        outcomes = [outcome_of(script, number, fold=not unfolded) for number in range(len(script.variants))]
    if html is not None:
        draw(html, script, outcomes)
    if output == "json":
        from coterie.simulate.report import document

        say_json(document(script, outcomes))
    else:
        print_texts(script, outcomes, story=story, partitions=partitions)


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Collect garbage very rarely: of millions of small values none is in a cycle, and it took a third of the
    time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(500_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def read(file: Path, seed: int | None) -> Script:
    """Return the scenario of a file."""
    from coterie.simulate.scenario import read_script

    return read_script(text_of(str(file)), name=str(file), seed=seed)


def outcome_of(script: Script, number: int, *, fold: bool) -> Outcome:
    """Return the outcome of a variant; a terminal shows its name meanwhile."""
    from coterie.simulate.variant import simulate

    variant = script.variants[number]
    waiting = sys.stderr.isatty()
    if waiting:
        sys.stderr.write(f"\rsimulating {variant.name or script.title} …\x1b[K")
    outcome = simulate(variant, fold=fold)
    if waiting:
        sys.stderr.write("\r\x1b[K")
    return outcome


def draw(file: Path, script: Script, outcomes: list[Outcome]) -> None:
    """Write the HTML page."""
    from coterie.simulate.picture import page

    write_text(file, page(script, outcomes, table_of(outcomes)))


def table_of(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """Return the figures of all variants, a column each."""
    from coterie.cli.simulate.texts import figures
    from coterie.simulate.report import summary_of

    return figures([name_of(one) for one in outcomes], [summary_of(one) for one in outcomes])


def name_of(outcome: Outcome) -> str:
    return outcome.variant.name or "all"


def print_texts(script: Script, outcomes: list[Outcome], *, story: int, partitions: int) -> None:
    """Print the figures, the partitions and the story for people."""
    from coterie.cli.simulate.texts import heading, partition_lines, story_lines

    names = [name_of(one) for one in outcomes]
    blocks = [heading(script), columns(table_of(outcomes))]
    if partitions:
        blocks.append(partition_lines(names, outcomes, partitions))
    if story:
        for name, outcome in zip(names, outcomes, strict=True):
            title = f"the story of {name}" if len(names) > 1 else "the story"
            blocks.append([click.style(title, bold=True), *story_lines(outcome, story)])
    click.echo("\n\n".join("\n".join(block) for block in blocks))
