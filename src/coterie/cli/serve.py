"""`coterie serve`: one broker in this process, until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from coterie.base.errors import CoterieError
from coterie.base.logs import to_standard_error
from coterie.base.plain import plain
from coterie.base.signals import stop_signals
from coterie.cli.numbers import WholeNumber
from coterie.cli.options import client_with, named_settings

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.storage.postgres.connecting import DatabaseAddress

LEVELS = ("debug", "info", "warning", "error")
STOPPED_EARLY = b"coterie: stopped before it was ready\n"
PROCESSES_MAX = 64
"""Each looks at the cluster's file twenty times a second, whether it has work or not."""


@click.command("serve")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="The address for clients; port 0 picks a free one. [default: 127.0.0.1:9092]",
)
@click.option(
    "--data",
    metavar="DIR",
    help="The directory for topics. Default: log.dirs, or a temporary one, deleted when the broker stops.",
)
@click.option(
    "--store",
    metavar="URL",
    help="The PostgreSQL database that brokers share, as psql takes it. Needs node.id; docs/cluster.md.",
)
@click.option(
    "--store-direct",
    metavar="URL",
    help="The same database past the pooler that --store leads through, to be a member by.",
)
@click.option(
    "--config", metavar="FILE", help="Settings, as in Kafka's server.properties; --set overrides them."
)
@click.option(
    "--set",
    "assignments",
    metavar="NAME=VALUE",
    multiple=True,
    help="One setting, by Kafka's name; may be repeated.",
)
@click.option(
    "--processes",
    type=WholeNumber(min=1),
    metavar="N",
    help="Run N brokers of one cluster, with a process, a port and a directory in DIR each.",
)
@click.option(
    "--lost",
    "given_up",
    type=WholeNumber(min=0),
    metavar="ID",
    multiple=True,
    help="With --processes: broker ID begins anew, since its directory is lost; may be repeated.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
def command(
    listen: str | None,
    data: str | None,
    store: str | None,
    store_direct: str | None,
    assignments: tuple[str, ...],
    config: str | None,
    processes: int | None,
    given_up: tuple[int, ...],
    log_level: str,
) -> None:
    """Run a broker; print `ready HOST:PORT` when it answers.

    Alone over a directory, as several brokers on one machine (--processes), or as one of several over a
    database (--store). Of several that it runs all are named, as HOST:PORT,HOST:PORT, when each answers.
    SIGTERM or Ctrl-C stops it. Its log goes to standard error.
    """
    to_standard_error(log_level)
    _check_places(data, store, store_direct, processes)
    if given_up and processes is None:
        raise click.UsageError("--lost names a broker of several: it goes with --processes")
    with _ended_at_once():
        given = {name: text.strip() for name, text in named_settings(config, assignments).items()}
        if listen is not None:
            given["listeners"] = f"PLAINTEXT://{listen}"
        if data is not None:
            given["log.dirs"] = data
        settings = _settings_of(given)
        if store is not None:
            sys.exit(_serve_over(settings, store, store_direct))
        for note in settings.notes:
            _say(f"note: {note}")
        if settings.data_directory:
            sys.exit(_serve(given, processes, log_level, given_up))
        _note_store_of_variable()
        with _temporary_directory() as temporary:
            sys.exit(_serve(given | {"log.dirs": temporary}, processes, log_level, given_up))


def _note_store_of_variable() -> None:
    """Say so where a database is named by the variable that other commands read, and topics go elsewhere."""
    from coterie.cli.store import STORE_VARIABLE

    if os.environ.get(STORE_VARIABLE):
        _say(
            f'note: {STORE_VARIABLE} is read by coterie store alone; --store "${STORE_VARIABLE}" has this'
            " broker serve from that database"
        )


def _settings_of(given: Mapping[str, str]) -> BrokerSettings:
    """Return the settings with these names. Raises `CoterieError`, for one of clients with whose it is."""
    from coterie.broker.config.settings import BrokerSettings, UnknownSetting

    try:
        return BrokerSettings.of(given)
    except UnknownSetting as error:
        if not (whose := client_with(error.name)):
            raise
        raise CoterieError(
            f"{error.name} is a setting of {whose}, not of a broker; leave it out here"
        ) from error


def _check_places(data: str | None, store: str | None, direct: str | None, processes: int | None) -> None:
    """Raise UsageError where it is not clear where topics are to be kept, or in too many places."""
    if processes is not None and processes > PROCESSES_MAX:
        raise click.UsageError(
            f"--processes {processes}: at most {PROCESSES_MAX}; one for each core is enough, and each has"
            " a port, a directory and memory of its own"
        )
    if data is not None and not data.strip():  # "$UNSET": what is kept would go with the broker
        raise click.UsageError("--data names no directory; leave it out for one that is deleted at the end")
    if store is None:
        if direct is not None:
            raise click.UsageError("--store-direct is another way to the database that --store names")
    elif data is not None:
        raise click.UsageError("topics are kept either in a directory (--data) or in a database (--store)")
    elif processes is not None:
        raise click.UsageError("over a database each broker is started by itself: leave out --processes")


def _serve(given: Mapping[str, str], processes: int | None, log_level: str, given_up: tuple[int, ...]) -> int:
    from coterie.broker.config.settings import BrokerSettings

    return (
        _serve_alone(BrokerSettings.of(given))
        if processes is None
        else _serve_several(given, processes, log_level, given_up)
    )


def _serve_several(
    given: Mapping[str, str], processes: int, log_level: str, given_up: tuple[int, ...]
) -> int:
    from coterie.broker.processes.layout import CannotArrange
    from coterie.broker.processes.serving import serve_processes
    from coterie.broker.shell.listening import CannotServe

    try:
        ended = serve_processes(given, processes, log_level, given_up=given_up)
    except (CannotArrange, CannotServe) as error:
        _say(str(error))
        return 1
    if ended.sentence:
        _say(ended.sentence)
    return ended.code


def _serve_alone(settings: BrokerSettings) -> int:
    from coterie.broker.main import serve

    return _exit_code(lambda: serve(settings))


def _serve_over(settings: BrokerSettings, store: str, direct: str | None) -> int:
    """Serve as one of several brokers over a database; return the exit code."""
    if not settings.given.keys() & {"node.id", "broker.id"}:
        raise CoterieError("which of the cluster's brokers this is has to be said: --set node.id=N")
    if settings.node_id < 0:
        raise CoterieError(f"node.id is {settings.node_id}; it takes a whole number of at least 0")
    from coterie.cli.store import address_of

    used_by = f"coterie broker {settings.node_id}"
    address = address_of(store, used_by=used_by)
    reached = address if direct is None else address_of(direct, used_by=used_by)
    for note in settings.notes_among_others():
        _say(f"note: {note}")
    _note_if_alone(settings, address)
    from coterie.broker.over_database import StoreAddresses, serve_over

    return _exit_code(lambda: serve_over(settings, StoreAddresses(address, reached)))


def _note_if_alone(settings: BrokerSettings, address: DatabaseAddress) -> None:
    """Say so where the database is on another machine, and other machines do not find this broker."""
    from coterie.storage.postgres.connecting import is_here

    host, port = settings.advertised_listener or (settings.listen_host, settings.listen_port)
    if is_here(host) and not address.is_here:
        _say(
            f"note: clients and other brokers are told to connect to {host}:{port}, which works on this"
            f" machine alone; where they are on others give --listen 0.0.0.0:{port} and --set"
            f" advertised.listeners=PLAINTEXT://NAME:{port}, NAME being this machine's"
        )


def _exit_code(serve: Callable[[], int]) -> int:
    """Return the exit code of a broker; where it could not begin, say why."""
    from coterie.broker.shell.listening import CannotServe

    try:
        return serve()
    except CannotServe as error:
        _say(str(error))
        return 1


@contextlib.contextmanager
def _temporary_directory() -> Iterator[str]:
    """Make a directory that lasts as long as the broker runs."""
    import shutil
    import tempfile

    temporary = tempfile.mkdtemp(prefix="coterie-")
    delete = partial(shutil.rmtree, temporary, ignore_errors=True)
    with _ended_at_once(delete):
        try:
            _say(f"no --data: topics are kept in {temporary} and deleted when the broker stops")
            yield temporary
        finally:
            delete()


@contextlib.contextmanager
def _ended_at_once(first: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Have what asks the process to stop while a broker starts, and does not listen for it yet, end the
    process at once, but for what is to be done `first`: like kill -9 it may come between any two steps.
    """

    def end(_: int, __: object) -> None:
        first()
        with contextlib.suppress(OSError):  # and not by `sys.stderr`, which may be at work just now
            os.write(2, STOPPED_EARLY)
        os._exit(0)

    handlers = {}
    for number in (*stop_signals(), signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as beneath `nohup ... &`
            with contextlib.suppress(ValueError):  # not the main thread
                handlers[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _say(sentence: str) -> None:
    sys.stderr.write(f"coterie: {plain(sentence)}\n")
