"""Where a store is, how its connections are made, and what errors say."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from bench.postgres import USER, Server

from coterie.base.errors import CoterieError
from coterie.storage.postgres import connecting, lane_session, serial
from coterie.storage.postgres.advice import connect_or_say, passing_reason, what_to_put_right
from coterie.storage.postgres.connecting import (
    Connections,
    DatabaseAddress,
    connect,
    failure_of,
    read_history,
)
from coterie.storage.postgres.lane_session import LaneSession
from coterie.storage.postgres.serial import SerialConnection
from coterie.storage.remote.session import Broken, Failed, Look, Verdict, verdict_of

from .rigs.lane_places import PLACE, InPostgres

LOCK = "SELECT pg_advisory_lock(4711)"
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"


def test_a_password_is_never_shown():
    shown = str(DatabaseAddress("postgresql://broker:s%40cret@db:5433/coterie?sslmode=disable&password=x"))

    assert shown == "postgresql://broker:***@db:5433/coterie"


@pytest.mark.parametrize(
    ("url", "variables", "shown"),
    [
        ("postgresql://db/coterie", {}, "postgresql://db/coterie"),
        ("postgresql://db/coterie", {"PGPORT": "5433", "PGHOST": "other"}, "postgresql://db:5433/coterie"),
        ("postgresql://a:1,b/coterie", {"PGPORT": "5433"}, "postgresql://a:1,b:5433/coterie"),
        ("postgresql://me:pw@/coterie", {"PGHOST": "a,b"}, "postgresql://me:***@a,b/coterie"),
        ("postgresql:///coterie", {"PGHOST": "::1", "PGPORT": "5433"}, "postgresql://[::1]:5433/coterie"),
        ("postgresql://db/coterie?port=5434", {"PGPORT": "5433"}, "postgresql://db:5434/coterie"),
        ("postgresql://db/coterie?host=other&password=pw", {}, "postgresql://other/coterie"),
        ("postgresql:///coterie?host=/tmp", {}, "postgresql:///coterie?host=/tmp"),
        ("postgresql:///coterie", {"PGPORT": "5433"}, "postgresql:///coterie?port=5433"),
        ("postgresql:///coterie", {"PGPASSWORD": "pw"}, "postgresql:///coterie"),
        ("postgresql://db:/coterie", {"PGPORT": "5433"}, "postgresql://db:5433/coterie"),
        ("postgresql://[::1]:,db:/coterie", {}, "postgresql://[::1],db/coterie"),
    ],
)
def test_the_address_is_shown_that_is_asked_wherever_its_parts_come_from(
    url: str, variables: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch
):
    """Found by a reviewer: an error named the URL without the port, which PGPORT had said."""
    for name in ("PGHOST", "PGPORT", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert str(DatabaseAddress(url)) == shown


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://db/coterie", "begins with postgresql://, and this is mysql://"),
        (
            "postgresql://me:se#cret@db/coterie",
            "a sign in the password of a store's address ends it: write / as",
        ),
        (
            "postgresql://me:se?cret@db/coterie",
            "a sign in the password of a store's address ends it: write / as",
        ),
        (
            "postgresql://me:se/cret@db/coterie",
            "a sign in the password of a store's address ends it: write / as",
        ),
        ("postgresql://db", "names the database: write postgresql://db/coterie, if it is called coterie"),
        (
            "postgresql://me:secret@db/?sslmode=disable",
            r"write postgresql://me:\*\*\*@db/coterie\?\.\.\., if",
        ),
        ("postgresql://db:port/coterie", "a port that is no number: port"),
        ("postgresql://db:99999/coterie", "a port that is none: 99999"),
        ("postgresql://[::1/coterie", "no URL: Invalid IPv6 URL"),
        ("postgresql://db::5433/coterie", r"a port that is no number: :5433 \(an IPv6 address is written in"),
        ("postgresql://fe80::1/coterie", r"no number: :1 \(an IPv6 address is written in brackets, as in"),
        ("postgresql://[::1]5433/coterie", r"has \[::1\]5433 where a host and its port belong: an IPv6"),
    ],
)
def test_what_is_no_address_is_refused_with_a_sentence(url: str, sentence: str):
    with pytest.raises(CoterieError, match=sentence):
        DatabaseAddress(url)


def test_hosts_are_tried_in_their_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PGPORT", raising=False)
    url = "postgres://broker@a,b:5433,[::1]:5434/coterie"

    assert DatabaseAddress(url).hosts == [("a", 5432), ("b", 5433), ("::1", 5434)]
    assert DatabaseAddress(f" {url}\n").hosts == DatabaseAddress(url).hosts


def who_connects(url: str) -> str:
    """Return the user of a connection to an address."""

    async def ask() -> str:
        connection = await connect(DatabaseAddress(url))
        found: str = await connection.fetchval("SELECT current_user")
        await connection.close()
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize("password", ["se[cr]et", "se]cret", "se[cret", "se\u2100cret", "%2F%3f%40", "a@b"])
def test_a_password_may_have_any_sign_that_is_no_end_of_it(server: Server, password: str):
    assert who_connects(server.url("postgres").replace(f"{USER}@", f"{USER}:{password}@")) == USER


def test_of_hosts_that_are_not_there_an_ipv6_address_among_them_the_next_is_tried(server: Server):
    assert who_connects(server.url("postgres").replace("@", "@127.0.0.1:1,[::1]:1,")) == USER


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://a,b:5433/c", [("a", 6000), ("b", 5433)]),
        ("postgresql://me@/c", [("/run/postgresql", 6000)]),
        ("postgresql://me@a,/c", [("a", 6000), (None, 6000)]),
        ("postgresql:///c?host=/tmp&port=5434", [("/tmp", 5434)]),
        ("postgresql:///c?host=::1,b&port=1,2", [("::1", 1), ("b", 2)]),
        ("postgresql://a/c?host=b", [("b", 6000)]),
    ],
)
def test_what_an_address_leaves_out_is_said_behind_it_or_by_the_environment_as_to_psql(
    url: str, hosts: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PGHOST", "/run/postgresql")
    monkeypatch.setenv("PGPORT", "6000")

    assert DatabaseAddress(url).hosts == hosts


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a host that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that nobody listens at, and nobody else is given meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def at_port(port: int) -> DatabaseAddress:
    """Return the address of a database that a port of this machine leads to."""
    return DatabaseAddress(f"postgresql://{USER}@127.0.0.1:{port}/coterie?sslmode=disable")


def among(server: Server, database: str, *ports: int) -> DatabaseAddress:
    """Return the address of a database that is on one of several hosts."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return DatabaseAddress(f"postgresql://{USER}@{hosts}/{database}?sslmode=disable")


