"""PgBouncer from Debian's package before a PostgreSQL server, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.brokers import free_port
from bench.kafka import SetupError
from bench.postgres import USER, Server

__all__ = ["INSTALL", "ensure_installed", "pooler", "program"]

INSTALL = "apt-get install -y --no-install-recommends pgbouncer"
START_WITHIN_S = 10.0
KEEPS_STATEMENTS = (1, 21)
"""The first version that does."""
# The package's first act would be to run one of its own.
NO_SERVICE = {"RUNLEVEL": "1"}


def program() -> str | None:
    """Return the program, None if it is not there."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


def ensure_installed() -> None:
    """Install PgBouncer from Debian, if that can be. Raises `SetupError` with what to run."""
    if program() is None:
        if shutil.which("apt-get") and os.geteuid() == 0:
            subprocess.run(
                INSTALL.split(), check=True, stdout=subprocess.DEVNULL, env={**os.environ, **NO_SERVICE}
            )
        if program() is None:
            raise SetupError(f"no PgBouncer is there: {INSTALL}")


def version() -> tuple[int, int]:
    """Return the version of the program that is there."""
    found = program()
    assert found is not None
    said = subprocess.run([found, "--version"], check=True, capture_output=True, text=True).stdout
    major, minor, *_ = said.split()[1].split(".")
    return int(major), int(minor)


@contextmanager
def pooler(server: Server, mode: str) -> Iterator[int]:
    """Yield the port of a pooler that lets everybody in, and shares connections out as `pool_mode` says."""
    found = program()
    if found is None:
        raise SetupError(f"no PgBouncer is there: {INSTALL}")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="coterie-pooler-") as folder:
        settings = Path(folder, "pgbouncer.ini")
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={server.port}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {port}",
            "unix_socket_dir =",
            "auth_type = any",
            f"pool_mode = {mode}",
            "default_pool_size = 20",
        ]
        if version() >= KEEPS_STATEMENTS:
            lines.append("max_prepared_statements = 100")
        settings.write_text("\n".join(lines).replace("* = ", f"* = user={USER} ") + "\n")
        os.chmod(folder, 0o755)
        command = [found, "-q", *(["-u", USER] if os.geteuid() == 0 else []), str(settings)]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _until_ready(server, port, Path(folder, "log"))
            yield port
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(START_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_ready(server: Server, port: int, log: Path) -> None:
    asked = [str(server.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    begun = time.monotonic()
    while subprocess.run(asked, check=False).returncode:
        if time.monotonic() - begun > START_WITHIN_S:
            raise SetupError(f"PgBouncer did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)
