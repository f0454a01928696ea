"""`coterie store`: the PostgreSQL database that brokers share. Its tables are made and brought up to date, it
goes on from a backup, and data directories are brought in and written out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import counted
from coterie.cli.hints import Family
from coterie.cli.numbers import WholeNumber
from coterie.cli.options import CommandResult, output_option, show
from coterie.cli.output import run_async, saying_what_is_left

if TYPE_CHECKING:
    from coterie.broker.transfer.dumping import Dumped
    from coterie.broker.transfer.loading import LoadedTopics
    from coterie.storage.postgres.connecting import DatabaseAddress
    from coterie.storage.postgres.facts import StoreFacts
    from coterie.storage.postgres.restored import Restored
    from coterie.storage.postgres.schema import Migrated, StoreRoles

ID_MAX = 2**31 - 1
STORE_VARIABLE = "COTERIE_STORE"
LOAD_STOPPED = (
    "stopped: all of it is brought in or nothing, and nothing unless it was just done; run it again, which"
    " says so where the topics are there"
)
NOT_TO_BE_MADE = "not there, and not to be made by this user: %s"
url_argument = click.argument("url", metavar="URL", envvar=STORE_VARIABLE)


class StoreCommands(Family):
    """A word that is none of the commands is not a database's, which is a URL."""

    shown_by = None


@click.group("store", cls=StoreCommands)
def command() -> None:
    """Look after the PostgreSQL database that brokers share.

    URL is postgresql://USER@HOST[,HOST]/DATABASE, as psql takes it. Each command takes it from COTERIE_STORE
    where it is left out.
    """


@command.command("migrate")
@url_argument
@click.option(
    "--only-roles",
    is_flag=True,
    help="Make the roles and no tables: where a backup is to be brought to another server.",
)
@output_option
def migrate_command(url: str, only_roles: bool, output: str) -> None:
    """Make the tables, or bring them up to what this software needs.

    Brokers may run meanwhile. The first time, the roles coterie_owner, coterie_broker and coterie_reader are
    made as well, if USER may: give brokers' users the second, and whoever only looks the third. With
    --only-roles any database of the server will do, and nothing is left in it.
    """
    address = address_of(url)
    from coterie.storage.postgres.schema import make_roles, migrate

    if only_roles:
        missing = run_async(make_roles(address))
        wrong = f"{NOT_TO_BE_MADE % ', '.join(missing)}; one with CREATEROLE may" if missing else ""
        show(
            CommandResult({"missing_roles": missing}, () if missing else lines_of_roles_made(), wrong), output
        )
        return
    done = run_async(migrate(address))
    show(CommandResult(done._asdict(), lines_of_migration(done)), output)


def lines_of_migration(done: Migrated) -> Iterator[str]:
    """Yield in lines what was done."""
    if done.before == done.after:
        yield f"cluster {done.cluster_id}: the tables are of schema {done.after} already"
    elif done.before:
        yield f"cluster {done.cluster_id}: the tables were of schema {done.before}, and are of {done.after}"
    else:
        yield f"cluster {done.cluster_id}: the tables are made, of schema {done.after}"
    if done.missing_roles:
        missing = ", ".join(done.missing_roles)
        yield (
            f"{NOT_TO_BE_MADE % missing}; one with CREATEROLE may, and this command, run once more, gives"
            " them their rights"
        )
    elif done.before in (0, done.after):  # else brokers run, whose user has one
        yield from lines_of_roles_made(", and have their rights")


def lines_of_roles_made(rights: str = "") -> Iterator[str]:
    """Yield in lines that all roles are there, and what is next."""
    from coterie.storage.postgres.schema import BROKER, OWNER, READER

    yield f"the roles {OWNER}, {BROKER} and {READER} are there{rights}; next:"
    yield f"  GRANT {BROKER} TO the user of brokers; GRANT {READER} TO whoever only looks"