def test_a_host_that_is_silent_keeps_nobody_from_the_next(
    server: Server, database: str, silent: int, closed: int
):
    address = among(server, database, silent, closed, server.port)
    address.arguments["timeout"] = None  # whoever waited for the first one would wait for ever

    async def scene() -> int:
        connection = await connect(address)
        try:
            return await connection.fetchval("SELECT inet_server_port()")
        finally:
            connection.terminate()

    assert asyncio.run(scene()) == server.port


LIMITED = {
    "default_transaction_isolation": "'serializable'",
    "statement_timeout": "'5s'",
    "lock_timeout": "'50ms'",
    "idle_session_timeout": "'2s'",
    "jit": "on",
    "enable_bitmapscan": "on",
    "enable_seqscan": "on",
}


def test_what_a_database_limits_applications_to_is_nothing_to_a_broker(server: Server, database: str):
    async def settings() -> list[str]:
        connection = await connect(among(server, database, server.port))
        found = [await connection.fetchval(f"SHOW {name}") for name in LIMITED]
        connection.terminate()
        return found

    for name, value in LIMITED.items():
        server.sql("postgres", f"ALTER DATABASE {database} SET {name} = {value}")

    assert asyncio.run(settings()) == ["read committed", "0", "0", "0", "off", "off", "off"]


LET_IN = struct.pack(">cii", b"R", 8, 0) + b"".join(
    struct.pack(">ci", b"S", 4 + len(text)) + text
    for text in (
        b"server_version\x0015.0\x00",
        b"in_hot_standby\x00off\x00",
        b"default_transaction_read_only\x00off\x00",
    )
)
"""What a server says to whom it lets in, before it is ready."""


