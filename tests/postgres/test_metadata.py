"""The engine on PostgreSQL is an engine: the kit that each passes, over a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bench.postgres import Server

from cluster.engine_kit import EngineKit

from .rigs.stage import PostgresStage

pytestmark = pytest.mark.interop  # of make test's time the contracts of lanes and readers have their share


class TestPostgresEngine(EngineKit):
    """The kit."""

    server: Server
    database: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, server: Server, with_tables: str) -> None:
        cls.server = server
        cls.database = server.new_database(with_tables)

    @contextmanager
    def stage(self) -> Iterator[PostgresStage]:
        stage = PostgresStage(self.server, self.database)
        try:
            yield stage
        finally:
            stage.close()
