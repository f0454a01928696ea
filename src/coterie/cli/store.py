"""`coterie store`: the PostgreSQL database that brokers share. Its tables are made and brought up to date."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from coterie.base.errors import CoterieError
from coterie.cli.hints import Family
from coterie.cli.options import CommandResult, output_option, show
from coterie.cli.output import run_async

if TYPE_CHECKING:
    from coterie.storage.postgres.connecting import DatabaseAddress
    from coterie.storage.postgres.facts import StoreFacts
    from coterie.storage.postgres.schema import Migrated

url_argument = click.argument("url", metavar="URL", envvar="COTERIE_STORE")


@click.group("store", cls=Family)
def command() -> None:
    """Look after the PostgreSQL database that brokers share.

    URL is postgresql://USER@HOST[,HOST]/DATABASE, as psql takes it; COTERIE_STORE has it, too.
    """


@command.command("migrate")
@url_argument
@output_option
def migrate_command(url: str, output: str) -> None:
    """Make the tables, or bring them up to what this software needs.

    Brokers may run meanwhile. The first time, the roles coterie_owner, coterie_broker and coterie_reader are
    made as well, if USER may: give brokers' users the second, and whoever only looks the third.
    """
    address = address_of(url)
    from coterie.storage.postgres.schema import migrate

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
        yield f"not there, and not to be made by this user: {missing}; a superuser has to"


@command.command("describe")
@url_argument
@output_option
def describe_command(url: str, output: str) -> None:
    """Show whose tables a database has, and what its server promises."""
    address = address_of(url)
    from coterie.storage.postgres.facts import read_facts

    facts = run_async(read_facts(address))
    cluster = None if facts.cluster is None else facts.cluster._asdict()
    document = {**facts._asdict(), "cluster": cluster, "durability": facts.durability}
    show(CommandResult(document, lines_of_facts(facts)), output)


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


def address_of(url: str) -> DatabaseAddress:
    """Return the address that a URL is. Raises `CoterieError`, also where the driver is not installed."""
    try:
        from coterie.storage.postgres.connecting import DatabaseAddress
    except ImportError:
        raise CoterieError("this needs PostgreSQL's driver: pip install asyncpg") from None
    return DatabaseAddress(url)
