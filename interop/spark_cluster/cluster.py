"""The cluster: a broker, an object store, Spark's master and two workers, and the machine of a driver."""

from __future__ import annotations

import json
import shutil
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.kafka import REPOSITORY, SetupError
from pipeline.processes.process_tree import Process

from interop.spark_cluster.machines import Bridge, Machine, Program
from interop.spark_cluster.provisions import PLACE, Provisions
from interop.spark_cluster.signed import Keys, Signed

__all__ = ["ARCHIVE", "BROKER", "IN_ARCHIVE", "STORAGE", "WORKERS", "Cluster", "wait_until"]

HERE = Path(__file__).parent
NAMES = ("broker", "s3", "master", "worker1", "worker2", "driver")
WORKERS = ("worker1", "worker2")
BROKER, MASTER = "broker:9092", "spark://master:7077"
CONTROL = "http://s3:9000/-control"
KEYS = Keys("cluster", "a-secret-of-the-cluster")
BUCKETS = ("tables", "checkpoints")
WITHIN_S = 300.0
EXECUTOR = "CoarseGrainedExecutorBackend"
# Where things are on the machines.
SPARK, CONF, PYTHON, JARS, ARCHIVE, APP, SUPERVISE = (
    "/opt/spark",
    "/opt/conf",
    "/opt/coterie",
    "/opt/s3a",
    "/opt/environment.tar.gz",
    "/opt/app.py",
    "/opt/supervise.sh",
)
IN_IMAGE, IN_ARCHIVE = f"{PYTHON}/bin/python", "./environment/bin/python"
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex{3}
"""
SETTINGS = {
    "spark.master": MASTER,
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    # The ports that a firewall has to let through, from the other machines to the driver's.
    "spark.driver.host": "driver",
    "spark.driver.port": "7078",
    "spark.driver.blockManager.port": "7079",
    "spark.blockManager.port": "7080",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraClassPath": f"{JARS}/*",
    "spark.hadoop.fs.s3a.endpoint": "http://s3:9000",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.access.key": KEYS.access,
    "spark.hadoop.fs.s3a.secret.key": KEYS.secret,
}
STORAGE = {
    "AWS_ENDPOINT_URL": "http://s3:9000",
    "AWS_ACCESS_KEY_ID": KEYS.access,
    "AWS_SECRET_ACCESS_KEY": KEYS.secret,
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
"""The options of a ledger's table."""


