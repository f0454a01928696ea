"""`python -m interop.spark`: whole Spark applications, one process tree each, on Apache Kafka and on ours."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.brokers import BROKERS
from bench.kafka import CACHE, REPOSITORY, SetupError
from bench.spark.local import connector_jars

from interop.client.secured import PASSWORD, TLS, USER, SecuredKafka
from interop.spark.applications import Application, wait_for
from interop.spark.connect import show_batch_ends
from interop.spark.topics import Feeder, Topic

CONNECT = CACHE / "spark-connect-and-pipelines"
CONNECT_NEEDS = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", "pyyaml")
QUICK = {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}
NOW = {"availableNow": True}
OFTEN = {"processingTime": "200 milliseconds"}


class Brokers:
    """Where the two brokers are, each started when first asked for."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self._folder, self._undo = folder, undo
        self._running: dict[str, str] = {}

    @property
    def kafka(self) -> str:
        """HOST:PORT of Apache Kafka."""
        return self._at("kafka")

    @property
    def coterie(self) -> str:
        """HOST:PORT of ours."""
        return self._at("coterie")

    def _at(self, name: str) -> str:
        if name not in self._running:
            broker = BROKERS[name](self._folder / name)
            self._undo.enter_context(broker)
            self._running[name] = broker.address
        return self._running[name]


def checkpoint_resumed(folder: Path, brokers: Brokers) -> None:
    """A query moves from Spark's own source to ours and back, by its checkpoint alone."""
    topic = Topic(brokers.kafka, "moved", partitions=3)
    topic.produce(100)
    options = topic.options(maxOffsetsPerTrigger="40")
    app = Application(folder, "moved", format="kafka", options=options, trigger=NOW)
    app.wanted["settings"] = {"spark.jars": connector_jars()}
    app.run()
    assert len(app.places()) == 100

    for form in ("coterie", "kafka"):
        topic.produce(60)
        app.run(format=form)
        assert app.places() == sorted(topic.places), f"after {form}: not each record once"


def checkpoint_taken_into_a_group(folder: Path, brokers: Brokers) -> None:
    """A query of Spark's own source, to which `kafka.group.id` was a label, goes on as a member by it."""
    topic = Topic(brokers.kafka, "adopted", partitions=3)
    topic.produce(100)
    options = topic.options(**{"maxOffsetsPerTrigger": "40", "kafka.group.id": "adopting"})
    app = Application(folder, "adopted", format="kafka", options=options, trigger=NOW)
    app.wanted["settings"] = {"spark.jars": connector_jars()}
    app.run()
    assert len(app.places()) == 100

    topic.produce(60)
    app.run(format="coterie")
    assert app.places() == sorted(topic.places), "not each record once"
    wait_for(lambda: topic.committed("adopting") == topic.ends(), what="all is committed")


def three_applications(folder: Path, bootstrap: str, strategy: str) -> None:
    """Three share a topic; one is killed whole, comes back, and every record is accounted for."""
    topic = Topic(bootstrap, f"shared-{strategy}", partitions=6)
    group = f"three-{strategy}"
    options = topic.options(**QUICK, **{"group.id": group, "partition.assignment.strategy": strategy})
    a, b, c = (Application(folder, f"{group}-{name}", options=options, trigger=OFTEN) for name in "abc")
    with ExitStack() as undo, Feeder(topic, count=12, every_s=0.1):
        for app in (a, b, c):
            undo.callback(app.kill_if_it_lives)
        a.start()
        wait_for(lambda: len(a.places()) > 50, what="the first reads")
        b.start()
        c.start()
        wait_for(lambda: b.places() and c.places(), what="the others read their share")
        a.kill()
        unheard = a.last_batch()
        until_they_read_on(topic, b, c)
        read = len(a.places())
        a.start()
        wait_for(lambda: len(a.places()) > read + 20, what="the killed one reads again")
        b.stop()
        unheard += b.last_batch()
        until_they_read_on(topic, a, c)
        undo.pop_all()
    wait_for(lambda: topic.committed(group) == topic.ends(), what="all is committed")
    for app in (a, c):
        app.stop()
    account(topic, (a, b, c), unheard)


def until_they_read_on(topic: Topic, *apps: Application) -> None:
    """Wait until these read, of every partition, what lies past where it ends now."""
    ends = topic.ends()

    def read_on() -> bool:
        reached = dict(sorted(place for app in apps for place in app.places()))
        return all(reached.get(partition, 0) >= end for partition, end in ends.items())

    wait_for(read_on, what=f"{' and '.join(app.name for app in apps)} read all partitions")


