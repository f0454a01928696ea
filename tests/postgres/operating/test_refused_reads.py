"""Where the database refuses a read, whoever asked has its words, and so has the log of the broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from bench.postgres import Server

from cluster.engine_kit import Broker
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.postgres.schema import BROKER
from coterie.storage.remote.session import Broken

from ..rigs.stage import PostgresStage

pytestmark = pytest.mark.interop


@pytest.fixture
def stage(server: Server, with_tables: str) -> Iterator[PostgresStage]:
    made = PostgresStage(server, server.new_database(with_tables))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("REVOKE SELECT ON coterie.logs FROM coterie_broker", "permission denied for table logs (42501)"),
        ("ALTER TABLE coterie.logs RENAME TO gone", 'relation "coterie.logs" does not exist (42P01)'),
    ],
)
def test_a_read_that_the_database_refuses_ends_with_its_words(
    statement: str, reason: str, server: Server, stage: PostgresStage
):
    """Found by a breaker: consumers stalled, and `logs cannot be read for now: no answer has come`."""
    server.sql("postgres", f"CREATE ROLE reading LOGIN IN ROLE {BROKER}")
    history = Broker(stage).history
    server.sql(stage.database, statement)
    stage.connections.address = DatabaseAddress(server.url(stage.database, user="reading"))
    reader = PostgresReader(stage.connections)
    answers: list[Sequence[int] | Broken] = []

    reader.find_lacking([], answers.append, history=history)
    stage.until(lambda: bool(answers))

    assert answers == [Broken(reason)]
    reader.close()
    stage.end_sessions()
    server.sql("postgres", "DROP ROLE reading")
