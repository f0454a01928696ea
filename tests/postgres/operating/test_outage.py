"""What a broker's log says while its database does not let it in."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator

import asyncpg
import pytest

from coterie.broker.cluster.postgres.outage import Outage
from coterie.storage.postgres.advice import IS_AWAY, REFUSED, SILENT
from coterie.storage.postgres.connecting import Connections, DatabaseAddress, NoCluster
from coterie.storage.postgres.serial import SerialConnection

WHERE = "postgresql://db/coterie"
ONE = f"the database {WHERE} is not reached"


class Trying:
    """An outage by a clock of its own, and what it has said."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self._now_s = 1_000.0
        self._outage = Outage(DatabaseAddress(WHERE), lambda: self._now_s)

    def tried(self, error: BaseException | None, *, after_s: float = 0) -> list[str]:
        """Have a try end after a while, and return what is said of it."""
        return self._said_of(self._outage.tried, error, after_s)

    def looked(self, error: BaseException | None, *, after_s: float = 0) -> list[str]:
        """Have a try lead to a connection, and a look at the database to this; return what is said."""
        return self.tried(None, after_s=after_s) + self._said_of(self._outage.looked, error, 0)

    def _said_of(
        self, told: Callable[[BaseException | None], None], error: BaseException | None, after_s: float
    ) -> list[str]:
        self._now_s += after_s
        before = len(self._caplog.records)
        told(error)
        return [record.getMessage() for record in self._caplog.records[before:]]


@pytest.fixture
def trying(caplog: pytest.LogCaptureFixture) -> Trying:
    """An outage that has not begun."""
    return Trying(caplog)


def test_why_the_database_is_not_reached_is_said_once_for_each_reason(trying: Trying):
    assert trying.tried(ConnectionRefusedError()) == [f"{ONE}: {REFUSED}"]
    assert trying.tried(TimeoutError()) == [f"{ONE}: {SILENT}"]
    assert trying.tried(ConnectionRefusedError(), after_s=9) == []
    assert trying.tried(TimeoutError()) == []


def test_for_how_long_it_is_not_is_said_ever_more_seldom(trying: Trying):
    trying.tried(ConnectionRefusedError())

    said_after = [s for s in range(1, 3_001) if trying.tried(ConnectionRefusedError(), after_s=1)]

    assert said_after == [10, 20, 40, 80, 160, 320, 640, 1240, 1840, 2440]


def test_for_how_long_is_said_with_the_reason_of_the_last_try(trying: Trying):
    trying.tried(TimeoutError())
    trying.tried(ConnectionRefusedError())

    assert trying.tried(ConnectionRefusedError(), after_s=12) == [
        f"the database {WHERE} is not reached for 12 s now: {REFUSED}"
    ]


def test_that_it_is_reached_again_is_said_once(trying: Trying):
    trying.tried(ConnectionRefusedError())

    assert trying.tried(None, after_s=7) == [f"the database {WHERE} is reached again, after 7 s"]
    assert trying.tried(None) == []


def test_the_next_outage_is_told_of_from_its_beginning(trying: Trying):
    trying.tried(ConnectionRefusedError())
    trying.tried(ConnectionRefusedError(), after_s=500)
    trying.tried(None)

    assert trying.tried(ConnectionRefusedError(), after_s=500) == [f"{ONE}: {REFUSED}"]
    assert trying.tried(ConnectionRefusedError(), after_s=9) == []
    assert trying.tried(ConnectionRefusedError(), after_s=1) != []


def test_a_database_that_is_reached_is_not_spoken_of(trying: Trying):
    assert trying.tried(None) == []


def test_of_a_database_that_was_there_nobody_is_told_to_make_one(trying: Trying):
    error = asyncpg.InvalidCatalogNameError.new({"C": "3D000", "M": 'database "coterie" does not exist'})

    assert trying.tried(error) == [f'{ONE}: database "coterie" does not exist; {IS_AWAY}']


NO_SCHEMA = asyncpg.InvalidSchemaNameError.new({"C": "3F000", "M": 'schema "coterie" does not exist'})
LACKS_TABLES = "has no tables of a cluster: bring the backup back (pg_restore); this broker waits for that"


def test_a_database_without_tables_is_told_of_ever_more_seldom_until_they_are_there(trying: Trying):
    trying.tried(ConnectionRefusedError())

    again, found = trying.looked(NO_SCHEMA, after_s=1)
    said_after = [s for s in range(1, 101) if trying.looked(NO_SCHEMA, after_s=1)]

    assert again == f"the database {WHERE} is reached again, after 1 s"
    assert found == f"the database {WHERE} is reached, but {LACKS_TABLES}"
    assert said_after == [10, 20, 40, 80]
    assert trying.looked(None) == [f"the database {WHERE} can be used again, after 100 s"]
    assert trying.looked(None) == []


def test_a_backup_that_was_brought_back_without_its_rights_or_in_parts_is_told_of(trying: Trying):
    denied = asyncpg.InsufficientPrivilegeError.new(
        {"C": "42501", "M": "permission denied for schema coterie"}
    )

    (rights,), (parts,) = trying.looked(denied), trying.looked(NoCluster())

    assert "(permission denied for schema coterie): GRANT coterie_broker TO the user of brokers" in rights
    assert "no cluster in them" in parts


def test_what_a_look_was_kept_from_by_the_connection_is_not_told_of_twice(trying: Trying):
    assert trying.looked(ConnectionResetError()) == []


# -- who tells


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a host that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def tries(address: DatabaseAddress, *, patient: bool) -> list[BaseException | None]:
    """Return how a connection's try has ended, of somebody who waits for it, or for a moment only."""
    told: list[BaseException | None] = []

    async def scene() -> None:
        connection = SerialConnection(Connections(address, asyncio.get_running_loop(), tried=told.append))
        over = asyncio.Event()
        connection.open(lambda _: asyncio.sleep(0), lambda _: over.set(), over.set)
        await (over.wait() if patient else asyncio.sleep(0))
        connection.close()

    asyncio.run(scene())
    return told


def test_a_connection_tells_how_its_try_has_ended(address: DatabaseAddress):
    assert tries(address, patient=True) == [None]


def test_a_connection_tells_why_nobody_lets_it_in(address: DatabaseAddress):
    (error,) = tries(DatabaseAddress(f"{address.url.rpartition('/')[0]}/nowhere"), patient=True)

    assert 'database "nowhere" does not exist' in str(error)


def test_what_was_told_of_is_not_told_of_when_it_is_closed(address: DatabaseAddress):
    """`tries` closes the connection at its end."""
    assert len(tries(DatabaseAddress(f"{address.url.rpartition('/')[0]}/nowhere"), patient=True)) == 1


def test_a_host_that_says_nothing_is_told_of_as_silent(silent: int):
    address = DatabaseAddress(f"postgresql://somebody@127.0.0.1:{silent}/coterie")
    address.arguments["timeout"] = 0.1

    (error,) = tries(address, patient=True)

    assert isinstance(error, TimeoutError)


def test_a_try_that_somebody_gives_up_says_nothing_about_the_database(silent: int):
    """A broker that sweeps no longer, or ends, may do so at any moment."""
    address = DatabaseAddress(f"postgresql://somebody@127.0.0.1:{silent}/coterie")

    assert tries(address, patient=False) == []
