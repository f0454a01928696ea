"""Connections to PostgreSQL: where the database is, how one is opened and given up, and what its errors say.

A statement is never cancelled. The driver would send a CancelRequest, and a cancelled wait for the
synchronous replica *is* a commit; whoever waits no longer aborts the socket. So no timeout of the driver's is
set, and no task that waits for a statement is cancelled before its connection is aborted.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit
from weakref import WeakSet

import asyncpg

from coterie.base.errors import CoterieError
from coterie.storage.postgres.tls import tls_arguments
from coterie.storage.remote.session import Broken, Failed

PORT, PORT_MAX = 5432, 65_535
CONNECT_S = 5.0
"""So long one host is tried. A lane waits longer for its connection, so that the next one is tried, too; and
whoever has much else to do is slow to see that it is connected.
"""
NEXT_HOST_S = 0.25
"""So long a host may be silent before the next is tried beside it. A host whose machine is gone is silent for
all of its time, and a broker's membership waits for a connection no longer than a session.
"""
ENDS_WITHIN_S = 1.0
"""So long at most whoever waits for a connection takes to end once it is given up: something may compute."""
SILENT_S = 9
"""So long a server's machine may be silent that ought to say something, and then the connection is gone. A
server that is slow is not silent: its machine says that it has what was sent.
"""
CONNECTIONS_NEEDED = 11
"""So many a broker has at once: three lanes, three of its membership and the metadata, and one each by which
logs are opened, older records are read, what need not be kept is deleted, a log is compacted, and what
deleted topics leave is swept. One more, to look whose a lock is, it takes for a moment where there is one,
and does without where not.
"""
TOO_MANY = "53300"
PASSWORD = re.compile(r"(?:^|&)(?:ssl)?password=([^&]+)")
HOST_AND_PORT = re.compile(r"(?P<host>\[[^]]*\]|[^]\[:]*)(?::(?P<port>.*))?")
IN_BRACKETS = "an IPv6 address is written in brackets, as in postgresql://[::1]:5432/coterie"
LABEL = re.compile(r"^(?:DETAIL|HINT): *")
ENDS_CONNECTION = ("FATAL", "PANIC")
MIDWAY = "the connection has failed midway"
"""What the driver says of it is about states of its own."""
OTHER_HISTORY = "the database is not the one that this broker goes by"
LOST = (OSError, EOFError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""All that the driver raises for a connection or a statement; TimeoutError is an OSError."""
TIMELINE = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
"""That of what is being written, in hexadecimal digits: the control file's is an older one until the first
checkpoint after a promotion.
"""
PRODUCER_IDS_BITS = 40
# A standby that takes over, and was behind, does not know of the last blocks that were given out; whoever has
# one goes on giving out its ids. So the ids of each timeline are others, 2^40 of them. Among those it goes on
# where it was: one that was brought back, maybe on another server, is beyond what was given out before.
NEXT_PRODUCER_ID = f"""greatest(next_producer_id,
  ((('x' || {TIMELINE})::bit(32)::bigint - 1) << {PRODUCER_IDS_BITS})
  + (next_producer_id & ((1::bigint << {PRODUCER_IDS_BITS}) - 1)))"""
# A backup that is brought back may have all three of them as before. In its own database it has other tables;
# `coterie store restored` gives it something that no database had.
HISTORY = f"""
SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()), {TIMELINE},
  (SELECT oid FROM pg_database WHERE datname = current_database()), 'coterie.cluster'::regclass::oid,
  cluster_id, restoration), cluster_id, version
FROM coterie.cluster
"""
DATABASE_OF_HISTORY, TABLE_OF_HISTORY = 2, 3
"""Where the object ids of the database and of that table stand among the parts of a history."""


