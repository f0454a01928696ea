"""`coterie history`: why groups rebalanced and what it cost, from the segments of `__consumer_offsets`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIG_DFL, SIGINT, getsignal, signal
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from coterie.base.plain import counted, moment_text, plain, plain_json
from coterie.base.settings import did_you_mean
from coterie.cli.history.texts import texts
from coterie.cli.numbers import Number, WholeNumber
from coterie.cli.options import BOOTSTRAP_NAMES, AskCluster, Settings, client_options, output_option
from coterie.cli.output import insist_on_writable, run_async, write_text

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from coterie.history.log.layout import PartitionLog
    from coterie.history.tables import History
    from coterie.history.watch import Alarm

LINES = 20
STUCK_AFTER_S = 30.0
STORES = ("postgresql://", "postgres://")
DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


class Source(click.ParamType[Path | str]):
    """The type of what is read: a directory that is there, or the address of a database."""

    name = "directory"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Return the path, or the address as it is."""
        if value.startswith(STORES):
            return value
        found: Path = DIRECTORY.convert(value, param, ctx)
        return found

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return DIRECTORY.shell_complete(ctx, param, incomplete)


@click.command("history")
@click.argument("source", metavar="[DIRECTORY]", required=False, type=Source())
@click.option(
    *BOOTSTRAP_NAMES, metavar="HOST:PORT", help="Read from a running cluster instead of DIRECTORY, on Spark."
)
@click.option(
    "--watch", is_flag=True,
    help="With --bootstrap: keep running; print a line for each storm of rebalances and each stuck group.",
)  # fmt: skip
@click.option(
    "--stuck-after", metavar="S", type=Number(min=0.1),
    help="With --watch: the seconds without a commit, while records wait, after which a group is stuck. "
    f"Default: {STUCK_AFTER_S:g}.",
)  # fmt: skip
@click.option("--parquet", metavar="OUT", help="Write tables as Parquet into folders below OUT, on Spark.")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Write a report: the worst groups, what would help them, and a page for each group.",
)  # fmt: skip
@click.option("--master", metavar="URL", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="Only this group; may be repeated.")
@click.option(
    "--last", metavar="N", type=WholeNumber(min=0), default=LINES, show_default=True,
    help="Show the last N rebalances of each group.",
)  # fmt: skip
@click.option(
    "--what-if", "what_if", metavar="SETTINGS", multiple=True,
    help="Replay each group with other settings, for example session.timeout.ms=30000,group.instance.id=on. "
    "May be repeated; a setting may have several values: 10000|30000.",
)  # fmt: skip
@client_options
@output_option
def command(
    source: Path | str | None, broker: Settings, watch: bool, stuck_after: float | None, parquet: str | None,
    html: Path | None, master: str, groups: tuple[str, ...], last: int, what_if: tuple[str, ...], output: str,
) -> None:  # fmt: skip
    """Show why groups rebalanced, from a broker's log.

    DIRECTORY is a broker's log directory, Apache Kafka's or Coterie's, or a copy of one; or else the database
    that brokers share, postgresql://USER@HOST/DATABASE. Nothing is written there.

    Reads __consumer_offsets, and Coterie's __group_story if it is there. docs/history.md says how causes are
    inferred, and how sure they are. JSON is one group a line.
    """
    live = broker["bootstrap_servers"] is not None
    if live == (source is not None):
        raise click.UsageError("give either a DIRECTORY or --bootstrap")
    if watch and not live:
        raise click.UsageError("--watch needs --bootstrap: a directory is not watched")
    if not live:
        refuse_client_options()
    if stuck_after is not None and not watch:
        raise click.UsageError("--stuck-after is for --watch: add it")
    outputs = {"--watch": watch, "--parquet": parquet is not None, "--html": html is not None}
    asked = [name for name, given in outputs.items() if given]
    check_outputs(asked, bool(what_if), groups=bool(groups), output=output)
    with where_of(source, broker, master) as where:
        where.check()
        if watch:
            watch_groups(where, STUCK_AFTER_S if stuck_after is None else stuck_after)
        elif parquet is not None:
            write_parquet(where, parquet, what_if)
            click.echo(f"written: {parquet}", err=True)
        elif html is not None:
            write_report(html, where, groups)
        elif what_if:
            print_what_if(where, groups, what_if, output)
        else:
            found = histories(where, groups)
            for said in map(document, found) if output == "json" else texts(found, last):
                click.echo(said)


def refuse_client_options() -> None:
    """Raise UsageError for a setting of a client on the command line; the environment may have some."""
    context = click.get_current_context()
    for option, name in (("--set", "assignments"), ("--command-config", "config")):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option} is for the client of --bootstrap: a directory is read without one"
            )


def check_outputs(asked: Sequence[str], what_if: bool, *, groups: bool, output: str) -> None:
    """Raise UsageError if several outputs are asked for, or an option that an output would not heed."""
    several = [*asked, "--what-if"] if what_if and asked != ["--parquet"] else asked
    if len(several) > 1:
        raise click.UsageError(f"{' and '.join(several)} do not go together: give one at a time")
    for name in asked:
        if groups and name != "--html":
            raise click.UsageError(f"{name} is for all groups: leave out --group")
        if output == "json":
            raise click.UsageError(f"{name} has its own format: leave out --output json")


class Where(NamedTuple):
    """The log to read: a directory's, or else a cluster's that a client with these settings reaches. `name`
    is what the user knows it by.
    """

    directory: Path | None
    client: Settings
    master: str
    name: str

    def check(self) -> None:
        """Raise CoterieError for a cluster that does not answer, before Spark is started for it."""
        if self.directory is None:
            AskCluster(self.client)(lambda admin: admin.describe_cluster())

    def __str__(self) -> str:
        return self.name


