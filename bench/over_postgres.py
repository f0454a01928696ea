"""Our broker over a PostgreSQL of its own, which writes to this disk, behind the face of `bench.brokers`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench import machine
from bench.brokers import Coterie
from bench.postgres import Server

__all__ = ["DURABLE", "OverPostgres"]

DURABLE = {
    "fsync": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "autovacuum": "on",
}
"""The settings of a server that is measured."""


class OverPostgres(Coterie):
    """One broker, and the server that it writes to."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings)
        self._server: Server | None = None
        self._store = ""

    def prepare(self) -> None:
        super().prepare()
        self._server = Server(DURABLE, place=self.directory.parent)
        self._server.__enter__()
        self._store = self._server.url(self._server.new_database())

    def command(self) -> list[str]:
        words = super().command()
        at = words.index("--data")
        return [*words[:at], "--store", self._store, "--set", "node.id=1", *words[at + 2 :]]

    def server_cpu_seconds(self) -> float:
        """Return the processor time that the server has used."""
        assert self._server is not None
        assert self._server.process is not None
        return machine.cpu_seconds(self._server.process.pid) or 0.0

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None
