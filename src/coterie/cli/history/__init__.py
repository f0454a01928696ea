"""`coterie history`: what happened to every group, from the segments of `__consumer_offsets`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIG_DFL, SIGINT, getsignal, signal
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.base.plain import moment_text, plain, plain_json
from coterie.cli.asking import insist_on_writable, settings_of, write_text
from coterie.cli.history.texts import texts

if TYPE_CHECKING:
    from coterie.history.log.layout import PartitionLog
    from coterie.history.tables import History
    from coterie.history.watch import Alarm

LINES = 20
STUCK_AFTER_S = 30.0


@click.command("history")
@click.argument("directory", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--bootstrap", metavar="HOST:PORT", help="Read a live cluster instead of a DIRECTORY, on Spark."
)
@click.option(
    "--set", "assignments", metavar="NAME=VALUE", multiple=True,
    help="With --bootstrap, a setting of the client by Kafka's name: TLS and SASL, for example.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="With --bootstrap: a line for each storm and each stuck group.")
@click.option(
    "--stuck-after", metavar="S", type=click.FloatRange(min=0.1), show_default=f"{STUCK_AFTER_S}",
    help="With --watch: seconds without a commit, while records wait.",
)  # fmt: skip
@click.option("--parquet", metavar="OUT", help="Write every table into a folder of its own, on Spark.")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Write a report: the worst groups and what would help them, and a page a group.",
)  # fmt: skip
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
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="For people or for programs.",
)  # fmt: skip
def command(
    directory: Path | None, bootstrap: str | None, assignments: tuple[str, ...], watch: bool,
    stuck_after: float | None, parquet: str | None, html: Path | None, master: str,
    groups: tuple[str, ...], last: int, what_if: tuple[str, ...], output: str,
) -> None:  # fmt: skip
    """Tell why groups rebalanced, from their log.

    DIRECTORY is a broker's log directory or a copy of one.

    Reads the segments of __consumer_offsets as Apache Kafka or Coterie write them, where they lie, and
    Coterie's __group_story where it is there; docs/history.md says what is told and how it is inferred.
    """
    if (directory is None) == (bootstrap is None):
        raise click.UsageError("give either a DIRECTORY or --bootstrap")
    if watch and bootstrap is None:
        raise click.UsageError("--watch needs --bootstrap: a directory is not watched")
    answers = {"--watch": watch, "--parquet": parquet is not None, "--html": html is not None}
    asked = [name for name, given in answers.items() if given]
    refuse_both(asked, bool(what_if))
    if assignments and bootstrap is None:
        raise click.UsageError("--set is for the client of --bootstrap: a directory is read without one")
    if stuck_after is not None and not watch:
        raise click.UsageError("--stuck-after is for --watch: add it")
    refuse_unheeded(asked, bool(groups), output)
    client = {"bootstrap_servers": bootstrap, **settings_of(assignments)}
    where = Where(directory, client, master)
    if watch:
        watch_groups(where, STUCK_AFTER_S if stuck_after is None else stuck_after)
    elif parquet is not None:
        write_parquet(where, parquet, what_if)
        click.echo(f"written: {parquet}", err=True)
    elif html is not None:
        write_report(html, where, groups)
    elif what_if:
        tell_what_if(where, groups, what_if, output)
    else:
        found = histories(where, groups)
        for said in map(document, found) if output == "json" else texts(found, last):
            click.echo(said)


def refuse_both(asked: Sequence[str], what_if: bool) -> None:
    """Raise `UsageError` where one of the answers that are asked for would not be given."""
    if what_if and asked != ["--parquet"]:
        asked = [*asked, "--what-if"]
    if len(asked) > 1:
        raise click.UsageError(f"{' and '.join(asked)} are answers of their own: ask for one at a time")


def refuse_unheeded(asked: Sequence[str], groups: bool, output: str) -> None:
    """Raise `UsageError` where an answer would not go by an option that is given."""
    for answer in asked:
        if groups and answer != "--html":
            raise click.UsageError(f"{answer} is of all groups: leave out --group")
        if output == "json":
            raise click.UsageError(f"{answer} has a form of its own: leave out --output json")


class Where(NamedTuple):
    """Whose history is told: a directory's, or else a cluster's that a client with these settings reaches."""

    directory: Path | None
    client: Mapping[str, Any]
    master: str

    def __str__(self) -> str:
        return str(self.directory or self.client["bootstrap_servers"])


def tell_what_if(where: Where, groups: tuple[str, ...], asked: tuple[str, ...], output: str) -> None:
    """Print what the groups would have come to under other settings."""
    from coterie.cli.history.what_if import check, lines

    check(asked)
    for line in lines(histories(where, groups), asked, as_json=output == "json"):
        click.echo(line)


@contextmanager
def spark_on(master: str) -> Iterator[Any]:
    """Start Spark for the time of a command; say what is missing if it cannot be had."""
    from coterie.base.errors import CoterieError

    try:
        from coterie.spark.history import a_session
    except ImportError:
        raise CoterieError("this needs Spark: pip install coterie[spark], and Java 17 or newer") from None
    before = getsignal(SIGINT)
    on_ctrl_c(SIG_DFL)
    try:
        with a_session(master) as spark:
            yield spark
    finally:
        on_ctrl_c(before)


def on_ctrl_c(action: Any) -> None:
    """Say what Ctrl-C does; only the main thread may. By default it ends the process, and Spark's with it."""
    if threading.current_thread() is threading.main_thread():
        signal(SIGINT, action)


