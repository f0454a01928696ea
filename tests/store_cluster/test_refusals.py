"""`coterie serve --store` where it cannot serve: a sentence that says what to do, and exit code 1."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import NamedTuple

import pytest
from bench.brokers import free_port
from bench.database_proxy import Proxy
from bench.postgres import Server
from bench.store_cluster import StoreBroker

from coterie.cli import main
from coterie.storage.postgres.advice import passing_reason

NODE = ("--set", "node.id=1")
PASSWORD = "se-cr-et"
SESSIONS = "SELECT * FROM pg_stat_activity WHERE datname LIKE 'test%'"
SLEEPS, WAITS = "wait_event = 'PgSleep'", "wait_event_type = 'Lock'"
SHUT_OUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'"


def until(true: Callable[[], bool]) -> None:
    """Return once it is true."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it never comes true"
        time.sleep(0.02)


class Ended(NamedTuple):
    """How the command ended, and what it wrote to standard error."""

    code: object
    said: str


Serve = Callable[..., Ended]


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str]) -> Serve:
    """A function that runs `coterie serve` in this process until it is refused."""

    def run(*words: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--listen", "127.0.0.1:0", *words])
        return Ended(ended.value.code, capsys.readouterr().err)

    return run


@pytest.fixture
def guarded(server: Server) -> Iterator[Server]:
    """The server, which asks the user `guard` for a password."""
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    server.sql("postgres", f"CREATE ROLE guard LOGIN PASSWORD '{PASSWORD}'")
    rules.write_text(f"host all guard 127.0.0.1/32 scram-sha-256\nhost all nobody all reject\n{before}")
    server.sql("postgres", "SELECT pg_reload_conf()")
    yield server
    rules.write_text(before)
    server.sql("postgres", "SELECT pg_reload_conf()")
    server.sql("postgres", "DROP ROLE guard")


def test_topics_are_kept_in_a_directory_or_in_a_database(serve: Serve, tmp_path: Path) -> None:
    ended = serve("--store", "postgresql://h/d", "--data", str(tmp_path), *NODE)

    assert ended.code == 2
    assert "either in a directory (--data) or in a database (--store)" in ended.said


def test_another_way_to_the_database_needs_a_first(serve: Serve) -> None:
    ended = serve("--store-direct", "postgresql://h/d", *NODE)

    assert (ended.code, "--store names" in ended.said) == (2, True)


def test_a_broker_of_a_cluster_says_which_it_is(serve: Serve) -> None:
    ended = serve("--store", "postgresql://h/d")

    assert (ended.code, "--set node.id=N" in ended.said) == (1, True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://h/d", "begins with postgresql://"),
        ("postgresql://h", "names the database"),
        ("postgresql://h:x/d", "no number"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, said: str, serve: Serve) -> None:
    ended = serve("--store", url, *NODE)

    assert (ended.code, said in ended.said) == (1, True)


def test_who_listens_where_no_other_machine_finds_it_is_told_so(serve: Serve) -> None:
    # The port that is taken ends it before it asks for a database, which is on another machine.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = serve("--store", "postgresql://h/d", *NODE, "--listen", f"127.0.0.1:{port}")
        named = ("--set", f"advertised.listeners=PLAINTEXT://kafka-1:{port}")
        other = serve("--store", "postgresql://h/d", *NODE, "--listen", f"127.0.0.1:{port}", *named)
        here = serve("--store", "postgresql://localhost/d", *NODE, "--listen", f"127.0.0.1:{port}")

    assert ended.code == 1
    assert (
        f"note: clients and other brokers are told to connect to 127.0.0.1:{port}, which works on"
        in ended.said
    )
    assert f"advertised.listeners=PLAINTEXT://NAME:{port}" in ended.said
    assert "note:" not in other.said + here.said


def test_without_the_driver_it_is_named() -> None:
    # In a process of its own: what is imported anew here would stay for the tests that follow.
    without = "import sys; sys.modules['asyncpg'] = None; from coterie.cli import main; main()"
    command = [sys.executable, "-c", without, "serve", "--store", "postgresql://h/d", *NODE]

    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ended.returncode, "pip install '.[postgres]'" in ended.stderr) == (1, True)


def test_a_session_shorter_than_two_heartbeats_is_refused(serve: Serve, server: Server) -> None:
    words = ("--set", "broker.session.timeout.ms=500")

    ended = serve("--store", server.url(server.new_database()), *NODE, *words)

    assert (ended.code, "longer than two intervals" in ended.said) == (1, True)


def test_a_database_that_is_not_there_is_to_be_made(serve: Serve, server: Server) -> None:
    ended = serve("--store", server.url("no_such"), *NODE)

    assert (ended.code, '"no_such" does not exist; createdb makes one' in ended.said) == (1, True)


def test_a_wrong_password_is_refused_and_not_repeated(serve: Serve, guarded: Server) -> None:
    url = guarded.url("postgres").replace("postgres@", "guard:wr-on-g@")

    ended = serve("--store", url, *NODE)

    assert ended.code == 1
    assert "password authentication failed" in ended.said
    assert "postgresql://USER:PASSWORD@HOST/DATABASE), from PGPASSWORD" in ended.said
    assert "wr-on-g" not in ended.said


def test_who_gives_no_password_is_asked_for_one_and_told_where(
    serve: Serve, guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    monkeypatch.delenv("PGPASSWORD", raising=False)

    ended = serve("--store", guarded.url("postgres", user="guard"), *NODE)

    assert (ended.code, "is a password given, and the right one?" in ended.said) == (1, True)


def test_who_is_not_let_in_is_told_where_that_is_decided(serve: Serve, guarded: Server) -> None:
    ended = serve("--store", guarded.url("postgres", user="nobody"), *NODE)

    assert (ended.code, "pg_hba.conf" in ended.said) == (1, True)


def test_who_may_not_make_tables_is_told_who_can(serve: Serve, guarded: Server) -> None:
    database = guarded.new_database()

    ended = serve("--store", guarded.url(database).replace("postgres@", f"guard:{PASSWORD}@"), *NODE)

    assert ended.code == 1
    assert "guard may not make them: run coterie store migrate" in ended.said
    assert PASSWORD not in ended.said


def test_who_may_not_write_the_tables_is_told_what_to_grant(serve: Serve, guarded: Server) -> None:
    database = guarded.new_database()
    url = guarded.url(database)
    with pytest.raises(SystemExit):
        main(["store", "migrate", url])

    ended = serve("--store", url.replace("postgres@", f"guard:{PASSWORD}@"), *NODE)

    assert (ended.code, "GRANT coterie_broker TO" in ended.said) == (1, True)


def test_who_may_not_look_is_told_what_to_grant(guarded: Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = guarded.url(guarded.new_database())
    with pytest.raises(SystemExit):
        main(["store", "migrate", url])
    capsys.readouterr()

    for command in ("describe", "restored"):
        with pytest.raises(SystemExit) as ended:
            main(["store", command, url.replace("postgres@", f"guard:{PASSWORD}@")])
        said = capsys.readouterr().err
        assert ended.value.code == 1
        assert "permission denied for schema coterie" in said
        assert "GRANT coterie_reader" in said
        assert PASSWORD not in said


def test_a_command_finds_no_server_and_asks_whether_it_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["store", "describe", f"postgresql://127.0.0.1:{free_port()}/d"])

    said = capsys.readouterr().err
    assert (ended.value.code, "nobody listens there; is the address right, and PostgreSQL up?" in said) == (
        1,
        True,
    )


@pytest.mark.parametrize("command", ["migrate", "describe", "restored", "load", "dump"])
def test_each_command_takes_the_url_from_the_variable_where_it_is_left_out(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by a reviewer: `dump` did not."""
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=a-cluster\n")
    directory = {"load": [str(tmp_path)], "dump": [str(tmp_path / "new")]}.get(command, [])
    here, there = (f"postgresql://127.0.0.1:{free_port()}/d" for _ in range(2))
    monkeypatch.setenv("COTERIE_STORE", there)

    def said(*words: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["store", command, *words])
        return ended.value.code, capsys.readouterr().err

    from_variable = said(*directory)
    given = said(*([here, *directory] if command == "dump" else [*directory, here]))
    monkeypatch.delenv("COTERIE_STORE")
    missing = said(*directory)

    assert (from_variable[0], from_variable[1].startswith(f"coterie: {there}: nobody listens")) == (1, True)
    assert (given[0], given[1].startswith(f"coterie: {here}: nobody listens there")) == (1, True)
    assert (missing[0], "Missing argument 'URL'" in missing[1]) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument 'DIR'"),
        (["postgresql://h/d"], "Missing argument 'DIR'"),
        (["out", "postgresql://h/d"], "URL stands before DIR"),
        (["postgresql://h/d", "out", "more"], "unexpected extra argument (more)"),
    ],
)
def test_what_is_to_be_dumped_and_where_is_told_apart(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["store", "dump", *words])

    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)


def test_the_name_of_no_host_is_said_to_be_that() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert passing_reason(error) == "Name or service not known; is the host's name right?"


@pytest.mark.parametrize("holds", [(), ("projects-0",), ("projects-0", "projects-0/notes.log"), ("a.txt",)])
def test_a_directory_that_no_broker_has_used_is_not_taken_for_a_brokers_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], holds: tuple[str, ...]
) -> None:
    for name in holds:
        (tmp_path / name).touch() if "." in name else (tmp_path / name).mkdir()

    with pytest.raises(SystemExit) as ended:
        main(["store", "load", str(tmp_path), "postgresql://127.0.0.1/d"])

    assert ended.value.code == 1
    assert "name the directory that a broker has kept its topics in" in capsys.readouterr().err
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == sorted(holds)


def test_a_dump_that_does_not_begin_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["store", "dump", f"postgresql://127.0.0.1:{free_port()}/d", str(tmp_path / "out")])

    assert (ended.value.code, "nobody listens" in capsys.readouterr().err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_schema_of_that_name_that_is_somebody_elses_is_left_alone(serve: Serve, server: Server) -> None:
    database = server.new_database()
    server.sql(database, "CREATE SCHEMA coterie")

    ended = serve("--store", server.url(database), *NODE)

    assert ended.code == 1
    assert 'schema "coterie" already exists, without a cluster\'s tables: drop it if nobody' in ended.said


def test_tables_of_an_older_schema_are_to_be_migrated(serve: Serve, server: Server) -> None:
    database = server.new_database()
    url = server.url(database)
    with pytest.raises(SystemExit):
        main(["store", "migrate", url])
    server.sql(database, "UPDATE coterie.cluster SET schema = 0")

    ended = serve("--store", url, *NODE)

    assert (ended.code, "run coterie store migrate, which leaves brokers running" in ended.said) == (1, True)


def test_a_cluster_of_a_higher_level_is_none_for_this_software(serve: Serve, server: Server) -> None:
    database = server.new_database()
    url = server.url(database)
    with pytest.raises(SystemExit):
        main(["store", "migrate", url])
    server.sql(database, "UPDATE coterie.cluster SET level = 7, version = version + 1")

    ended = serve("--store", url, *NODE)

    assert (ended.code, "the cluster is at level 7, and this software at 0" in ended.said) == (1, True)


def test_two_ways_have_to_lead_to_one_database(serve: Serve, server: Server) -> None:
    one, other = server.url(server.new_database()), server.url(server.new_database())

    ended = serve("--store", one, "--store-direct", other, *NODE)

    assert (ended.code, "is another database than" in ended.said) == (1, True)


def test_a_port_that_is_taken_is_named_before_the_database_is_asked(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = serve("--listen", f"127.0.0.1:{port}", "--store", "postgresql://127.0.0.1:1/d", *NODE)

    assert (ended.code, f"cannot listen on 127.0.0.1:{port}" in ended.said) == (1, True)


@pytest.mark.interop
def test_a_broker_waits_for_a_database_that_is_away(server: Server, tmp_path: Path) -> None:
    later = Server()
    later.port = free_port()
    broker = StoreBroker(1, later.url("postgres"), tmp_path / "log", {})
    broker.begin()
    try:
        while "waiting for the database" not in broker.log:
            time.sleep(0.01)
        with later:
            broker.until_ready()
            assert broker.stop() == 0
    finally:
        broker.kill()


@pytest.mark.interop
def test_a_broker_that_waits_ends_with_a_signal_and_shows_nobody_the_password(tmp_path: Path) -> None:
    broker = StoreBroker(1, f"postgresql://me:{PASSWORD}@127.0.0.1:{free_port()}/d", tmp_path / "log", {})
    broker.begin()
    while "waiting for the database" not in broker.log:
        time.sleep(0.01)
    shown = Path(f"/proc/{broker.pid}/cmdline").read_text()
    broker.send(signal.SIGTERM)

    assert "postgresql://me:********@127.0.0.1" in shown
    assert PASSWORD not in broker.log

    assert broker.wait() == 0


@contextmanager
def held(server: Server, database: str) -> Iterator[None]:
    """Have somebody keep the lock of the metadata's changes."""
    hold = "BEGIN; SELECT FROM coterie.cluster FOR UPDATE; SELECT pg_sleep(60)"
    with ThreadPoolExecutor(1) as beside:
        holding = beside.submit(server.sql, database, hold)
        until(lambda: server.sql("postgres", f"SELECT count(*) FROM ({SESSIONS}) AS s WHERE {SLEEPS}") != "0")
        try:
            yield
        finally:  # or a test that fails waits here for a minute
            server.sql("postgres", SHUT_OUT % database)
        assert holding.exception() is not None


@pytest.mark.parametrize("away", [True, False])
def test_a_broker_that_is_stopped_before_it_serves_says_what_it_waited_for(
    away: bool, server: Server, tmp_path: Path
) -> None:
    """Found by a reviewer: it ended without a word."""
    database = server.new_database()
    with pytest.raises(SystemExit):
        main(["store", "migrate", server.url(database)])
    broker = StoreBroker(1, server.url(database), tmp_path / "log", {})

    with held(server, database):
        broker.begin()
        until(lambda: server.sql("postgres", f"SELECT count(*) FROM ({SESSIONS}) AS s WHERE {WAITS}") != "0")
        if away:
            server.sql("postgres", f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
            server.sql("postgres", SHUT_OUT % database)
            until(lambda: "is not reached" in broker.log)
        broker.send(signal.SIGTERM)
        code = broker.wait()

    said = broker.log.splitlines()[-1]
    assert code == 0
    assert "stopped before it was ready: it waited for the database" in said
    assert ("which is not reached: " in said, "which answers, but not all" in said) == (away, not away)


class PoolerThatGoes(Proxy):
    """Lets the first through who connects, and has all others wait."""

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = asyncio.ensure_future(super()._accept(reader, writer))
        await asyncio.sleep(0)  # this one is beyond the gate, if it was open
        self.open.clear()
        await accepted


async def pool(server: Server, ports: SimpleQueue[int], over: Event) -> None:
    """Be such a pooler until it is over."""
    pooler = PoolerThatGoes(server.port)
    await pooler.start()
    ports.put(pooler.port)
    await asyncio.to_thread(over.wait)
    pooler.open.set()  # whoever waits is cut off with the others
    await asyncio.sleep(0.5)
    await pooler.stop()


@contextmanager
def pooler_that_goes(server: Server) -> Iterator[int]:
    """Yield the port of such a pooler."""
    ports, over = SimpleQueue[int](), Event()
    with ThreadPoolExecutor(1) as beside:
        going = beside.submit(lambda: asyncio.run(pool(server, ports, over)))
        try:
            yield ports.get(timeout=10)
        finally:
            over.set()
        going.result()


def test_a_broker_whose_pooler_has_gone_is_stopped_before_it_serves_within_seconds_and_as_asked(
    server: Server, tmp_path: Path
) -> None:
    """It waited for ten seconds, after which supervisors kill, and ended with exit code 1."""
    database = server.new_database()
    with pytest.raises(SystemExit):
        main(["store", "migrate", server.url(database)])

    with pooler_that_goes(server) as port:
        broker = StoreBroker(
            1, server.url(database, port=port), tmp_path / "log", {}, direct=server.url(database)
        )
        broker.begin()
        until(lambda: "broker epoch 1 begins" in broker.log)
        broker.send(signal.SIGTERM)
        stopped_s = time.monotonic()
        code = broker.wait()

    said = broker.log.splitlines()[-1]
    assert code == 0
    assert time.monotonic() - stopped_s < 8
    assert "stopped before it was ready: it waited for its connections for writing to postgresql://" in said


def test_a_database_that_a_broker_serves_from_is_not_taken_for_a_backups(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = server.url(server.new_database())
    broker = StoreBroker(7, url, tmp_path / "log", {})

    def restored(*words: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["store", "restored", url, *words])
        return ended.value.code, capsys.readouterr().err

    try:
        broker.start()
        code, said = restored()
        served_on = "is over" not in broker.log
        confirmed, _ = restored("--yes")
        while "broker epoch 1 is over" not in broker.log:
            assert broker.process is not None
            assert broker.process.poll() is None
            time.sleep(0.01)
    finally:
        broker.kill()

    assert (code, served_on, confirmed) == (1, True, 0)
    assert "broker 7 serves from this database, so nothing is changed" in said
