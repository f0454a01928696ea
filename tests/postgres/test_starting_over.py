"""A broker over a database that cannot begin says why."""

from __future__ import annotations

import asyncio

import pytest

from coterie.broker.cluster.terms import LifecycleTerms
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.over_database import MemberProcess, StoreAddresses
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.facts import StoreFacts
from coterie.storage.postgres.starting import OpenedStore


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