def test_who_is_let_in_and_then_told_nothing_gives_up_in_time(monkeypatch: pytest.MonkeyPatch):
    """A pooler that is to end, or has no connection to give, took one after the other from a broker."""
    monkeypatch.setattr(connecting, "CONNECT_S", 0.2)
    ended = threading.Event()

    def let_in(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client:
            client.recv(1 << 16)
            client.sendall(LET_IN + struct.pack(">cic", b"Z", 5, b"I"))
            while client.recv(1 << 16):
                pass
        ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=let_in, args=(listening,))
        thread.start()
        with pytest.raises(connecting.LOST):
            asyncio.run(connect(at_port(listening.getsockname()[1])))
        thread.join(10)
    assert ended.is_set()


def test_where_no_host_can_be_used_the_last_one_says_why(server: Server, closed: int):
    address = among(server, "no_such_database", closed, server.port)

    with pytest.raises(asyncpg.InvalidCatalogNameError):
        asyncio.run(connect(address))


def test_who_gives_up_connecting_leaves_no_attempt_behind(server: Server, database: str, silent: int):
    address = among(server, database, silent, silent)
    address.arguments["timeout"] = None

    async def scene() -> None:
        attempt = asyncio.create_task(connect(address))
        await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.wait([attempt])
        assert attempt.cancelled()

    asyncio.run(scene())  # which fails where a task is left


@pytest.mark.parametrize("host", ["db.example", "10.0.0.1", "db,localhost", "[2001:db8::1]:5433"])
def test_a_server_elsewhere_shows_a_certificate_of_its_name(host: str):
    context = DatabaseAddress(f"postgresql://broker@{host}/coterie").arguments["ssl"]

    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1:5433", "[::1]", "%2Fvar%2Frun%2Fpostgresql"])
def test_a_server_of_this_machine_needs_none(host: str):
    assert "ssl" not in DatabaseAddress(f"postgresql://broker@{host}/coterie").arguments


def test_sslmode_and_target_session_attrs_are_taken_at_their_word():
    said = DatabaseAddress("postgresql://db/coterie?sslmode=disable&target_session_attrs=any").arguments
    unsaid = DatabaseAddress("postgresql://db/coterie").arguments

    assert "ssl" not in said
    assert "target_session_attrs" not in said
    assert unsaid["target_session_attrs"] == "read-write"


def server_error(sqlstate: str, severity: str) -> asyncpg.PostgresError:
    """Return an error as the driver makes it of the server's words."""
    fields = {"C": sqlstate, "M": "words", "S": severity, "V": severity}
    error: asyncpg.PostgresError = asyncpg.PostgresError.new(fields)
    return error


@pytest.mark.parametrize("sqlstate", ["23505", "40001", "57014", "53100"])
def test_an_error_of_the_servers_is_the_answer(sqlstate: str):
    assert failure_of(server_error(sqlstate, "ERROR")) == Failed(sqlstate, "words")


@pytest.mark.parametrize("severity", ["FATAL", "PANIC"])
def test_an_error_that_ends_the_connection_says_nothing_about_the_statement(severity: str):
    assert isinstance(failure_of(server_error("53100", severity)), Broken)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.InterfaceError("connection is closed"),
        ConnectionResetError(),
        TimeoutError(),
        EOFError(),
    ],
)
def test_whatever_the_driver_says_by_itself_is_a_connection_that_is_gone(error: Exception):
    assert isinstance(failure_of(error), Broken)


def test_what_the_driver_calls_its_states_is_said_in_plain_words():
    error = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

    assert failure_of(error) == Broken("the connection has failed midway")
    assert passing_reason(error) == "the connection has failed midway"


def test_details_and_hints_of_the_servers_are_in_the_same_line():
    fields = {
        "C": "23503",
        "M": "it fails",
        "V": "ERROR",
        "D": "Key (id)=(1) is there.",
        "H": "Take it away.",
    }
    error = asyncpg.PostgresError.new(fields)

    assert failure_of(error) == Failed("23503", "it fails; Key (id)=(1) is there; Take it away")
    assert what_to_put_right(error) == "it fails; Key (id)=(1) is there; Take it away"


def test_a_value_that_cannot_be_sent_has_done_nothing():
    answer = failure_of(asyncpg.exceptions._base.DataError("invalid input for query argument"))

    assert isinstance(answer, Failed)
    assert verdict_of(answer.sqlstate) is Verdict.REFUSE