class Cluster:
    """All of it. A context manager: on the way out its machines have ended."""

    def __init__(self, folder: Path, provided: Provisions) -> None:
        self.folder, self.provided = folder, provided
        self.bridge = Bridge(folder, NAMES)
        self.machines = {name: Machine(self.bridge, name) for name in NAMES}
        self.programs: dict[str, Program] = {}
        self.s3 = Signed("s3:9000", KEYS)

    def __enter__(self) -> Cluster:
        conf = self.folder / "conf"
        conf.mkdir()
        (conf / "log4j2.properties").write_text(LOGGING)
        (conf / "spark-defaults.conf").write_text(
            "".join(f"{name} {told}\n" for name, told in SETTINGS.items())
        )
        try:
            self.bridge.start()
            self._start_services()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            machine.stop()
        self._keep_logs()

    def _keep_logs(self) -> None:
        """Copy what all programs have logged to where it can be read until the next run."""
        kept = PLACE / "last"
        shutil.rmtree(kept, ignore_errors=True)
        for pattern in ("*/log/*", "*/work/*/*/std*"):
            for log in self.folder.glob(pattern):
                copy = kept / log.relative_to(self.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, copy)

    def _start_services(self) -> None:
        """Start the broker, the object store and the master."""
        own = {PYTHON: self.provided.environment}
        for name in ("broker", "s3", "master"):
            double = {"/opt/gateway": self.provided.gateway, "/opt/small_s3.py": SMALL_S3}
            self.machines[name].start(self.system() | {"broker": own, "s3": double, "master": {}}[name])
        self.start_broker()
        self.start_gateway()
        python = str(self.provided.python / "bin" / "python3")
        proxy = ("/opt/small_s3.py", "127.0.0.1:9001", "0.0.0.0:9000")
        self.programs["proxy"] = self.machines["s3"].run("log/proxy", python, *proxy)
        self.start_master()
        wait_until(lambda: listens("s3", 9000), "the proxy before the object store listens")
        for bucket in BUCKETS:
            if self.s3.asked("PUT", f"/{bucket}") != 200:
                raise SetupError(f"the object store makes no bucket {bucket}")
        wait_until(lambda: listens("broker", 9092), "the broker listens")

    def system(self) -> dict[str, Path]:
        """Return what every machine's image has: Python, Java and Spark, and nothing of ours."""
        installed = [
            one for one in (self.provided.python, self.provided.java) if not one.is_relative_to("/usr")
        ]
        return {
            SPARK: self.provided.spark,
            CONF: self.folder / "conf",
            **{str(one): one for one in installed},
        }

    def start_broker(self) -> None:
        """Start the broker, which keeps its data on its disk."""
        serve = ("-m", "coterie", "serve", "--listen", BROKER, "--data", "/var/data")
        settings = ("--set", "group.initial.rebalance.delay.ms=0")
        self.programs["broker"] = self.machines["broker"].run(
            "log/broker", f"{PYTHON}/bin/python", *serve, *settings
        )

    def start_gateway(self) -> None:
        """Start the object store, which keeps its objects on its disk, as files of their names."""
        (self.machines["s3"].disk / "objects").mkdir(exist_ok=True)
        keys = ("--access", KEYS.access, "--secret", KEYS.secret)
        served = ("--port", "127.0.0.1:9001", *keys, "--quiet", "posix", "/var/objects")
        self.programs["gateway"] = self.machines["s3"].run("log/gateway", "/opt/gateway", *served)

    def trouble(self, **wanted: Any) -> dict[str, Any]:
        """Tell the proxy before the object store what is to befall requests; return what has."""
        request = urllib.request.Request(CONTROL, json.dumps(wanted).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    @property
    def objects(self) -> Path:
        """Where the object store keeps its objects, as this machine sees them."""
        return self.machines["s3"].disk / "objects"

    def start_master(self) -> None:
        """Start Spark's master."""
        ports = ("--host", "master", "--port", "7077", "--webui-port", "8080")
        self.programs["master"] = self.spark_class("master", "org.apache.spark.deploy.master.Master", *ports)

    def start_workers(self, *, image: bool) -> None:
        """Start the workers' machines anew, with our package in their image or with none of it."""
        for name in WORKERS:
            self.machines[name].stop()
        # A worker at the address of one that the master has not missed yet is refused, and ends.
        wait_until(lambda: self.living_workers() == 0, "the master misses the workers")
        for name in WORKERS:
            self.machines[name].start(self.system() | ({PYTHON: self.provided.environment} if image else {}))
            self.start_worker(name)
        wait_until(lambda: self.living_workers() == len(WORKERS), "the master knows the workers")

    def start_worker(self, name: str) -> None:
        """Start Spark's worker on its machine, on a core of its own."""
        core = WORKERS.index(name)
        ports = ("--host", name, "--port", "7081", "--webui-port", "8081")
        given = ("--cores", "1", "--memory", "512m", "--work-dir", "/var/work")
        self.programs[name] = self.spark_class(
            name, "org.apache.spark.deploy.worker.Worker", *ports, *given, MASTER, core=core
        )

    def spark_class(self, machine: str, *words: str, core: int | None = None) -> Program:
        """Start one of Spark's daemons."""
        own = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC"}
        return self.machines[machine].run(
            f"log/{machine}",
            f"{SPARK}/bin/spark-class",
            *words,
            environment=self.environment() | own,
            core=core,
        )

    def environment(self) -> dict[str, str]:
        """Return what Spark's programs find in theirs."""
        return {"JAVA_HOME": str(self.provided.java), "SPARK_HOME": SPARK, "SPARK_CONF_DIR": CONF}

    def living_workers(self) -> int:
        """Return how many workers the master has."""
        try:
            said: dict[str, Any] = asked("http://master:8080/json/")
        except (OSError, ValueError):  # it is about to start: what it says may be no JSON yet
            return 0
        return int(said["aliveworkers"])

    def start_driver(self) -> None:
        """Start the machine of the driver, which has the application, our package and its archive.

        Where applications start, our package has the name that an archive's has where executors do: Spark
        runs the source by one path on both.
        """
        sees = {PYTHON: self.provided.environment, JARS: self.provided.jars, ARCHIVE: self.provided.archive}
        driver = self.machines["driver"]
        driver.start(self.system() | sees | {APP: HERE / "app.py", SUPERVISE: HERE / "supervise.sh"})
        (driver.disk / "environment").symlink_to(PYTHON)

    def submit(
        self, wanted: Mapping[str, Any], *options: str, python: str = IN_IMAGE, supervised: bool = False
    ) -> Program:
        """Start an application on the driver's machine, where it may be `supervised`: started again when it
        ends badly. `python` is Python's path there and on workers.
        """
        own = {"PYSPARK_PYTHON": python}
        return self.machines["driver"].run(
            "log/application",
            *([SUPERVISE] if supervised else []),
            *(f"{SPARK}/bin/spark-submit", *options, APP, json.dumps(wanted)),
            environment=self.environment() | own,
        )

    def executors(self, worker: str) -> list[Process]:
        """Return the executors that run on a worker's machine."""
        return [one for one in self.machines[worker].processes() if EXECUTOR in one.command]

    def tasks_by_host(self) -> dict[str, int]:
        """Return how many tasks the application's executors have finished, by their machine's name."""
        (application,) = asked("http://driver:4040/api/v1/applications")
        found = asked(f"http://driver:4040/api/v1/applications/{application['id']}/allexecutors")
        done: dict[str, int] = {}
        for one in found:
            host = one["hostPort"].partition(":")[0]
            done[host] = done.get(host, 0) + int(one["completedTasks"])
        return done


SMALL_S3 = REPOSITORY / "tests" / "spark" / "small_s3.py"


def asked(url: str) -> Any:
    """Return what a server of Spark's says, in JSON."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def listens(host: str, port: int) -> bool:
    """Return whether somebody listens there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
    """Wait until the condition holds; raises AssertionError with what was waited for."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"it does not come to pass within {within_s:.0f} s: {what}"
        time.sleep(0.1)