class DatabaseAddress:
    """Where a database is, and how to connect to it: `postgresql://USER@HOST[,HOST]/DATABASE?…`, as libpq has
    it.

    A connection beyond this machine is encrypted, and the server's certificate and name are checked, unless
    `sslmode` says otherwise. Of several hosts the one is used that takes writes.
    """

    def __init__(self, url: str, *, used_by: str = "coterie") -> None:
        """`used_by` is what the database's administrator finds in pg_stat_activity, before what a connection
        is for; an `application_name` in the URL takes its place. Raises `CoterieError` where the URL is none
        of a PostgreSQL.
        """
        parts = _parts_of(url)
        if _ends_early(parts):
            raise CoterieError(
                "a sign in the password of a store's address ends it: write / as %2F, ? as %3F, # as %23"
            )
        if parts.scheme not in ("postgresql", "postgres"):
            given = f"{parts.scheme}://" if parts.scheme else "no URL"
            raise CoterieError(
                f"a store's address begins with postgresql://, and this is {given}: "
                "write postgresql://USER@HOST/DATABASE"
            )
        user, _, secret = parts.netloc.rpartition("@")[0].partition(":")
        netloc = parts.netloc.replace(f":{secret}@", ":***@", 1) if secret else parts.netloc
        who, at, named = netloc.rpartition("@")
        if not parts.path.strip("/"):
            query_follows = "?..." if parts.query else ""
            raise CoterieError(
                "a store's address names the database: write"
                f" {parts.scheme}://{netloc}/coterie{query_follows}, if it is called coterie"
            )
        self.url = url
        """It may have a password in it."""
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.used_by = query.get("application_name", used_by)
        self.hosts = _hosts_of(named, query)
        self.arguments: dict[str, Any] = {
            "dsn": parts._replace(netloc="", fragment="").geturl(),
            "timeout": CONNECT_S,
            "command_timeout": None,
        }
        # The driver is not given what it would take apart otherwise, or show with an error.
        self.arguments |= {"user": unquote(user)} if user else {}
        self.arguments |= {"password": unquote(secret)} if secret else {}
        if "target_session_attrs" not in query:
            self.arguments["target_session_attrs"] = "read-write"
        self.is_here = all(is_here(host) for host, _ in self.hosts)
        """Whether it is on this machine."""
        self.arguments |= tls_arguments(query, is_here=self.is_here)
        self.secrets = tuple(one for one in (secret, *PASSWORD.findall(parts.query)) if one)
        """The passwords in it, as they are written there."""
        places = _places("" if "host" in query else named, parts.path, self.hosts)
        self._shown = f"{parts.scheme}://{who}{at}{places}"

    def __str__(self) -> str:
        return self._shown


def _ends_early(parts: SplitResult) -> bool:
    """Return whether what should be the server ends within a password: what is behind has its `@`."""
    port = parts.netloc.rpartition(":")[2] if ":" in parts.netloc else ""
    is_port = not port or port.isdecimal()
    return "@" not in parts.netloc and (
        "@" in parts.fragment or (not is_port and "@" in parts.path + parts.query)
    )


class Connections:
    """Where connections come from: the database's address, and the loop that they live in; and the tasks that
    wait for them.
    """

    def __init__(
        self,
        address: DatabaseAddress,
        loop: asyncio.AbstractEventLoop,
        *,
        tried: Callable[[BaseException | None], None] = lambda _: None,
    ) -> None:
        """`tried` is told how each try has ended: why it failed, or None. See `connect`."""
        self.address = address
        self.loop = loop
        self.tried = tried
        self._open: WeakSet[asyncpg.Connection] = WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting: set[asyncio.Task[Any] | None] = set()
        self._closed = False

    async def connect(self, *, use: str = "", cached: int = 100, needed: bool = True) -> asyncpg.Connection:
        """Return a new connection, as `connect` does. Raises one of `LOST`.

        Of one that is not `needed` nobody is told how it ended: where a broker has all the others that it may
        have, the database is not away.
        """
        if self._closed:
            raise ConnectionError("this broker connects no more")
        task = asyncio.current_task()
        self._connecting.add(task)
        try:
            connection = await connect(self.address, use=use, cached=cached)
        except LOST as error:
            if needed:
                self.tried(error)
            raise
        finally:
            self._connecting.discard(task)
        if needed:
            self.tried(None)
        self._open.add(connection)
        return connection

    def start(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done that waits for connections."""
        task = self.loop.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Give all connections up, and return once nobody waits for one any more: whoever did when the loop
        ends would be cancelled, and its statement with it, by a task of the driver's that nobody waits for.
        """
        self._closed = True
        for connection in [*self._open]:
            connection.terminate()
        for task in self._connecting:
            if task is not None:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDS_WITHIN_S)


