"""What a client of Spark Connect has of a batch's end: on the server's machine, and on one that shares
nothing with it but the network. That one has a temporary folder of its own, in which it finds no reader.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
from bench.brokers import free_port
from bench.kafka import REPOSITORY

from interop.spark.applications import wait_for
from interop.spark.topics import Topic

__all__ = ["ConnectServer", "show_batch_ends"]

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.sql.shuffle.partitions": "2",
}
STARTED = "Spark Connect server started at"
WITHIN_S = 600.0
RECORDS = 10
MEMBER = {"kafka.session.timeout.ms": "30000", "kafka.heartbeat.interval.ms": "500"}
KINDS = ("watched", "listener", "ledger", "state", "state, ledger")
LAG = "coterie_group_lag_records{"
REFUSED = "this query keeps state, and is a dynamic member of group"


class ConnectServer:
    """A server of Spark Connect, as a distribution's `start-connect-server.sh` starts it, for a block."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.log = folder / "connect-server.log"
        self.url = ""
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ConnectServer:
        port = free_port()
        settings = SETTINGS | {"spark.connect.grpc.binding.port": str(port)}
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", CLASS]
        command += ["--master", "local[2]"]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"],
                stdout=log, stderr=log, cwd=REPOSITORY, start_new_session=True,
                env={**os.environ, **self._environment, "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip
        wait_for(lambda: STARTED in self.log.read_text(errors="replace"), what="the server of Spark Connect")
        self.url = f"sc://127.0.0.1:{port}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)


class Client:
    """A client, and the topics, groups and folders of its queries."""

    def __init__(self, place: str, folder: Path, bootstrap: str) -> None:
        self._place, self._folder, self._bootstrap = place, folder / place, bootstrap

    def run(self, server: str, kinds: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
        """Return what became of a query of each kind, and as `log` what the client said of them."""
        wanted = {kind: self._query(kind) for kind in kinds}
        done = subprocess.run(
            [sys.executable, "-m", "interop.spark.connect_app", server, json.dumps(wanted)],
            capture_output=True, text=True, cwd=REPOSITORY, timeout=WITHIN_S,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return {**json.loads(done.stdout.splitlines()[-1]), "log": done.stderr}

    def _query(self, kind: str) -> dict[str, Any]:
        """Return what a query is to do, of a topic with some records."""
        name = f"{self._place}-{kind.replace(', ', '-')}"
        topic = Topic(self._bootstrap, name, partitions=2)
        topic.produce(RECORDS)
        options = topic.options(**{"group.id": name, **MEMBER})
        return {"folder": str(self._folder / kind), "options": options, "partitions": topic.partitions}


def show_batch_ends(folder: Path, bootstrap: str, environment: Mapping[str, str]) -> None:
    """Show what is committed when a batch is done, what is refused, and what a listener sees."""
    import deltalake

    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    with ConnectServer(folder, environment) as server:
        here = Client("here", folder, bootstrap).run(server.url, (*KINDS, "state, now"), environment)
        far = Client("far", folder, bootstrap).run(
            server.url, KINDS, {**environment, "TMPDIR": str(elsewhere)}
        )
    for kind in ("watched", "listener", "ledger"):
        assert here[kind]["committed"] == RECORDS, here
        assert here[kind]["active"], here
    for found in (here, far):
        lags = [one for one in found["listener"]["scraped"].splitlines() if one.startswith(LAG)]
        assert len(lags) == 1, found["listener"]
        assert lags[0].endswith(" 0.0"), lags
        assert found["ledger"]["committed"] == RECORDS, found
        assert found["state"]["committed"] == 0, found
        assert not found["state"]["active"], found
        assert REFUSED in found["log"], found["log"]
        assert found["state, ledger"]["committed"] == 0, found
        assert not found["state, ledger"]["active"], found
    assert here["state, now"]["committed"] == 0, here
    for kind in ("state, now", "state, ledger"):  # far away the client's listeners stop it first
        assert REFUSED in here[kind]["error"], here
    for kind in ("watched", "listener"):  # with the next plan, which is an hour away
        assert far[kind]["committed"] == 0, far
        assert far[kind]["active"], far
    for place in ("here", "far"):
        assert (
            deltalake.DeltaTable(folder / place / "ledger" / "table").to_pyarrow_table().num_rows == RECORDS
        )
    told = {kind: here[kind]["after_s"] for kind in ("watched", "listener", "ledger")}
    print(f"    committed so long after the batch was seen to be done (s): {told}", flush=True)
