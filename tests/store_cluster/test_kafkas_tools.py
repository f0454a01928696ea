"""Apache Kafka's own tools move partitions and leaders, and take a broker out: kafka-reassign-partitions.sh,
kafka-leader-election.sh, kafka-cluster.sh.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from bench.brokers import SETTINGS
from bench.kafka import tool_command
from bench.store_cluster import StoreBroker, StoreCluster

from clients.adapters.confluent import ConfluentAdmin

pytestmark = pytest.mark.interop  # each tool is a JVM

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PARTITIONS = 6


def run(tool: str, *words: str) -> str:
    """Return what a tool prints that succeeds."""
    ended = subprocess.run(tool_command(tool, *words), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_kafkas_tools_grow_and_shrink_a_cluster(cluster: StoreCluster, tmp_path: Path) -> None:
    topic = "for-tools"
    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(topic, partitions=PARTITIONS)
    at = ("--bootstrap-server", cluster.bootstrap)
    url = cluster.server.url(cluster.database)
    fourth = StoreBroker(4, url, tmp_path / "broker-4.log", SETTINGS)
    fourth.start()
    try:
        topics = tmp_path / "topics.json"
        topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
        said = run(
            REASSIGN, *at, "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3,4", "--generate"
        )
        plan = tmp_path / "plan.json"
        plan.write_text(said.partition("Proposed partition reassignment configuration\n")[2])
        assert "Successfully started partition reassignments" in run(
            REASSIGN, *at, "--reassignment-json-file", str(plan), "--execute"
        )
        verified = run(REASSIGN, *at, "--reassignment-json-file", str(plan), "--verify")
        assert verified.count(" is completed.") == PARTITIONS
        assert "No partition reassignments found." in run(REASSIGN, *at, "--list")
        cluster.until("4 leads", lambda: Counter(cluster.leaders(topic))[4] >= 1)

        swapped = [{"topic": topic, "partition": at, "replicas": [2, 3]} for at in range(PARTITIONS)]
        plan.write_text(json.dumps({"version": 1, "partitions": swapped}))
        run(REASSIGN, *at, "--reassignment-json-file", str(plan), "--execute")
        run(ELECT, *at, "--election-type", "preferred", "--all-topic-partitions")
        assert {*cluster.leaders(topic)} == {2}

        fourth.send(signal.SIGTERM)
        fourth.wait()
        assert "Broker 4 is no longer registered." in run(CLUSTER, "unregister", *at, "--id", "4")
        assert re.search(r"LeaderId:\s+1\n", run(QUORUM, *at, "describe", "--status"))
        assert not re.search(r"^4\s", run(CLUSTER, "list-endpoints", *at), re.MULTILINE)
    finally:
        fourth.kill()