def _parts_of(url: str) -> SplitResult:
    """Return the parts of a URL. Python knows one host in each, and newer ones refuse an IPv6 address behind
    another host: what names the hosts is cut out before.
    """
    scheme, slashes, rest = url.strip().partition("//")
    named = re.split(r"[/?#]", rest, maxsplit=1)[0]
    hosts = named.rpartition("@")[2]
    if hosts.count("[") != hosts.count("]"):
        raise CoterieError("a store's address is no URL: Invalid IPv6 URL")
    return urlsplit(scheme + slashes + rest.removeprefix(named))._replace(netloc=named)


def _hosts_of(named: str, query: Mapping[str, str]) -> list[tuple[str | None, int]]:
    """Return (host, port) of each that a URL names; None stands for where libpq looks for a socket.

    What the URL does not say before its path it may behind the `?`, and else PGHOST and PGPORT do.
    """
    if "host" in query:
        places = [(host, "") for host in query["host"].split(",")]
    elif named:
        places = [_split(one) for one in named.split(",")]
    else:
        places = [(host, "") for host in os.environ.get("PGHOST", "").split(",")]
    ports = (query.get("port") or os.environ.get("PGPORT") or str(PORT)).split(",")
    if len(ports) not in (1, len(places)):
        raise CoterieError(f"a store's address has {len(places)} hosts and {len(ports)} ports; name one")
    usual = ports * len(places) if len(ports) == 1 else ports
    return [
        (host or None, _port(port or fallback)) for (host, port), fallback in zip(places, usual, strict=True)
    ]


def _places(named: str, path: str, hosts: Sequence[tuple[str | None, int]]) -> str:
    """Return the rest of a URL, behind its user, with the hosts and ports that are asked."""
    ports = ["" if port == PORT else f":{port}" for _, port in hosts]
    if named:
        typed = zip(named.split(","), ports, strict=True)
        return ",".join(one if _split(one)[1] else one.removesuffix(":") + port for one, port in typed) + path
    if all(host and not host.startswith("/") for host, _ in hosts):
        quoted = (f"[{host}]" if ":" in str(host) else host for host, _ in hosts)
        return ",".join(f"{host}{port}" for host, port in zip(quoted, ports, strict=True)) + path
    words = {"host": ",".join(host or "" for host, _ in hosts), "port": ",".join(one[1:] for one in ports)}
    query = "&".join(f"{name}={word}" for name, word in words.items() if word.strip(","))
    return f"{path}?{query}" if query else path


def _split(named: str) -> tuple[str, str]:
    """Return the host, and the port or "", that a part of a URL names: as libpq has it the port is what comes
    behind the first colon that is not in brackets.
    """
    match = HOST_AND_PORT.fullmatch(named)
    if match is None:
        raise CoterieError(f"a store's address has {named} where a host and its port belong: {IN_BRACKETS}")
    return unquote(match["host"]).strip("[]"), match["port"] or ""


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        several = f" ({IN_BRACKETS})" if ":" in text else ""
        raise CoterieError(f"a store's address has a port that is no number: {text}{several}")
    if not 0 < int(text) <= PORT_MAX:
        raise CoterieError(f"a store's address has a port that is none: {text}")
    return int(text)