# -- servers


def test_who_is_gone_waits_for_no_lock_any_longer(address: DatabaseAddress):
    """A table is locked for a minute, and each attempt of a minute would be a connection that is taken."""

    async def give_up(holder: Any) -> None:
        connection = SerialConnection(Connections(address, asyncio.get_running_loop()))
        opened = asyncio.Event()
        connection.open(lambda _: asyncio.sleep(0), lambda _: opened.set(), lambda: None)
        await opened.wait()
        connection.run(lambda driver: driver.execute(LOCK), lambda _: None)
        while await holder.fetchval(WAITING) == 0:
            pass
        connection.close()

    asyncio.run(while_locked(address, give_up))


def test_jobs_that_go_ahead_take_turns_with_the_others_and_each_keep_their_order(address: DatabaseAddress):
    """Else those that are asked for again and again, as a lock keeps them, would keep others for ever."""

    async def in_turns() -> str:
        connection = SerialConnection(Connections(address, asyncio.get_running_loop()))
        opened, done = asyncio.Event(), asyncio.Event()
        connection.open(lambda _: asyncio.sleep(0), lambda _: opened.set(), lambda: None)
        await opened.wait()
        began: list[str] = []
        for name in "abcXYZ":

            async def job(driver: Any, name: str = name) -> None:
                began.append(name)
                await driver.execute("SELECT 1")

            last = done.set if name == "Z" else bool
            connection.run(job, lambda _, last=last: last(), ahead=name.isupper())  # type: ignore[misc]
        await done.wait()
        connection.close()
        return "".join(began)

    assert asyncio.run(in_turns()) == "aXbYcZ"


def test_a_life_that_is_given_up_waits_for_no_lock_any_longer(
    address: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    """But for its appends, for which the next life waits: test_lane_on_server."""
    of_five = f"{LOCK} WHERE ($1::int, $2::int, $3::bigint, $4::bigint, $5::oid) IS NOT NULL"
    monkeypatch.setattr(lane_session, "BEGIN_LIFE", of_five)

    async def give_up(holder: Any) -> None:
        session = LaneSession(Connections(address, asyncio.get_running_loop()), PLACE, lambda *_: None)
        session.reopen(1, Look(None, None))
        while await holder.fetchval(WAITING) == 0:
            pass
        session.abort()

    asyncio.run(while_locked(address, give_up))


def test_a_connection_that_is_not_begun_in_time_is_given_up(
    address: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    """Whoever asked for it asks for another, and for another: each would wait until the table is let go."""
    monkeypatch.setattr(serial, "BEGIN_WITHIN_S", 0)

    async def begin(holder: Any) -> None:
        ended = asyncio.Event()
        connection = SerialConnection(Connections(address, asyncio.get_running_loop()))
        connection.open(lambda driver: driver.execute(LOCK), pytest.fail, ended.set)
        await ended.wait()

    asyncio.run(while_locked(address, begin))


def test_once_connections_are_closed_nobody_waits_for_one_or_gets_another(
    address: DatabaseAddress, silent: int
):
    """One connects just now, one has a statement under way before it is open, one another."""

    async def close(holder: Any) -> None:
        loop = asyncio.get_running_loop()
        here, there = Connections(address, loop), Connections(at_port(silent), loop)
        ended: list[str] = []
        answers: asyncio.Queue[object] = asyncio.Queue()
        opened = SerialConnection(here)
        opened.open(lambda _: asyncio.sleep(0), answers.put_nowait, lambda: ended.append("open"))
        await answers.get()
        opened.run(lambda driver: driver.execute(LOCK), answers.put_nowait)
        SerialConnection(here).open(
            lambda driver: driver.execute(LOCK), pytest.fail, lambda: ended.append("begun")
        )
        SerialConnection(there).open(lambda _: asyncio.sleep(0), pytest.fail, lambda: ended.append("silent"))
        while await holder.fetchval(WAITING) < 2:
            pass

        await here.close()
        await there.close()
        assert asyncio.all_tasks(loop) == {asyncio.current_task()}
        assert await answers.get() is None
        SerialConnection(here).open(
            lambda _: asyncio.sleep(0), pytest.fail, lambda: answers.put_nowait("late")
        )
        assert await answers.get() == "late"
        assert sorted(ended) == ["begun", "open"]

    asyncio.run(while_locked(address, close))


def test_why_the_database_refuses_a_job_is_in_the_log_once(
    address: DatabaseAddress, caplog: pytest.LogCaptureFixture
):
    """A right that is missing looks to who asks like a database that does not answer."""

    async def ask() -> list[object]:
        connection = SerialConnection(Connections(address, asyncio.get_running_loop()))
        answers: asyncio.Queue[object] = asyncio.Queue()
        connection.open(lambda _: asyncio.sleep(0), answers.put_nowait, lambda: None)
        await answers.get()
        for _ in range(2):
            connection.run(lambda driver: driver.execute("SELECT * FROM nowhere"), answers.put_nowait)
        found = [await answers.get() for _ in range(2)]
        connection.close()
        return found

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(ask()) == [None, None]

    said = 'the database refuses a job: 42P01 relation "nowhere" does not exist'
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        ("SELECT * FROM nowhere", Failed("42P01", 'relation "nowhere" does not exist')),
        ("DO $$ BEGIN RAISE 'others' USING ERRCODE = '55P03'; END $$", Failed("55P03", "others")),
        ("DO $$ BEGIN RAISE 'who knows' USING ERRCODE = '57014'; END $$", None),
        ("SELECT pg_terminate_backend(pg_backend_pid())", None),
    ],
)
def test_who_wants_to_know_is_told_of_a_job_that_the_database_refuses_for_good(
    address: DatabaseAddress, failing: str, told: Failed | None
):
    """And of one that a lock keeps from being done; of no other that has failed: it may be made, or later."""

    async def ask() -> object:
        connection = SerialConnection(Connections(address, asyncio.get_running_loop()))
        answers: asyncio.Queue[object] = asyncio.Queue()
        connection.open(lambda _: asyncio.sleep(0), answers.put_nowait, lambda: None)
        await answers.get()
        connection.run(lambda driver: driver.execute(failing), answers.put_nowait, answers.put_nowait)
        answer = await answers.get()
        connection.close()
        return answer

    assert asyncio.run(ask()) == told


