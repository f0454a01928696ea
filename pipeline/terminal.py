"""What the job shows on the terminal: two bars, a line for all that happens, and the tables at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from coterie.simulate.what_if.what_if import WhatIf
from pipeline.plan import MEMBERS, Paths
from pipeline.report.scene import Happening
from pipeline.report.verify import Delays, Table, by_carrier, by_hour
from pipeline.report.what_if import in_words
from pipeline.watch.story import Rebalance, because

COLOURS = dict(zip(MEMBERS, ("bright_blue", "dark_orange", "dark_cyan"), strict=True))


BOTH_WIDTH = 150  # of the terminal, from which on two tables stand side by side


class Show:
    """The terminal. Lines scroll above the bars."""

    def __init__(self, *, started_ms: int, events: int) -> None:
        self.console = Console(highlight=False)
        self._started_ms = started_ms
        self._bars = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
        self._produced = self._bars.add_task("produced", total=events)
        self._committed = self._bars.add_task("committed", total=events)

    def __enter__(self) -> Show:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def produced(self, count: int) -> None:
        self._move(self._produced, count)

    def committed(self, count: int) -> None:
        self._move(self._committed, count)

    def _move(self, bar: TaskID, count: int) -> None:
        self._bars.update(bar, completed=count)

    def line(self, at_ms: int, *parts: str | tuple[str, str]) -> None:
        """Print one line with the seconds since the start before it."""
        seconds = (f"{(at_ms - self._started_ms) / 1000:6.1f} s  ", "bright_black")
        self.console.print(Text.assemble(seconds, *parts), soft_wrap=True)

    def happening(self, happening: Happening) -> None:
        """Print what was done from outside."""
        self.line(happening.at_ms, (happening.what, COLOURS.get(happening.member, "white")))

    def rebalance(self, rebalance: Rebalance) -> None:
        """Print a rebalance: its generation, why, what it cost, and who got what."""
        self.line(
            rebalance.working_at_ms,
            (f"generation {rebalance.generation:<2} ", "bold"),
            (because(rebalance), "bold"),
            (f" ({', '.join(rebalance.why)})", "bright_black"),
            f"; {rebalance.cost}",
        )
        shares: list[str | tuple[str, str]] = ["           "]
        for name, partitions in rebalance.members.items():
            shares += [(f"   {name} ", COLOURS.get(name, "white")), " ".join(map(str, partitions)) or "-"]
        if rebalance.members:
            self.console.print(Text.assemble(*shares), soft_wrap=True)

    def tables(self, table: Table) -> None:
        """Print the delays by carrier and by hour of day, side by side."""
        grids = grid("carrier", by_carrier(table)), grid("hour", by_hour(table))
        if self.console.width < BOTH_WIDTH:
            self.console.print(*grids)
            return
        both = Grid.grid(padding=(0, 4))
        both.add_row(*grids)
        self.console.print(both)

    def summary(self, found: Mapping[str, Any]) -> None:
        """Print the figures that prove the run."""
        rows = ", ".join(f"{member} {rows:,}" for member, rows in found["rows_by_member"].items())
        self.console.print(
            f"[bold]{found['distinct']:,}[/] distinct records of {found['produced']:,} produced, "
            f"{found['lost']:,} lost; {found['rows']:,} rows ({rows}), {found['repeated']:,} of them twice; "
            f"{len(found['rebalances'])} rebalances; {found['seconds']} s"
        )

    def what_if(self, answers: Sequence[WhatIf]) -> None:
        """Print what static members would have changed."""
        self.console.print(in_words(answers), soft_wrap=True)

    def where(self, paths: Paths) -> None:
        """Say where the results are."""
        for path in (paths.delays, paths.page, paths.summary):
            self.console.print(f"[bright_black]{path}[/]", soft_wrap=True)

    def faults(self, faults: Sequence[str], *, heading: str = "wrong") -> None:
        """Print what is wrong, each under this heading."""
        for fault in faults:
            self.console.print(Text.assemble((f"{heading}: ", "bold red"), fault))


def grid(title: str, delays: Mapping[Any, Delays]) -> Grid:
    """Return one table: integer sums and counts, and the mean they give, to look at."""
    made = Grid(title=f"delay by {title}, minutes", title_justify="left", box=None, padding=(0, 1))
    for name in (title, "flights", "departed", "delay", "mean", "arrived", "delay", "mean"):
        made.add_column(name, justify="right", header_style="bright_black")
    for key, one in delays.items():
        made.add_row(
            str(key),
            f"{one.flights:,}",
            f"{one.departed:,}",
            f"{one.dep_delay_sum:,}",
            mean(one.dep_delay_sum, one.departed),
            f"{one.arrived:,}",
            f"{one.arr_delay_sum:,}",
            mean(one.arr_delay_sum, one.arrived),
        )
    return made


def mean(total: int, count: int) -> str:
    return f"{total / count:.1f}" if count else "-"