def is_here(host: str | None) -> bool:
    """Return whether a host is this machine."""
    if host is None or host == "localhost" or host.startswith("/"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


# Opening a dozen logs is estimated to cost what PostgreSQL compiles a statement for, which took longer than
# the statement, on one core, while groups waited. Lanes are idle as long as nobody writes. And else a server
# goes on waiting for a lock on behalf of those who gave up: whoever locks a table for a minute finds a
# connection for each attempt meanwhile, until the server takes no more. Not all systems tell a server of it.
# What a role or a database is limited to for applications would keep a broker for ever from a log that takes
# longer to read; and statements are written for the isolation that is the default. Rows are read in the order
# of their index, a log at a time: by bitmaps they came unsorted, and those that compaction has deleted were
# looked at each time until the table was vacuumed (a fifth of the time that it took to open logs). Where
# the planner knew the table when it was small, or with rows of one log alone, it read all of it for each log.
OF_EACH_SESSION = """
DO $$
BEGIN
  SET jit = off;
  SET enable_bitmapscan = off;
  SET enable_seqscan = off;
  SET idle_session_timeout = 0;
  SET statement_timeout = 0;
  SET lock_timeout = 0;
  SET default_transaction_isolation = 'read committed';
  BEGIN
    SET client_connection_check_interval = '1s';
  EXCEPTION WHEN OTHERS THEN
    NULL;
  END;
END
$$
"""


async def connect(address: DatabaseAddress, *, use: str = "", cached: int = 100) -> asyncpg.Connection:
    """Return a new connection to the first host that can be used, which keeps up to so many prepared
    statements. `use` says what it is for in pg_stat_activity. Raises one of `LOST`, the last host's.
    """
    name = f"{address.used_by}: {use}" if use else address.used_by
    attempt = partial(_connect_to, address, cached=cached, name=name)
    if len(address.hosts) == 1:
        connection = await attempt(*address.hosts[0])
    else:
        connection = await _connect_to_first(address, attempt)
    # A pooler lets in whom it has no connection for. The driver's own timeout would send a CancelRequest.
    giving_up = asyncio.get_running_loop().call_later(CONNECT_S, connection.terminate)
    try:
        _notice_silence(connection)
        await connection.execute(OF_EACH_SESSION)
    except BaseException:  # whoever wanted it may want it no more
        connection.terminate()
        raise
    finally:
        giving_up.cancel()
    return connection


async def _connect_to(
    address: DatabaseAddress, host: str | None, port: int, *, cached: int, name: str
) -> asyncpg.Connection:
    return await asyncpg.connect(
        **address.arguments,
        host=host,
        port=port,
        statement_cache_size=cached,
        server_settings={"application_name": name},
    )


async def _connect_to_first(
    address: DatabaseAddress, connect_to: Callable[[str | None, int], Coroutine[Any, Any, asyncpg.Connection]]
) -> asyncpg.Connection:
    """Return a connection to one of several hosts. They are tried in their order, and the next one as soon as
    those before have failed, or say nothing for a while.
    """
    untried = deque(address.hosts)
    attempts: list[asyncio.Task[asyncpg.Connection]] = []
    try:
        while untried or not all(one.done() for one in attempts):
            if untried:
                attempts.append(asyncio.create_task(connect_to(*untried.popleft())))
            under_way = [one for one in attempts if not one.done()]
            most_s = NEXT_HOST_S if untried else None
            await asyncio.wait(under_way, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
            for one in attempts:
                if one.done() and not isinstance(one.exception(), LOST):
                    attempts.remove(one)
                    return one.result()
        return attempts[-1].result()
    finally:
        for one in attempts:
            one.cancel()
            one.add_done_callback(_let_go)


def _let_go(attempt: asyncio.Task[asyncpg.Connection]) -> None:
    """Drop the connection that an attempt has come to, if any, which nobody wants any more."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


def within_ms(limit_ms: int) -> str:
    """Return the part of a statement's WITH, `patience`, that has it wait for a lock no longer than so long.

    What is given up the server goes on with: it does not see that nobody waits. Where it waits for a lock
    that is not let go, each attempt would leave a connection more behind. The statement has to read the
    part's row.
    """
    return f"patience AS MATERIALIZED (SELECT set_config('lock_timeout', '{limit_ms}', true))"


def cluster_in(table: str) -> str:
    """Return the condition that the cluster is in the table of this object id, a statement's parameter: by it
    a statement does nothing in tables that have taken the place of those that it was meant for. What waits
    for the lock of whoever brings a backup back goes on in what that has brought.
    """
    return f"(SELECT tableoid FROM coterie.cluster) = {table}"


def _notice_silence(connection: asyncpg.Connection) -> None:
    """Have the system end a connection whose other side is gone without a word."""
    peer = connection._transport.get_extra_info("socket")
    if peer.family == socket.AF_UNIX:
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENT_S // 3),
        ("TCP_KEEPINTVL", SILENT_S // 3),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", SILENT_S * 1_000),
    ):
        if hasattr(socket, name):  # not everywhere
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class NoCluster(ConnectionError):
    """The tables have no cluster in them: somebody brings them back just now, or without what was in them."""

    def __init__(self) -> None:
        super().__init__("the database has tables of a cluster, and no cluster in them")


class OtherTables(ConnectionError):
    """Other tables have taken the place of those that a session began with: a backup's, or another cluster's.
    Neither heartbeats nor changes are for them.
    """

    def __init__(self) -> None:
        super().__init__("the tables are not those that were there before")


class NotRestored(ConnectionError):
    """A backup's tables have taken the place of those that a broker goes by, and nobody has said so: what it
    and its clients remember is not to be had by them.
    """

    def __init__(self) -> None:
        super().__init__("the tables are those of a backup, and `coterie store restored` was not run")


class ClusterHistory(NamedTuple):
    """The history of a database, the cluster whose it is, and the version of its metadata."""

    history: str
    cluster_id: str
    version: int

    @property
    def table(self) -> int:
        """The object id of the table that has the cluster's row."""
        return table_of(self.history)

    def has_other_tables(self, history: str) -> bool:
        """Return whether its tables are others than those of a history. A standby that takes over, or a
        server that was upgraded, has the same.
        """
        place = slice(DATABASE_OF_HISTORY, TABLE_OF_HISTORY + 1)
        return self.history.split("/")[place] != history.split("/")[place]


def table_of(history: str) -> int:
    """Return the object id of the table that has the cluster's row in a database of this history."""
    return int(history.split("/")[TABLE_OF_HISTORY])


async def read_history(connection: asyncpg.Connection) -> str:
    """Return the history of the database: another one once a server goes on that was behind, or a backup, or
    the database of another cluster. Raises `NoCluster`.
    """
    return (await read_cluster_history(connection)).history


async def read_cluster_history(connection: asyncpg.Connection) -> ClusterHistory:
    """Return the history of the database, with the cluster. Raises `NoCluster`."""
    row = await connection.fetchrow(HISTORY)
    if row is None:
        raise NoCluster
    return ClusterHistory(*row)


def failure_of(error: BaseException) -> Failed | Broken:
    """Return the answer that an error is to the statement that met it.

    An error of the server's has a severity. FATAL and PANIC end the connection, and say nothing about what
    was under way. What the driver raises by itself is that the connection is gone, or that a value cannot be
    encoded: then nothing was sent.
    """
    if isinstance(error, asyncpg.PostgresError):
        severity = getattr(error, "severity_en", None)
        if severity is not None and severity not in ENDS_CONNECTION:
            return Failed(error.sqlstate or "", in_a_line(error))
    elif isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return Failed("22000", str(error))
    if isinstance(error, asyncpg.InternalClientError):
        return Broken(MIDWAY)
    needed = (
        f"; each broker needs {CONNECTIONS_NEEDED}" if getattr(error, "sqlstate", None) == TOO_MANY else ""
    )
    return Broken(f"{type(error).__name__}: {in_a_line(error)}{needed}")


def in_a_line(error: object) -> str:
    """Return the text of an error in a line: the server sends details and hints on lines of their own."""
    first, *more = str(error).splitlines() or [""]
    return "; ".join([first, *(LABEL.sub("", line).rstrip(".") for line in more)])
