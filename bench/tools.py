"""The programs that put load on a broker: built the first time they are asked for, kept in `bench/.cache`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import files
from pathlib import Path
from typing import Any

from bench import kafka
from bench.kafka import REPOSITORY, SetupError

__all__ = [
    "create_topic",
    "delete_topic",
    "group_load",
    "java_assign",
    "java_consume",
    "java_members",
    "java_produce",
    "java_produce_paced",
    "librdkafka",
    "python_load",
    "spark_write",
]

BENCH = REPOSITORY / "bench"
CACHE = BENCH / ".cache"
RUN_WITHIN_S = 600
TOPIC_WITHIN_S = 30
WARM_S = 2


def group_load(address: str, mode: str, **options: float | str) -> dict[str, Any]:
    """Run the Go load generator; returns what it printed."""
    words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
    return _json_of([str(_built_load()), "-address", address, "-mode", mode, *words])


def librdkafka(mode: str, address: str, topic: str, *words: object) -> dict[str, Any]:
    """Run the C program over librdkafka; returns what it printed."""
    return _json_of([str(_built_perf()), mode, address, topic, *map(str, words)])


def python_load(mode: str, client: str, *words: object) -> dict[str, Any]:
    """Run a Python client in a process of its own; returns what it printed."""
    return _json_of([sys.executable, "-m", "bench.python_load", mode, client, *map(str, words)])


def spark_write(address: str, records: int, repeats: int) -> dict[str, list[float]]:
    """Run the Spark application that writes by both sinks; returns the records a second of each."""
    words = [address, str(records), str(repeats)]
    return _json_of([sys.executable, "-m", "bench.spark.writing", *words])


def java_produce(
    address: str,
    topic: str,
    *,
    records: int,
    size: int,
    acks: str,
    settings: Mapping[str, str] | None = None,
) -> float:
    """Run Kafka's ProducerPerformance; returns records a second."""
    properties = {"acks": acks, **(settings or {})}
    return float(_performed(address, topic, records, size, properties)[0].split()[0])


def java_produce_paced(
    address: str, topic: str, *, records: int, size: int, acks: str, per_second: int
) -> float:
    """Run Kafka's ProducerPerformance at a rate; returns the 99th percentile of its latencies, in ms.

    Those of its first two seconds are left out: until it has connected and is compiled, records wait.
    """
    warm = WARM_S * per_second
    said = _performed(address, topic, records + warm, size, {"acks": acks}, throughput=per_second, warm=warm)
    (p99,) = (part for part in said if part.endswith(" 99th"))
    return float(p99.split()[0])


def _performed(
    address: str,
    topic: str,
    records: int,
    size: int,
    properties: Mapping[str, str],
    throughput: int = -1,
    warm: int = 0,
) -> list[str]:
    """Return what ProducerPerformance says of the whole run but its `warm` records, behind their number."""
    words = ["--topic", topic, "--num-records", records, "--record-size", size, "--throughput", throughput]
    words += ["--warmup-records", warm] if warm else []
    words += ["--bootstrap-server", address, "--command-property"]
    words += [f"{name}={value}" for name, value in properties.items()]
    said = _run(kafka.tool_command("org.apache.kafka.tools.ProducerPerformance", *map(str, words)))
    # "2000000 records sent, 293556.436225 records/sec (28.00 MB/sec), 5.20 ms avg latency, 110.00 ms max
    # latency, 1 ms 50th, 3 ms 95th, 9 ms 99th, 40 ms 99.9th."; the last line is the whole run
    sent, *rest = said.strip().splitlines()[-1].split(", ")
    if sent != (f"{records - warm} steady state records sent" if warm else f"{records} records sent"):
        raise SetupError(f"ProducerPerformance sent {sent} of {records} records:\n{said}")
    return rest


def java_consume(address: str, topic: str, *, records: int) -> float:
    """Run Kafka's ConsumerPerformance; returns records a second, from the first assignment on."""
    words = [
        "--topic",
        topic,
        "--num-records",
        str(records),
        "--bootstrap-server",
        address,
        "--timeout",
        "60000",
    ]
    said = _run(kafka.tool_command("org.apache.kafka.tools.ConsumerPerformance", *words))
    names, values = [[word.strip() for word in line.split(",")] for line in said.strip().splitlines()[-2:]]
    row = dict(zip(names, values, strict=True))
    if int(row["data.consumed.in.nMsg"]) < records:
        raise SetupError(f"ConsumerPerformance did not consume {records} records:\n{said}")
    return float(row["fetch.nMsg.sec"])