@command.command("describe")
@url_argument
@output_option
def describe_command(url: str, output: str) -> None:
    """Show a database's tables and roles, and what its server promises."""
    address = address_of(url)
    from coterie.storage.postgres.facts import read_facts

    facts, roles = run_async(read_facts(address))
    cluster = None if facts.cluster is None else facts.cluster._asdict()
    durability = facts.durability
    document = {**facts._asdict(), "cluster": cluster, "durability": durability, "roles": roles._asdict()}
    show(CommandResult(document, [*lines_of_facts(facts), *lines_of_roles(roles)]), output)


def lines_of_facts(facts: StoreFacts) -> Iterator[str]:
    """Yield in lines what a database is."""
    if facts.cluster is None:
        yield "no tables of a cluster: coterie store migrate makes them"
    else:
        cluster_id, level, schema = facts.cluster
        yield f"cluster {cluster_id}, tables of schema {schema}, level {level}"
        yield f"metadata at version {facts.metadata_version}"
    yield f"PostgreSQL {facts.server_version}"
    yield f"durability {facts.durability}"


def lines_of_roles(roles: StoreRoles) -> Iterator[str]:
    """Yield in lines which roles there are, and what they lack."""
    from coterie.storage.postgres.schema import BROKER, OWNER, READER

    if roles.owner is not None:
        yield f"tables owned by {roles.owner}"
    if roles.missing:
        mended = "coterie store migrate by one with CREATEROLE makes them"
        yield f"roles missing: {', '.join(roles.missing)}; {mended}"
    if roles.lacking:
        yield f"roles without all their rights: {', '.join(roles.lacking)}; coterie store migrate gives them"
    if well := [one for one in (OWNER, BROKER, READER) if one not in roles.missing + roles.lacking]:
        yield f"roles {', '.join(well)}"


@command.command("restored")
@url_argument
@click.option("--yes", "though_served", is_flag=True, help="Do it though brokers serve from the database.")
@output_option
def restored_command(url: str, though_served: bool, output: str) -> None:
    """Have brokers and clients notice that a backup was brought back.

    To be run on the database that was made of it, before brokers serve: while some do it is refused. What was
    decided after the backup is gone: no broker of before appends any more, all are to begin anew, and epochs
    and producer ids go on far ahead of those that were given out meanwhile, so that clients see that logs are
    shorter.
    """
    address = address_of(url)
    from coterie.storage.postgres.restored import go_on_restored

    done = run_async(go_on_restored(address, though_served=though_served))
    show(CommandResult(done._asdict(), lines_of_restoration(done)), output)


def lines_of_restoration(done: Restored) -> Iterator[str]:
    """Yield in lines what the database has become."""
    if done.changed:
        yield from _lines_of_change(done)
    else:
        yield (
            f"cluster {done.cluster_id}: this was done already, and no broker has started since; nothing is"
            f" changed, the metadata is at version {done.version}"
        )
    if done.connected:
        brokers = ", ".join(map(str, done.connected))
        yield f"connected meanwhile, and not to be cut off by this user: brokers {brokers}; start them anew"


def _lines_of_change(done: Restored) -> Iterator[str]:
    yield f"cluster {done.cluster_id}: the metadata is at version {done.version}"
    partitions = "1 partition is" if done.partitions == 1 else f"{done.partitions} partitions are"
    yield f"{partitions} led anew, in later leader epochs, once brokers are there"


@command.command("load")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@url_argument
@click.option(
    "--brokers",
    metavar="ID,ID",
    help="The brokers that are to lead. Default: all there are, or else those whose DIR is.",
)
@output_option
def load_command(directory: Path, url: str, brokers: str | None, output: str) -> None:
    """Bring the topics of a data directory into the database.

    DIR is Coterie's, or Apache Kafka's; that of coterie serve --processes is brought in with those of all its
    brokers. Records, offsets, topic ids, groups, what they have committed, and transactions stay as they are.
    All is brought in, or nothing, as where a topic of one of the names is there. No broker may use DIR
    meanwhile; it is opened as coterie serve opens it. Make a copy of it first.
    """
    address = address_of(url)
    from coterie.broker.transfer.directory import check_used, opened_directory
    from coterie.broker.transfer.loading import load

    ids = broker_ids(brokers)
    check_used(directory)
    with saying_what_is_left(lambda: LOAD_STOPPED), opened_directory(str(directory)) as contents:
        done = run_async(load(address, contents, ids))
    show(CommandResult(done._asdict(), lines_of_loading(done)), output)