async def while_locked(address: DatabaseAddress, do: Callable[[Any], Awaitable[None]]) -> None:
    """Do something while another has the lock, and return once nobody waits for it."""
    holder = await connect(address)
    await holder.execute(LOCK)
    await do(holder)
    while await holder.fetchval(WAITING):
        pass
    await holder.close()


def test_a_server_that_takes_no_writes_is_said_to_take_none(server: Server, database: str):
    server.sql("postgres", f"ALTER DATABASE {database} SET default_transaction_read_only = on")

    with pytest.raises(CoterieError, match="takes writes: this one is a standby, or has default_transaction"):
        asyncio.run(connect_or_say(DatabaseAddress(server.url(database))))


# -- a connection that is given up in the middle of a call of the driver, which may raise anything then

AS_THE_DRIVER_DOES = "'NoneType' object has no attribute 'bind_execute'"


def test_a_job_has_no_result_and_leaves_no_error_in_the_log(
    address: DatabaseAddress, caplog: pytest.LogCaptureFixture
):
    async def scene() -> object:
        connection = SerialConnection(Connections(address, asyncio.get_running_loop()))
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def job(driver: asyncpg.Connection) -> object:
            await driver.fetchval("SELECT 1")
            connection.close()
            raise AttributeError(AS_THE_DRIVER_DOES)

        def opened(_: str) -> None:
            connection.run(job, answered.set_result)

        connection.open(read_history, opened, lambda: None)
        return await answered

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scene()) is None

    assert caplog.records == []


def test_a_lane_that_gives_its_connection_up_hears_nothing_more_and_its_loop_of_no_fault(
    address: DatabaseAddress,
):
    async def scene() -> list[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        faults: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, fault: faults.append(fault))
        database = await InPostgres.at(address)
        given_up = asyncio.Event()

        def give_up() -> str:
            session.abort()
            given_up.set()
            raise AttributeError(AS_THE_DRIVER_DOES)

        answers: list[object] = []
        session = LaneSession(database.connections, PLACE, lambda *one: answers.append(one), give_up)
        session.reopen(1, Look(None, None))
        await given_up.wait()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        database.close()
        assert answers == []
        return faults

    assert asyncio.run(scene()) == []