def java_assign(line: dict[str, Any], *, repeats: int) -> list[list[float]]:
    """Run Kafka's own assignor over a line of `coterie assign`; returns each run's milliseconds a step."""
    words = [
        "-Xmx2g",
        kafka.QUIET,
        "-cp",
        f"{_built_assignors()}:{kafka.classpath()}",
        "Assignors",
        str(repeats),
    ]
    runs: list[list[float]] = json.loads(_run([kafka.java(), *words], text=json.dumps(line) + "\n"))
    return runs


def java_members() -> list[str]:
    """Return the command line of the Java program of many members, its own words left out."""
    classes = f"{_built_members()}:{kafka.classpath()}"
    return [kafka.java(), "-Xmx1g", kafka.QUIET, "-cp", classes, "Members"]


def create_topic(address: str, topic: str, *, partitions: int) -> None:
    """Create a topic and wait until it is there."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(TOPIC_WITHIN_S)


def delete_topic(address: str, topic: str) -> None:
    """Delete a topic, so that its bytes are not written to the disk while the next figure is measured."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    for future in admin.delete_topics([topic]).values():
        future.result(TOPIC_WITHIN_S)
    os.sync()


def _built_load() -> Path:
    """Return the Go load generator, built if its sources are newer."""
    target, sources = CACHE / "load", BENCH / "load"
    if _outdated(target, sources.iterdir()):
        _run(
            [_program("go", "golang-go", "/usr/local/go/bin/go"), "build", "-o", str(target), "."],
            cwd=sources,
        )
    return target


def _built_assignors() -> Path:
    """Return the folder with the Java program over Kafka's assignors."""
    return _compiled(BENCH / "assignors" / "Assignors.java")


def _built_members() -> Path:
    """Return the folder with the Java program of many members."""
    return _compiled(BENCH / "recovery" / "Members.java")


def _compiled(source: Path) -> Path:
    """Return the folder of a Java program's classes, compiled if the source is newer."""
    target = CACHE / source.parent.name / f"{source.stem}.class"
    if _outdated(target, (source,)):
        compiler = _program("javac", "default-jdk-headless")
        _run([compiler, "-d", str(target.parent), "-cp", kafka.classpath(), str(source)])
    return target.parent


def _built_perf() -> Path:
    """Return the C program, built against the librdkafka inside the confluent-kafka that is installed."""
    target, source, library = CACHE / "perf", BENCH / "rdkafka" / "perf.c", _bundled_librdkafka()
    if _outdated(target, (source, library)):
        flags = ["-O2", "-Wall", f"-Wl,-rpath,{library.parent}"]
        _run([_program("cc", "gcc libc6-dev"), *flags, "-o", str(target), str(source), str(library)])
    return target


def _bundled_librdkafka() -> Path:
    """Return the shared library inside PyPI's confluent-kafka: the librdkafka that Python users run."""
    for file in files("confluent-kafka") or ():
        if file.name.startswith("librdkafka") and ".libs" in str(file.parent):
            return Path(str(file.locate())).resolve()
    raise SetupError("confluent-kafka's wheel has no librdkafka here: install it from PyPI, not from source")


def _outdated(target: Path, sources: Iterator[Path] | tuple[Path, ...]) -> bool:
    """Whether the target is missing or older than one of its sources."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return not target.exists() or any(source.stat().st_mtime > target.stat().st_mtime for source in sources)


def _program(name: str, packages: str, elsewhere: str | None = None) -> str:
    """Return where a program is; installs Debian's packages of it where that can be done without asking."""
    found = shutil.which(name) or (elsewhere if elsewhere and Path(elsewhere).exists() else None)
    if not found and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(
            ["apt-get", "install", "-y", "--no-install-recommends", *packages.split()], check=False
        )
        found = shutil.which(name)
    if not found:
        raise SetupError(f"no {name}: install it first (Debian: apt-get install {packages})")
    return found


def _run(command: list[str], *, cwd: Path | None = None, text: str | None = None) -> str:
    """Run a program to its end, with a text to read if there is one; returns its standard output."""
    done = subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True, timeout=RUN_WITHIN_S)
    if done.returncode != 0:
        raise SetupError(f"{' '.join(command[-8:])} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def _json_of(command: list[str]) -> dict[str, Any]:
    """Return the JSON that a program printed as its last line."""
    answer: dict[str, Any] = json.loads(_run(command).strip().splitlines()[-1])
    return answer
