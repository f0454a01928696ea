"""An encrypted way to the database: what the URL asks for is done, and what fails says what to do."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest
from bench.postgres import Server

from coterie.base.errors import CoterieError
from coterie.storage.postgres.connecting import DatabaseAddress, connect
from coterie.storage.postgres.facts import read_facts
from coterie.storage.postgres.starting import open_store

from ..rigs.certificates import Authority, server_with

RULES = """
host all postgres 127.0.0.1/32 trust
hostssl all shows 127.0.0.1/32 cert
hostssl all wary 127.0.0.1/32 trust
"""
Files = dict[str, Path]
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Certificates: of an authority, of the server by its address, of a user, and of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    server, server_key = ours.sign("server", "127.0.0.1")
    user, user_key = ours.sign("shows")
    return {
        "ours": ours.certificate,
        "theirs": theirs.certificate,
        "server": server,
        "server_key": server_key,
        "user": user,
        "user_key": user_key,
    }


@pytest.fixture(scope="module")
def encrypted(server: Server, files: Files) -> Iterator[Server]:
    """A server that encrypts."""
    of_server = {
        "ssl_cert_file": files["server"],
        "ssl_key_file": files["server_key"],
        "ssl_ca_file": files["ours"],
    }
    with server_with(of_server, RULES, {"ssl": "on"}) as running:
        running.sql("postgres", "CREATE ROLE shows LOGIN; CREATE ROLE wary LOGIN")
        yield running


def url(server: Server, query: str, user: str = "postgres", host: str = "127.0.0.1") -> str:
    return f"postgresql://{user}@{host}:{server.port}/postgres?{query}"


async def is_encrypted(address: DatabaseAddress) -> bool:
    connection = await connect(address)
    found: bool = await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    connection.terminate()
    return found


async def until_closed(work: Awaitable[object]) -> None:
    """Do the work, and go on until no socket is open any more.

    The driver begins to end an encrypted connection that is refused, and raises before the server has ended
    its side. A loop that ended there would leave a socket, of which a later test is told.
    """
    loop = asyncio.get_running_loop()
    selector = loop._selector  # type: ignore[attr-defined]
    before = len(selector.get_map())
    try:
        await work
    finally:
        until = loop.time() + WITHIN_S
        while len(selector.get_map()) > before:
            assert loop.time() < until, "a socket is left open"
            await asyncio.sleep(0.001)


def refusal(where: str) -> str:
    """Return the sentence with which a broker, and a command, end."""

    address = DatabaseAddress(where)

    with pytest.raises(CoterieError) as of_broker:
        asyncio.run(until_closed(open_store(address, waiting=lambda reason: pytest.fail(reason))))
    with pytest.raises(CoterieError) as of_command:
        asyncio.run(until_closed(read_facts(address)))
    assert str(of_broker.value) == str(of_command.value)
    return str(of_broker.value).partition(": ")[2]


@pytest.mark.parametrize(
    ("query", "encrypts"),
    [
        ("sslmode=disable", False),
        ("sslmode=require", True),
        ("sslmode=verify-ca&sslrootcert={ours}", True),
        ("sslmode=verify-full&sslrootcert={ours}", True),
    ],
)
def test_the_way_is_as_the_url_says(encrypted: Server, files: Files, query: str, encrypts: bool):
    address = DatabaseAddress(url(encrypted, query.format_map(files)))

    assert asyncio.run(is_encrypted(address)) is encrypts


def test_a_user_is_known_by_a_certificate(encrypted: Server, files: Files):
    shown = "sslmode=verify-full&sslrootcert={ours}&sslcert={user}&sslkey={user_key}".format_map(files)

    assert asyncio.run(is_encrypted(DatabaseAddress(url(encrypted, shown, "shows"))))


@pytest.mark.parametrize(
    ("query", "user", "host", "sentence"),
    [
        ("sslmode=verify-full&sslrootcert={theirs}", "postgres", "127.0.0.1", "sslrootcert names whose"),
        ("sslmode=verify-full&sslrootcert={ours}", "postgres", "localhost", "give the host as its certif"),
        ("sslmode=verify-full", "postgres", "127.0.0.1", "sslrootcert=system those whom the system trusts"),
        ("sslmode=require&sslcert={user}", "shows", "127.0.0.1", "name a certificate and its own key"),
        ("sslmode=require&sslcert={ours}&sslkey={user_key}", "shows", "127.0.0.1", "and its own key"),
        ("ssmode=require", "postgres", "127.0.0.1", "behind the ? stand psql's words, as sslmode"),
        ("sslmode=disable", "wary", "127.0.0.1", "the server wants it encrypted: sslmode=verify-full"),
        ("sslmode=require", "shows", "127.0.0.1", "sslcert and sslkey in the URL name it"),
    ],
)
def test_what_is_refused_says_what_to_do(
    encrypted: Server,
    files: Files,
    query: str,
    user: str,
    host: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.setenv("HOME", str(tmp_path))  # where the driver looks for certificates

    assert sentence in refusal(url(encrypted, query.format_map(files), user, host))


def test_a_server_that_does_not_encrypt_is_said_to_be_one(server: Server):
    assert refusal(url(server, "sslmode=require")).startswith("the server does not encrypt; sslmode=disable")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("sslmode=full", "sslmode=full is none of disable, allow, "),
        ("sslrootcert=/nowhere/root.crt", "sslrootcert names a file that is not there: /nowhere/root.crt"),
        ("sslmode=require&sslcert=/nowhere/me.crt", "sslcert names a file that is not there"),
        ("sslcert={server}&sslkey={user_key}", "sslcert and sslkey are of no use"),
    ],
)
def test_what_a_url_cannot_ask_for_is_refused_at_once(files: Files, query: str, sentence: str):
    with pytest.raises(CoterieError, match=sentence):
        DatabaseAddress(f"postgresql://db.example/coterie?{query.format_map(files)}")


def test_a_server_elsewhere_is_checked_by_whom_the_url_trusts(files: Files):
    def asked(query: str) -> object:
        return DatabaseAddress(f"postgresql://db.example/coterie?{query.format_map(files)}").arguments.get(
            "ssl"
        )

    by_system, with_own = asked("sslrootcert=system"), asked("sslcert={user}&sslkey={user_key}")

    assert asked("sslrootcert={ours}") == "verify-full"
    for context in (by_system, with_own):
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_the_environment_may_say_it_as_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.environ, "PGSSLMODE", "require")

    assert "ssl" not in DatabaseAddress("postgresql://db.example/coterie").arguments