@contextmanager
def where_of(source: Path | str | None, client: Settings, master: str) -> Iterator[Where]:
    """Yield the log to read. What of a database tells of groups lies in a folder of its own meanwhile."""
    if isinstance(source, str):
        from coterie.cli.store import address_of

        address = address_of(source, used_by="coterie history")
        from coterie.broker.transfer.groups import dump_groups

        with TemporaryDirectory(prefix="coterie-history-") as folder:
            run_async(dump_groups(address, Path(folder)))
            yield Where(Path(folder), client, master, str(address))
    else:
        yield Where(source, client, master, str(source or client["bootstrap_servers"]))


def print_what_if(where: Where, groups: tuple[str, ...], asked: tuple[str, ...], output: str) -> None:
    """Print the rebalances and stand-stills of the groups under other settings."""
    from coterie.cli.history.what_if import check, lines

    check(asked)
    for line in lines(histories(where, groups), asked, as_json=output == "json"):
        click.echo(line)


@contextmanager
def spark_on(master: str) -> Iterator[Any]:
    """Start Spark for the time of a command; CoterieError says what is missing if it cannot start."""
    from coterie.base.errors import CoterieError

    try:
        from coterie.spark.history import a_session
    except ImportError:
        raise CoterieError("this needs Spark: pip install 'coterie[spark]', and Java 17 or newer") from None
    before = getsignal(SIGINT)
    on_ctrl_c(SIG_DFL)
    try:
        with a_session(master) as spark:
            yield spark
    finally:
        on_ctrl_c(before)


def on_ctrl_c(action: Any) -> None:
    """Set what Ctrl-C does, which only the main thread may. SIG_DFL ends the process, and Spark's with it."""
    if threading.current_thread() is threading.main_thread():
        signal(SIGINT, action)


def watch_groups(where: Where, stuck_after_s: float) -> None:
    """Print a line for each storm and each stuck group, until Ctrl-C."""
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
    """Write the report on these groups, or on all."""
    from coterie.history.report import report
    from coterie.simulate.what_if.what_if import backings

    title = f"Consumer groups of {where}"
    insist_on_writable(into)
    write_text(into, report(histories(where, groups), title=title, replays=backings))
    click.echo(f"written: {into}", err=True)


def write_parquet(where: Where, into: str, asked: tuple[str, ...]) -> None:
    """Write the tables, and the answers to --what-if, on Spark."""
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
    """Yield the groups' histories: a directory's from this process, a cluster's from Spark. Raises
    CoterieError at the end for groups that were named and are not there.
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
    """Return the error about groups that were named and are not there."""
    found, hint = counted(len(known), "group"), did_you_mean(missing[0], known)
    return plain(f"there is no record of {', '.join(missing)} among the {found} in {where}{hint}")


def histories_live(where: Where) -> Iterator[History]:
    """Yield the histories of a cluster's groups, from its log as it is now; Spark's tasks read it."""
    with spark_on(where.master) as spark:
        from coterie.spark.history import read_cluster

        yield from read_cluster(spark, **where.client).each()


def histories_in(directory: Path) -> Iterator[History]:
    """Yield the histories of the groups in a log directory: all are read first, since only all together show
    when nobody could write. What is damaged is an error at the end.
    """
    from coterie.base.errors import CoterieError
    from coterie.history.away import aways_of, with_aways
    from coterie.history.from_story import overlaid, read_stories
    from coterie.history.group import history_of
    from coterie.history.log.layout import OFFSETS, STORY, partitions
    from coterie.history.log.segments import GroupLog, entries_of, groups_of

    found = list(partitions(directory))
    parts: list[list[bytes]] = []
    for one in found:
        if one.topic == STORY:
            with naming_what_is_damaged(one):
                parts.append([*story_values([path.read_bytes() for path in one.paths])])
    stories = read_stories(parts)
    logs, failure = list[GroupLog](), None
    try:
        for one in found:
            if one.topic == OFFSETS:
                with naming_what_is_damaged(one):
                    logs += groups_of(entries_of([path.read_bytes() for path in one.paths]))
    except CoterieError as error:
        failure = error
    aways = aways_of(logs, (each["at"] for story in stories.values() for each in story))
    for log in logs:
        yield with_aways(overlaid(history_of(*log), stories.get(log.group_id, [])), aways)
    if failure is not None:
        raise failure


@contextmanager
def naming_what_is_damaged(one: PartitionLog) -> Iterator[None]:
    """Turn Corrupt into a CoterieError that names the partition, and says what to do."""
    from coterie.base.errors import Corrupt, CoterieError

    try:
        yield
    except Corrupt as error:
        folder = one.paths[0].parent
        raise CoterieError(
            f"{folder} is damaged ({error}); copy it anew from the broker, or give a copy without it"
        ) from error


def story_values(segments: list[bytes]) -> Iterator[bytes]:
    """Yield the records' values of Coterie's own story."""
    from coterie.history.log.segments import visible
    from coterie.wire.records.batches import records_of

    for segment in segments:
        for at, _ in visible(segment, ()):
            yield from (record.value for record in records_of(segment, at) if record.value)


def document(history: History) -> str:
    """Return a history as a line of JSON, with what each rebalance cost as the text has it."""
    from coterie.history.ownership import costs_of

    tables: dict[str, Any] = {
        name: [row._asdict() for row in rows] if isinstance(rows, tuple) else rows
        for name, rows in history._asdict().items()
    }
    costs = costs_of(history)
    places = ((one.generation, one.formed_at) for one in history.generations)
    tables["costs"] = [
        {"generation": place[0], "formed_at": place[1], **costs[place]._asdict()}
        for place in places
        if place in costs
    ]
    return plain_json(json.dumps(tables, ensure_ascii=False))