def account(topic: Topic, apps: tuple[Application, ...], unheard: list[tuple[int, int]]) -> None:
    """Account for every record: none is lost; twice are those whose batch the group never heard of."""
    times = Counter(place for app in apps for place in app.places())
    missing = set(topic.places) - times.keys()
    assert not missing, f"{len(missing)} records are lost, the first {min(missing)}"
    assert times.keys() == set(topic.places), "more was read than there is"
    repeated = {place for place, count in times.items() if count > 1}
    assert repeated <= {*unheard}, f"repeated, and no batch's end was lost: {min(repeated - {*unheard})}"
    shares = ", ".join(str(len(app.places())) for app in apps)
    print(f"    {len(times)} records, read {shares}; {len(repeated)} of them twice", flush=True)


def static_restart(folder: Path, brokers: Brokers) -> None:
    """A static member's application ends and starts again without a rebalance."""
    topic = Topic(brokers.kafka, "static", partitions=2)
    named = {"group.id": "static", "group.instance.id": "one", "kafka.session.timeout.ms": "60000"}
    app = Application(folder, "static", options=topic.options(**named), trigger=NOW)
    generations = []
    for _ in range(2):
        topic.produce(10)
        app.run()
        generations.append(app.logged()[-1]["generation"])

    assert app.places() == sorted(topic.places)
    assert generations == [1, 1], f"generations {generations}"


def executors_of_their_own(folder: Path, brokers: Brokers) -> None:
    """Two executors in processes of their own, as on a cluster: they find the package by themselves."""
    topic = Topic(brokers.kafka, "cluster", partitions=4)
    topic.produce(100)
    options = topic.options(**{"group.id": "cluster", **QUICK, "maxRecordsPerPartition": "10"})
    app = Application(folder, "cluster", options=options, trigger=NOW, master="local-cluster[2,1,768]")
    app.wanted["settings"] = {"spark.executor.memory": "768m"}
    app.run()
    assert app.places() == sorted(topic.places)
    assert topic.committed("cluster") == topic.ends()


def over_tls_and_sasl(folder: Path, brokers: Brokers) -> None:
    """Batch and streaming, with what people paste: a JKS truststore and a JAAS line."""
    with SecuredKafka(folder / "secured") as kafka:
        assert isinstance(kafka, SecuredKafka)
        topic = Topic(kafka.address, "secured", partitions=2)
        topic.produce(50)
        secured = {
            "kafka.bootstrap.servers": kafka.at("SASLTLS"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="{USER}" password="{PASSWORD}";',
            "kafka.ssl.truststore.location": str(TLS / "truststore.jks"),
            "kafka.ssl.truststore.password": "changeit",
        }
        mutual = {
            "kafka.bootstrap.servers": kafka.at("MUTUAL"),
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": str(TLS / "truststore.p12"),
            "kafka.ssl.truststore.password": "changeit",
            "kafka.ssl.truststore.type": "PKCS12",
            "kafka.ssl.keystore.location": str(TLS / "client.jks"),
            "kafka.ssl.keystore.password": "changeit",
        }
        batch = Application(folder, "secured-batch", options=topic.options(**mutual))
        batch.run()
        assert batch.places() == sorted(topic.places)
        member = {"group.id": "secured", **QUICK}
        app = Application(folder, "secured", options=topic.options(**secured, **member), trigger=NOW)
        app.run()
        assert app.places() == sorted(topic.places)
        assert topic.committed("secured") == topic.ends()


def over_spark_connect(folder: Path, brokers: Brokers) -> None:
    """The same through Spark Connect: the client holds no driver."""
    import pyarrow.parquet as pq

    topic = Topic(brokers.kafka, "connect", partitions=2)
    topic.produce(50)
    member = {"group.id": "connect", **QUICK}
    app = Application(folder, "connect", options=topic.options(**member), trigger=NOW, connect=True)
    app.environment |= connect_environment()
    app.run()

    rows = pq.ParquetDataset(list(map(str, app.out.glob("*.parquet")))).read(["partition", "offset"])
    places = sorted(zip(*(rows[name].to_pylist() for name in ("partition", "offset")), strict=True))
    assert places == sorted(topic.places)
    assert topic.committed("connect") == topic.ends()


def batch_ends_over_spark_connect(folder: Path, brokers: Brokers) -> None:
    """A batch's end, and what is refused, for clients of Spark Connect beside the server and far away."""
    show_batch_ends(folder, brokers.coterie, connect_environment())


def declarative_pipeline(folder: Path, brokers: Brokers) -> None:
    """The pipeline of `examples/declarative`: a table that is read by a member of a group, a view over it."""
    import pyarrow.parquet as pq

    topic = Topic(brokers.coterie, "flights", partitions=2)
    topic.produce(50)
    project = folder / "declarative"
    shutil.copytree(REPOSITORY / "examples" / "declarative", project)
    specification = project / "spark-pipeline.yml"
    specification.write_text(
        specification.read_text().replace("/tmp/coterie-delays", str(folder / "storage"))
    )
    programs = Path(sys.executable).parent
    environment = os.environ | connect_environment() | {"COTERIE_BOOTSTRAP": brokers.coterie}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [programs / "spark-pipelines", "run"], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]

    def rows_of(table: str) -> list[dict[str, Any]]:
        files = (project / "spark-warehouse" / table).glob("*.parquet")
        rows: list[dict[str, Any]] = pq.ParquetDataset(list(map(str, files))).read().to_pylist()
        return rows

    assert sorted((row["partition"], row["offset"]) for row in rows_of("flights")) == sorted(topic.places)
    assert sum(row["flights"] for row in rows_of("flights_by_partition")) == 50
    assert topic.committed("delays") == topic.ends()


