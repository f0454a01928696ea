"""Pytest's fixtures: `coterie_broker`, a broker for one test, and `coterie_shared_broker`, one for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from coterie.testing import Broker


@pytest.fixture(scope="session")
def coterie_settings() -> dict[str, object]:
    """Kafka settings of the brokers that the other fixtures start; override it in your conftest.py."""
    return {}


@pytest.fixture
def coterie_broker(coterie_settings: dict[str, object]) -> Iterator[Broker]:
    """A Kafka broker without topics, for this test alone: `coterie_broker.bootstrap`."""
    from coterie.testing import broker

    with broker(coterie_settings) as running:
        yield running


@pytest.fixture(scope="session")
def coterie_shared_broker(coterie_settings: dict[str, object]) -> Iterator[Broker]:
    """A Kafka broker that all tests share: quicker, if each test uses topics and groups of its own."""
    from coterie.testing import broker

    with broker(coterie_settings) as running:
        yield running
