"""A connection that is given up while a job is under way, in the middle of a call of the driver: that may
raise anything then, which is no fault.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg
import pytest

from coterie.storage.postgres.connecting import Connections, DatabaseAddress, read_history
from coterie.storage.postgres.lane_session import LaneSession
from coterie.storage.postgres.serial import SerialConnection
from coterie.storage.remote.session import Look

from .rigs.lane_places import PLACE, InPostgres

AS_THE_DRIVER_DOES = "'NoneType' object has no attribute 'bind_execute'"


def test_a_job_has_no_result_and_leaves_no_error_in_the_log(
    address: DatabaseAddress, caplog: pytest.LogCaptureFixture
):
    async def scene() -> object:
        connection = SerialConnection(Connections(address, asyncio.get_running_loop()))
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def job(driver: asyncpg.Connection) -> object:
            await driver.fetchval("SELECT 1")
            connection.close()
            raise AttributeError(AS_THE_DRIVER_DOES)

        def opened(_: str) -> None:
            connection.run(job, answered.set_result)

        connection.open(read_history, opened, lambda: None)
        return await answered

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scene()) is None

    assert caplog.records == []


def test_a_lane_that_gives_its_connection_up_hears_nothing_more_and_its_loop_of_no_fault(
    address: DatabaseAddress,
):
    async def scene() -> list[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        faults: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, fault: faults.append(fault))
        database = await InPostgres.at(address)
        given_up = asyncio.Event()

        def give_up() -> str:
            session.abort()
            given_up.set()
            raise AttributeError(AS_THE_DRIVER_DOES)

        answers: list[object] = []
        session = LaneSession(database.connections, PLACE, lambda *one: answers.append(one), give_up)
        session.reopen(1, Look(None, None))
        await given_up.wait()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        database.close()
        assert answers == []
        return faults

    assert asyncio.run(scene()) == []