def histories_over_spark_connect(folder: Path, brokers: Brokers) -> None:
    """Histories and what-if through Spark Connect, against those that one process tells."""
    environment = os.environ | connect_environment()
    command = [sys.executable, "-m", "interop.spark.histories"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"    {done.stdout.strip()}", flush=True)


def connect_environment() -> dict[str, str]:
    """Return what an application needs in its environment to be a client of Spark Connect."""
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(connect_modules()), others)))}


def connect_modules() -> Path:
    """Return a folder with what Spark Connect's client needs and our lock does not hold."""
    if not (CONNECT / ".complete").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(CONNECT), *CONNECT_NEEDS]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise SetupError("pip could not fetch what Spark Connect needs")
        (CONNECT / ".complete").touch()
    return CONNECT


def lag_on_kafka(folder: Path, brokers: Brokers) -> None:
    """When unread records were written by an Apache Kafka's log, and what Prometheus scrapes of that."""
    tests_on_kafka(brokers, "test_unread_brokers.py", "test_metrics.py")


def protocol_on_kafka(folder: Path, brokers: Brokers) -> None:
    """The protocol's own tests, by other sessions than Spark's, on Apache Kafka."""
    tests_on_kafka(brokers, "test_group_session.py")


def tests_on_kafka(brokers: Brokers, *names: str) -> None:
    """Modules of tests/spark on Apache Kafka."""
    command = [sys.executable, "-m", "pytest", "-q", *(f"tests/spark/{name}" for name in names)]
    environment = {**os.environ, "COTERIE_TEST_BOOTSTRAP": brokers.kafka}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def long_tests(folder: Path, brokers: Brokers) -> None:
    """What `make test` leaves out of tests/spark as too long, on ours."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "interop", "tests/spark"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


Check = Callable[[Path, Brokers], Any]
CHECKS: Mapping[str, Check] = {
    "checkpoint-of-spark-s-own-source": checkpoint_resumed,
    "checkpoint-taken-into-a-group": checkpoint_taken_into_a_group,
    "three-applications-on-kafka": lambda folder, brokers: three_applications(
        folder, brokers.kafka, "cooperative-sticky"
    ),
    "three-applications-on-coterie": lambda folder, brokers: three_applications(
        folder, brokers.coterie, "range"
    ),
    "static-member-restarts": static_restart,
    "executors-of-their-own": executors_of_their_own,
    "tls-and-sasl": over_tls_and_sasl,
    "spark-connect": over_spark_connect,
    "batch-ends-over-spark-connect": batch_ends_over_spark_connect,
    "declarative-pipeline": declarative_pipeline,
    "histories-over-spark-connect": histories_over_spark_connect,
    "long-tests-on-coterie": long_tests,
    "lag-on-kafka": lag_on_kafka,
    "protocol-on-kafka": protocol_on_kafka,
}
WHOLE = "SPARK"  # `all` runs these, too
LEFT_OUT = {
    "three-applications-on-coterie": "make run has two on ours; SPARK=all runs it",
    "protocol-on-kafka": "it takes long, and three applications speak it there; SPARK=all runs it",
}


def main() -> int:
    """Run all checks, or those named in CHECKS; returns 1 if one failed."""
    asked = os.environ.get("CHECKS", "")
    whole = bool(asked) or os.environ.get(WHOLE) == "all"
    print(f"client pyspark {importlib.metadata.version('pyspark')}", flush=True)
    failed = 0
    place = tempfile.TemporaryDirectory(prefix="coterie-spark-", dir=os.environ.get("CACHE"))
    with place as name, ExitStack() as undo:
        folder = Path(name)
        brokers = Brokers(folder, undo)
        for name, check in CHECKS.items():
            if asked not in name:
                continue
            if name in LEFT_OUT and not whole:
                print(f"skipped {name}: {LEFT_OUT[name]}", flush=True)
                continue
            try:
                check(folder, brokers)
            except (AssertionError, SetupError) as error:
                failed += 1
                print(f"FAILED {name}: {str(error).strip()}", flush=True)
            else:
                print(f"ok {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
