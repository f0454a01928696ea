"""A PostgreSQL server from Debian's packages, in a temporary folder: made, started, killed, restarted."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType

from bench.brokers import free_port
from bench.kafka import SetupError

__all__ = ["INSTALL", "Server", "ensure_installed", "programs"]

INSTALL = "apt-get install -y --no-install-recommends postgresql"
"""The one command that installs it. Debian's package makes a server that runs at once, unless it is told not
to, as `ensure_installed` does.
"""
DEBIANS = Path("/usr/lib/postgresql")
OLDEST = 15
NO_SERVER = Path("/etc/postgresql-common/createcluster.conf")
USER = "postgres"
START_WITHIN_S = 60.0
# Nothing outlives the folder: what is written need not last beyond the server's process.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "autovacuum": "off",
    "log_min_messages": "warning",
    # Nobody is there to wait for; a connection that asks for it (synchronous_commit=on) waits for ever.
    "synchronous_standby_names": "nobody",
    "synchronous_commit": "local",
}


@cache
def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest; None if no version 15 or later is there."""
    found = {
        int(path.parent.parent.name): path.parent
        for path in DEBIANS.glob("*/bin/postgres")
        if path.parent.parent.name.isdigit()
    }
    newest = max(found, default=0)
    return found[newest] if newest >= OLDEST else None


def ensure_installed() -> None:
    """Install PostgreSQL from Debian, without a server of its own. Raises `SetupError` with what to run."""
    if programs() is not None:
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise SetupError(f"no PostgreSQL {OLDEST} or later is there: {INSTALL}")
    NO_SERVER.parent.mkdir(parents=True, exist_ok=True)
    if not NO_SERVER.exists():
        NO_SERVER.write_text("create_main_cluster = false\n")
    for command in ("apt-get update", INSTALL):
        subprocess.run(command.split(), check=False, stdout=subprocess.DEVNULL)
    programs.cache_clear()
    if programs() is None:
        raise SetupError(f"no PostgreSQL {OLDEST} or later is there after: {INSTALL}")


class Server:
    """One server over a fresh folder, with databases for whoever asks. A context manager.

    It is run as the user postgres where root starts it, which the server refuses to be.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, place: Path | None = None) -> None:
        found = programs()
        if found is None:
            raise SetupError(f"no PostgreSQL {OLDEST} or later is there: {INSTALL}")
        self.programs = found
        self.directory = Path(tempfile.mkdtemp(prefix="coterie-postgres-", dir=place))
        self.settings = {**SETTINGS, **(settings or {})}
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    # -- its life

    def __enter__(self) -> Server:
        self.prepare()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _as_user(self) -> dict[str, str | int]:
        if os.geteuid() != 0:
            return {}
        found = pwd.getpwnam(USER)
        return {"user": found.pw_uid, "group": found.pw_gid}

    def prepare(self) -> None:
        """Make the folder of a server: `postgres` owns the databases, and everybody here is trusted."""
        user = self._as_user
        if user:
            os.chown(self.directory, int(user["user"]), int(user["group"]))
        command = [
            *(str(self.programs / "initdb"), "-D", str(self.directory / "data"), "-U", USER),
            *("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **user)  # type: ignore[call-overload]

    def standby(self) -> Server:
        """Return a server that follows this one, which runs; it is to be started, and waits for no other."""
        settings = {**self.settings, "synchronous_standby_names": ""}
        other = Server(settings, place=self.directory.parent)
        user = self._as_user
        if user:
            os.chown(other.directory, int(user["user"]), int(user["group"]))
        command = [
            *(
                str(self.programs / "pg_basebackup"),
                "-D",
                str(other.directory / "data"),
                "-R",
                "-X",
                "stream",
            ),
            *("-c", "fast", "--no-sync", "-d", self.url("postgres")),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **user)  # type: ignore[call-overload]
        return other

    def promote(self) -> None:
        """Have a server that follows another take writes itself."""
        self.sql("postgres", "SELECT pg_promote()")

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        settings = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        command = [
            *(str(self.programs / "postgres"), "-D", str(self.directory / "data"), "-p", str(self.port)),
            *settings,
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(  # type: ignore[call-overload]
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", **self._as_user
            )
        self.until_ready()

    def until_ready(self) -> None:
        """Return once the server takes connections. Raises `SetupError` where it has ended."""
        assert self.process is not None
        begun = time.monotonic()
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() - begun > START_WITHIN_S:
                raise SetupError(f"PostgreSQL did not start:\n{(self.directory / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Return whether the server takes connections."""
        asked = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """End the server and wait for it: SIGQUIT at once (immediate), SIGINT in order (fast), SIGKILL."""
        if self.process is None:
            return
        if number == signal.SIGKILL:
            # Stopped first: it would start others in the place of those that are killed, and they would
            # outlive it for a moment, holding the memory that the next server asks for.
            self.process.send_signal(signal.SIGSTOP)
            for pid in self.children():
                _kill(pid)
        self.process.send_signal(number)
        self.process.wait()
        self.process = None

    def children(self) -> list[int]:
        """Return the processes that the server has started, one a connection and its own."""
        assert self.process is not None
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in listed.read_text().split()]

    # -- databases

    def url(self, database: str, *, user: str = USER, port: int | None = None) -> str:
        """Return the address of a database, for clients."""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}?sslmode=disable"

    def new_database(self, template: str = "template1") -> str:
        """Make a database, by a copy of another, and return its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.sql("postgres", f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def sql(self, database: str, text: str) -> str:
        """Run statements, and return what they print: rows of a line, columns between bars."""
        command = [
            *(str(self.programs / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"),
            *("-d", self.url(database), "-c", text),
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
