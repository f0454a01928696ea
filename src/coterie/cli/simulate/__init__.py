"""`coterie simulate`: what happens to a group, found out in virtual time before it happens to yours."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coterie.cli.asking import insist_on_writable, write_text

if TYPE_CHECKING:
    from coterie.simulate.scenario import Script
    from coterie.simulate.variant import Outcome

LINES = 12


@click.command("simulate")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than the file's.")
@click.option(
    "--story", metavar="N", type=click.IntRange(min=0), default=LINES, show_default=True,
    help="How many lines of each variant's story to tell.",
)  # fmt: skip
@click.option(
    "--partitions", metavar="N", type=click.IntRange(min=0), default=LINES, show_default=True,
    help="How many partitions to list, those that stood still longest.",
)  # fmt: skip
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Draw who owned what when, as one page.",
)  # fmt: skip
@click.option("--unfolded", is_flag=True, help="Play every heartbeat; the outcome is the same, later.")
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)
def command(
    file: Path, seed: int | None, story: int, partitions: int, html: Path | None, unfolded: bool, output: str
) -> None:
    """Run the scenario of FILE in virtual time.

    FILE is TOML.

    The coordinator and the members are the ones that run in production; docs/simulator.md says what the file
    may have, and examples/ has some to start from. One file and one seed give one outcome, to the byte.
    """
    script = read(file, seed)
    if html is not None:
        insist_on_writable(html)
    with rarely_collecting():
        outcomes = [outcome_of(script, number, fold=not unfolded) for number in range(len(script.variants))]
    if html is not None:
        draw(html, script, outcomes)
    if output == "json":
        import json

        from coterie.simulate.report import document

        click.echo(json.dumps(document(script, outcomes), ensure_ascii=False))
        return
    tell(script, outcomes, story=story, partitions=partitions)


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Look for garbage very rarely: of millions of small values, none is in a cycle; a third of the time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(500_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def read(file: Path, seed: int | None) -> Script:
    """Return what the file says."""
    from coterie.base.errors import CoterieError
    from coterie.simulate.scenario import read_script

    try:
        source = file.read_text(encoding="utf-8")
    except OSError as error:
        raise CoterieError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CoterieError(f"cannot read {file}: it is not UTF-8, as TOML has to be") from None
    return read_script(source, name=str(file), seed=seed)


def outcome_of(script: Script, number: int, *, fold: bool) -> Outcome:
    """Return what comes of a variant; somebody who waits at a terminal sees which it is."""
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
    """Write the page."""
    from coterie.simulate.picture import page

    write_text(file, page(script, outcomes, table_of(outcomes)))


def table_of(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """Return the figures of all variants, a column each."""
    from coterie.cli.simulate.texts import figures
    from coterie.simulate.report import summary_of

    return figures([name_of(one) for one in outcomes], [summary_of(one) for one in outcomes])


def name_of(outcome: Outcome) -> str:
    return outcome.variant.name or "all"


def tell(script: Script, outcomes: list[Outcome], *, story: int, partitions: int) -> None:
    """Say it to people."""
    from coterie.cli.simulate.texts import columns, heading, partition_lines, story_lines

    names = [name_of(one) for one in outcomes]
    blocks = [heading(script), columns(table_of(outcomes))]
    if partitions:
        blocks.append(partition_lines(names, outcomes, partitions))
    if story:
        for name, outcome in zip(names, outcomes, strict=True):
            title = f"the story of {name}" if len(names) > 1 else "the story"
            blocks.append([click.style(title, bold=True), *story_lines(outcome, story)])
    click.echo("\n\n".join("\n".join(block) for block in blocks))