def broker_ids(text: str | None) -> tuple[int, ...]:
    """Return the ids of brokers that an option lists. Raises UsageError."""
    listed = text.split(",") if text else ()
    if not all(one.isascii() and one.isdigit() and len(one) < 11 and int(one) <= ID_MAX for one in listed):
        raise click.UsageError(f"--brokers takes ids with commas between, as 1,2,3, and not {text}")
    return tuple(int(one) for one in listed)


def lines_of_loading(done: LoadedTopics) -> Iterator[str]:
    """Yield in lines what was brought in."""
    topics, partitions = counted(done.topics, "topic"), counted(done.partitions, "partition")
    yield f"cluster {done.cluster_id}: {topics} of {partitions} are brought in"


@command.command("dump")
@click.argument("places", metavar="URL DIR", nargs=-1, type=click.Path())
@click.option(
    "--node-id",
    metavar="ID",
    type=WholeNumber(min=0),
    default=1,
    show_default=True,
    help="The broker that is to have DIR.",
)
@output_option
def dump_command(places: tuple[str, ...], node_id: int, output: str) -> None:
    """Write all there is into a data directory, as it is at one moment.

    DIR, which is new or empty, is one of Apache Kafka's format, which coterie serve --data opens: with all
    records, offsets, topic ids, groups and transactions. Brokers may serve meanwhile.
    """
    url, directory = url_and_directory(places)
    address = address_of(url)
    from coterie.broker.transfer.dumping import dump, new_directory

    with saying_what_is_left(lambda: left_of_dump(directory)), new_directory(directory) as unfinished:
        done = run_async(dump(address, unfinished, node_id))
    show(CommandResult({**done._asdict(), "directory": str(directory)}, lines_of_dump(done)), output)


def url_and_directory(places: Sequence[str]) -> tuple[str, Path]:
    """Return the URL of a dump, which may be left out where the variable has it, and its directory. Raises
    UsageError.
    """
    *given, directory = places or ("",)
    url = given[0] if given else os.environ.get(STORE_VARIABLE, "")
    if len(given) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({places[2]})")
    if "://" in directory and given:
        raise click.UsageError("URL stands before DIR.")
    if not directory or "://" in directory:
        raise click.UsageError("Missing argument 'DIR'.")
    if not url:
        raise click.UsageError("Missing argument 'URL'.")
    return url, Path(directory)


def left_of_dump(directory: Path) -> str:
    """Return the sentence about a dump that was stopped."""
    from coterie.broker.transfer.dumping import unfinished_of

    unfinished = unfinished_of(directory)
    if not unfinished.exists():
        return "stopped; run it again"
    return (
        f"stopped: what was written until then is {unfinished}, which no broker is to open; remove it, or run"
        " this again, which begins anew"
    )


def lines_of_dump(done: Dumped) -> Iterator[str]:
    """Yield in lines what was written."""
    topics, partitions = counted(done.topics, "topic"), counted(done.partitions, "partition")
    yield f"cluster {done.cluster_id}: {topics} of {partitions} are written, {done.bytes} bytes of records"


def address_of(url: str, *, used_by: str = "coterie store") -> DatabaseAddress:
    """Return the address that a URL is, as whoever uses it is called at the server. Raises `CoterieError`,
    also where the driver is not installed.
    """
    try:
        from coterie.storage.postgres.connecting import DatabaseAddress
    except ImportError:
        raise CoterieError("this needs PostgreSQL's driver: pip install '.[postgres]' in the clone") from None
    return DatabaseAddress(url, used_by=used_by)
