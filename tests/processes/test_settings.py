"""The settings of each of several brokers: its id, its port, its directory, and all that was given."""

from __future__ import annotations

from functools import partial

import pytest

from coterie.broker.config.settings import BrokerSettings, SettingError
from coterie.broker.processes.settings import ONE_REPLICA, broker_ids
from coterie.broker.processes.settings import settings_of as settings_of_some

GIVEN = {"log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9092", "num.partitions": "6"}


settings_of = partial(settings_of_some, processes=3)


def of_broker(given: dict[str, str], broker_id: int) -> dict[str, str]:
    """Return the settings of a broker beside those that all have."""
    mine = settings_of(given, broker_id)
    for_all = {**ONE_REPLICA, "coterie.story.num.partitions": "3"}
    assert mine.items() >= for_all.items()
    return {name: text for name, text in mine.items() if name not in for_all}


def test_a_broker_has_its_id_its_port_its_directory_and_all_other_settings():
    assert of_broker(GIVEN, 3) == {
        "node.id": "3",
        "log.dirs": "/data/3",
        "listeners": "PLAINTEXT://127.0.0.1:9094",
        "num.partitions": "6",
    }
    assert [*broker_ids(BrokerSettings.of(GIVEN), 3)] == [1, 2, 3]


def test_ids_and_ports_count_from_those_that_are_given():
    given = {"log.dir": "/data", "broker.id": "7", "node.id": "7", "listeners": "PLAINTEXT://[::1]:100"}

    assert [*broker_ids(BrokerSettings.of(given), 2)] == [7, 8]
    assert of_broker(given, 8) == {
        "node.id": "8",
        "log.dirs": "/data/8",
        "listeners": "PLAINTEXT://[::1]:101",
    }


def test_addresses_for_clients_count_as_well_and_those_for_controllers_do_not():
    given = GIVEN | {
        "listeners": "CLIENTS://0.0.0.0:9092, CONTROLLER://:9000",
        "advertised.listeners": "CLIENTS://kafka:30000",
        "controller.listener.names": "controller",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }

    mine = settings_of(given, 2)

    assert mine["listeners"] == "CLIENTS://0.0.0.0:9093,CONTROLLER://:9000"
    assert mine["advertised.listeners"] == "CLIENTS://kafka:30001"
    assert BrokerSettings.of(mine).advertised_listener == ("kafka", 30_001)


def test_a_free_port_is_kept_once_it_is_known():
    given = GIVEN | {"listeners": "PLAINTEXT://127.0.0.1:0"}

    assert settings_of(given, 2)["listeners"] == "PLAINTEXT://127.0.0.1:0"
    assert settings_of(given, 2, port=4_321)["listeners"] == "PLAINTEXT://127.0.0.1:4321"
    assert settings_of(GIVEN, 2, port=4_321)["listeners"] == "PLAINTEXT://127.0.0.1:9093"


def test_a_port_that_leaves_no_others_is_refused_with_a_sentence():
    given = GIVEN | {"listeners": "PLAINTEXT://127.0.0.1:65534"}

    assert settings_of(given, 2)["listeners"] == "PLAINTEXT://127.0.0.1:65535"
    with pytest.raises(SettingError, match=r":65534 leaves no port for 2 more brokers"):
        settings_of(given, 3)
