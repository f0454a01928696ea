"""A disk that will not flush ends the broker, a full one does not; the next start has everything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from coterie.testing import Broker

pytestmark = pytest.mark.ours("what a broker does whose disk refuses is our broker's choice")

QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
SERVE = """
import errno, os, sys
from coterie.storage import disk

def refusing(name, flush):
    true = getattr(disk, name)
    def call(fd, *rest):
        if os.path.exists(name_of_flag) and (flush or b"refused" in b"".join(map(bytes, rest[0]))):
            raise OSError(flush or errno.ENOSPC, os.strerror(flush or errno.ENOSPC))
        return true(fd, *rest)
    setattr(disk, name, call)

name_of_flag = sys.argv.pop(1)
refusing(*{"flush": ("SYNC", errno.EIO), "write": ("_write_at", 0)}[sys.argv.pop(1)])
from coterie.cli import main
sys.exit(main())
"""


class BrokerOnBadDisk(Broker):
    """A broker whose disk refuses to flush, or to write, from the moment that a file is there."""

    refuses = "flush"

    @property
    def flag(self) -> Path:
        return self.data.parent / "refuse"

    def _command(self) -> list[str]:
        return [sys.executable, "-c", SERVE, str(self.flag), self.refuses, *super()._command()[3:]]

    def ended(self) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        assert self._process is not None
        return self._process.wait(20)


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerOnBadDisk]:
    settings = {"log.flush.interval.messages": "1", "log.retention.check.interval.ms": "100"}
    bad = BrokerOnBadDisk(settings, data=tmp_path / "data", start_within_s=30)
    bad.refuses = request.param
    with bad as running:
        yield running


def send(broker: Broker, value: str) -> str:
    """Send a record; return what went wrong."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 20_000, "retries": 0, **QUIET}
    )
    answers: list[str] = []
    producer.produce("orders", value, on_delivery=lambda error, _: answers.append(error and str(error)))
    producer.flush(25)
    (told,) = answers
    return told or ""


def read(broker: Broker) -> list[str]:
    command = [sys.executable, "-m", "coterie", "consume", "orders", "--bootstrap", broker.bootstrap]
    wanted = ["--from", "beginning", "--until-end", "--output", "json"]
    told = subprocess.run([*command, *wanted], capture_output=True, text=True, check=True)
    return [json.loads(line)["value"] for line in told.stdout.splitlines()]


@pytest.mark.parametrize("broker", ["flush"], indirect=True)
def test_a_broker_whose_disk_will_not_flush_ends_and_says_which_log_and_why(broker: BrokerOnBadDisk):
    assert not send(broker, "kept")
    broker.flag.touch()

    assert send(broker, "refused")

    assert broker.ended() == 1
    last = broker.log.strip().splitlines()[-1]
    assert "orders-0 cannot be flushed: Input/output error; the broker ends" in last
    assert "Traceback" not in broker.log
    assert not (broker.data / ".kafka_cleanshutdown").exists()
    broker.flag.unlink()
    broker.restart()
    assert not send(broker, "later")
    values = read(broker)
    assert [value for value in values if value != "refused"] == ["kept", "later"]


@pytest.mark.parametrize("broker", ["write"], indirect=True)
def test_a_broker_whose_disk_is_full_goes_on(broker: BrokerOnBadDisk):
    assert not send(broker, "kept")
    broker.flag.touch()
    assert send(broker, "refused")

    assert not send(broker, "accepted")

    broker.flag.unlink()
    assert read(broker) == ["kept", "accepted"]
