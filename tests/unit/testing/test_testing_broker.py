"""`coterie.testing`: a real broker that a test may end in every way and start again."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from coterie.base.errors import CoterieError
from coterie.testing import Broker, BrokerFailed, broker

pytestmark = pytest.mark.slow


def listens(running: Broker) -> bool:
    try:
        socket.create_connection((running.host, running.port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_broker_runs_inside_the_block_and_leaves_nothing():
    with broker() as running:
        assert listens(running)
        assert running.bootstrap == f"127.0.0.1:{running.port}"
        data = running.data
        assert data.is_dir()

    assert not listens(running)
    assert not data.exists()


def test_it_runs_inside_an_async_block_too():
    async def use() -> Broker:
        async with broker() as running:
            assert listens(running)
        return running

    assert not listens(asyncio.run(use()))


def test_it_comes_back_on_the_same_port_and_data_after_a_kill():
    with broker() as running:
        port, data, pid = running.port, running.data, running.pid

        running.kill()
        assert not listens(running)
        running.restart()

        assert listens(running)
        assert (running.port, running.data) == (port, data)
        assert running.pid != pid


def test_a_stopped_broker_is_restarted():
    with broker() as running:
        running.stop()
        assert not listens(running)
        running.restart()
        assert listens(running)


def test_a_directory_of_the_users_is_kept(tmp_path: Path):
    with broker(data=tmp_path / "mine") as running:
        assert running.data == tmp_path / "mine"

    assert (tmp_path / "mine").is_dir()


def test_settings_are_kafkas_as_a_mapping_or_as_keywords():
    with broker({"num.partitions": 6}, num_io_threads=3, auto_create_topics_enable=False) as running:
        assert "note: num.io.threads is known but has no effect here" in running.log


def test_a_broker_that_does_not_start_says_why():
    with (
        pytest.raises(BrokerFailed, match=r"did not start: .* did you mean num\.partitions") as failed,
        broker(nun_partitions=6),
    ):
        pass

    assert isinstance(failed.value, CoterieError)


def test_the_plugin_gives_each_test_a_broker_of_its_own(coterie_broker: Broker):
    assert listens(coterie_broker)


def test_the_plugin_gives_all_tests_one_broker(coterie_shared_broker: Broker):
    assert listens(coterie_shared_broker)
