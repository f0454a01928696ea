"""A broker over a database that cannot begin says why, or waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from bench.postgres import Server

from coterie.broker.cluster.terms import LifecycleTerms
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.over_database import MemberProcess, StoreAddresses
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.facts import StoreFacts
from coterie.storage.postgres.starting import OpenedStore, history_of, open_store


def test_what_keeps_a_broker_from_being_put_together_is_what_is_raised(monkeypatch: pytest.MonkeyPatch):
    nowhere = DatabaseAddress("postgresql://broker@localhost/coterie")
    facts = StoreFacts("17", True, "on", "", None, 0)

    def cannot(_: MemberProcess, host: str, port: int) -> None:
        raise ValueError("it cannot be")

    monkeypatch.setattr(MemberProcess, "_assemble", cannot)

    async def begin() -> int:
        settings = BrokerSettings.of({"listeners": "PLAINTEXT://127.0.0.1:0"})
        opened = OpenedStore(facts, "cluster", "1")
        return await MemberProcess(settings, LifecycleTerms(), StoreAddresses(nowhere, nowhere), opened).run()

    loop = asyncio.new_event_loop()
    with pytest.raises(ValueError, match="it cannot be"):
        loop.run_until_complete(begin())
    loop.close()


ENDS_WHO_LOOKS = """
CREATE SEQUENCE coterie.looks;
ALTER TABLE coterie.cluster RENAME TO cluster_itself;
CREATE VIEW coterie.cluster AS SELECT * FROM coterie.cluster_itself
WHERE CASE WHEN nextval('coterie.looks') = 1 THEN pg_terminate_backend(pg_backend_pid()) ELSE true END
"""


@pytest.mark.parametrize("look", [open_store, history_of])
def test_a_server_that_goes_down_while_a_broker_looks_at_it_is_waited_for(
    look: Callable[..., Awaitable[object]], server: Server, database: str, address: DatabaseAddress
):
    server.sql(database, ENDS_WHO_LOOKS)  # the first, as the server's stop does
    reasons: list[str] = []

    assert asyncio.run(look(address, waiting=reasons.append))

    assert len(reasons) == 1  # the words are the driver's
