"""How many connections a broker has at the database, which docs/cluster.md and its own start go by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.postgres import Server
from bench.store_cluster import StoreBroker, StoreCluster
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.adapters.model import Message
from coterie.storage.postgres.connecting import CONNECTIONS_NEEDED
from coterie.storage.remote.store import OPENED_BYTES

from ..rigs.keeping import kept

pytestmark = pytest.mark.interop

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
CLIENT = Confluent()
CALL_S = 10.0
LARGE, BATCHES = b"." * 100_000, 2 * OPENED_BYTES // 100_000
AT_ANY_TIME = Counter(
    {
        ("store", "writing 0"): 1,
        ("store", "writing 1"): 1,
        ("store", "writing 2"): 1,
        ("store", "opening logs"): 1,
        ("direct", "membership"): 1,
        ("direct", "metadata"): 2,
    }
)
WHILE_IT_DOES_ALL = AT_ANY_TIME + Counter(
    [
        ("store", "older records"),
        ("store", "deleting records"),
        ("store", "compaction"),
        ("direct", "sweeping"),
    ]
)
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
# Whoever compacts a log waits for its partition's row, and is there as long.
HOLD = """
SELECT FROM coterie.partitions JOIN coterie.topics USING (topic_id) WHERE name = 'prices'
FOR UPDATE OF partitions
"""


@pytest.fixture
def alone(server: Server, tmp_path: Path) -> Iterator[StoreCluster]:
    """A broker that goes to the database as one user for what may go through a pooler, as another else."""
    server.sql("postgres", "CREATE ROLE store LOGIN SUPERUSER; CREATE ROLE direct LOGIN SUPERUSER")
    running = StoreCluster(server, tmp_path, count=1)
    to_store, direct = (server.url(running.database, user=one) for one in ("store", "direct"))
    settings = {"log.cleaner.backoff.ms": "300"}
    running.brokers[1] = StoreBroker(1, to_store, tmp_path / "broker.log", settings, direct=direct)
    with running:
        yield running
    server.sql(running.database, "REASSIGN OWNED BY store TO postgres; DROP OWNED BY store, direct")
    server.sql("postgres", "DROP ROLE store, direct")


def connections(cluster: StoreCluster) -> Counter[tuple[str, str]]:
    """Return how many of the broker's there are, by user and use."""
    rows = cluster.server.sql(
        cluster.database,
        "SELECT usename, split_part(application_name, ': ', 2) FROM pg_stat_activity"
        " WHERE usename IN ('store', 'direct') AND datname = current_database()",
    )
    return Counter(tuple(row.split("|")) for row in rows.splitlines())  # type: ignore[misc]


def test_a_broker_has_seven_connections_and_with_those_for_what_it_does_now_and_then_as_many_as_it_needs(
    alone: StoreCluster,
) -> None:
    broker = alone[1]
    with ConfluentAdmin(broker.address) as admin:
        admin.create("flights")
        admin.create("prices")
    for _ in range(BATCHES):  # each is a row at least
        for topic in ("flights", "prices"):
            CLIENT.produce(broker.address, [Message(topic=topic, partition=0, key=b"a", value=LARGE)])
    broker.stop()
    broker.start()  # its memory is empty

    alone.until("it has those", lambda: connections(alone) == AT_ANY_TIME)

    administrator = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    with kept(alone.server, alone, HOLD), CLIENT.reader(broker.address, ("flights", 0)) as reader:
        assert len(reader.take(BATCHES)) == BATCHES  # of which the newest alone came as the log was opened
        for deleted in administrator.delete_records([TopicPartition("flights", 0, 1)]).values():
            deleted.result(CALL_S)
        compact(administrator, "prices")
        alone.until("it does all at once", lambda: connections(alone) == WHILE_IT_DOES_ALL)

    assert WHILE_IT_DOES_ALL.total() == CONNECTIONS_NEEDED
    assert sum(count for (user, _), count in WHILE_IT_DOES_ALL.items() if user == "store") == 7
    page = PAGE.read_text(encoding="utf-8")
    assert f"**Each broker needs {CONNECTIONS_NEEDED} connections**: seven at any time, and four more" in page
    assert "Seven of its connections go through the pooler" in page


def compact(administrator: AdminClient, topic: str) -> None:
    """Have a topic be compacted, as soon as can be."""
    entries = [ConfigEntry(*one, incremental_operation=AlterConfigOpType.SET) for one in COMPACTED.items()]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for changed in administrator.incremental_alter_configs([wanted]).values():
        changed.result(CALL_S)