def watch_groups(where: Where, stuck_after_s: float) -> None:
    """Print a line for each storm and each stuck group, until somebody presses Ctrl-C."""
    from time import time

    over = threading.Event()
    with spark_on(where.master) as spark:
        from coterie.spark.history.live import watch

        on_ctrl_c(lambda *_: over.set())

        def raised(alarm: Alarm) -> None:
            click.echo(plain(f"{moment_text(alarm.since_ms)}  {alarm.kind}  {alarm.group_id}: {alarm.words}"))

        watch(
            spark,
            where.client,
            raised,
            stuck_after_ms=int(stuck_after_s * 1000),
            now_ms=lambda: int(time() * 1000),
            until=over.is_set,
        )


def write_report(into: Path, where: Where, groups: tuple[str, ...]) -> None:
    """Write the report on some groups, or on all."""
    from coterie.history.report import report
    from coterie.simulate.what_if.what_if import backings

    title = f"Consumer groups of {where}"
    insist_on_writable(into)
    write_text(into, report(histories(where, groups), title=title, replays=backings))
    click.echo(f"written: {into}", err=True)


def write_parquet(where: Where, into: str, asked: tuple[str, ...]) -> None:
    """Write the tables, on Spark, and what was asked."""
    from coterie.cli.history.what_if import check

    check(asked)
    with spark_on(where.master) as spark:
        from coterie.spark.history import read_cluster, read_directory
        from coterie.spark.whatif import what_if

        directory = where.directory
        found = read_cluster(spark, **where.client) if directory is None else read_directory(spark, directory)
        found.write_parquet(into)
        if asked:
            what_if(found, asked).write.mode("overwrite").parquet(f"{into}/what_if")


def histories(where: Where, groups: tuple[str, ...]) -> Iterator[History]:
    """Yield the groups' histories: a directory's worked out in this process, a cluster's on Spark.

    Raises at the end for groups that were asked for by name and are not there.
    """
    from coterie.base.errors import CoterieError

    missing, known = dict.fromkeys(groups), list[str]()
    for one in histories_live(where) if where.directory is None else histories_in(where.directory):
        known.append(one.group_id)
        if not groups or one.group_id in groups:
            missing.pop(one.group_id, None)
            yield one
    if missing:
        raise CoterieError(not_there(list(missing), known, str(where)))
    if not known:
        click.echo(f"There are no groups in {where}.", err=True)


def not_there(missing: Sequence[str], known: Sequence[str], where: str) -> str:
    """Return what to say of groups that were asked for and are not there."""
    from difflib import get_close_matches

    names = ", ".join(map(plain, missing))
    found = f"{len(known):,} group{'' if len(known) == 1 else 's'}"
    close = get_close_matches(missing[0], known, 1)
    meant = f"; did you mean {plain(close[0])}?" if close else ""
    return f"there is no record of {names} among the {found} in {where}{meant}"


def histories_live(where: Where) -> Iterator[History]:
    """Yield the histories of a cluster's groups, from its log as it is now: told by Spark's tasks."""
    with spark_on(where.master) as spark:
        from coterie.spark.history import read_cluster

        yield from read_cluster(spark, **where.client).each()


def histories_in(directory: Path) -> Iterator[History]:
    """Yield the histories of the groups whose segments lie there."""
    from coterie.history.from_story import overlaid, read_story
    from coterie.history.group import history_of
    from coterie.history.log.layout import OFFSETS, STORY, partitions
    from coterie.history.log.segments import entries_of, groups_of

    found = list(partitions(directory))
    values: list[bytes] = []
    for one in found:
        if one.topic == STORY:
            with naming_what_is_damaged(one):
                values += story_values([path.read_bytes() for path in one.paths])
    stories = read_story(values)
    for one in found:
        if one.topic != OFFSETS:
            continue
        with naming_what_is_damaged(one):
            for log in groups_of(entries_of([path.read_bytes() for path in one.paths])):
                yield overlaid(history_of(*log), stories.pop(log.group_id, []))


@contextmanager
def naming_what_is_damaged(one: PartitionLog) -> Iterator[None]:
    """Say of which partition bytes are that cannot be read, and what to do."""
    from coterie.base.errors import Corrupt, CoterieError

    try:
        yield
    except Corrupt as error:
        folder = one.paths[0].parent
        raise CoterieError(
            f"{folder} is damaged ({error}); copy it anew from the broker, or give a copy without it"
        ) from error


def story_values(segments: list[bytes]) -> Iterator[bytes]:
    """Yield the lines of Coterie's own story."""
    from coterie.history.log.segments import visible
    from coterie.wire.records.batches import records_of

    for segment in segments:
        for at, _ in visible(segment, ()):
            yield from (record.value for record in records_of(segment, at) if record.value)


def document(history: History) -> str:
    """Return a history as a line of JSON."""
    tables: dict[str, Any] = {
        name: [row._asdict() for row in rows] if isinstance(rows, tuple) else rows
        for name, rows in history._asdict().items()
    }
    return plain_json(json.dumps(tables, ensure_ascii=False))
