"""Apicurio Registry from Maven Central: a schema registry with Confluent's interface, kept in memory."""

from __future__ import annotations

import subprocess
import tarfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from bench.brokers import free_port
from bench.kafka import CACHE, SetupError, java

__all__ = ["Apicurio"]

VERSION = "2.6.13.Final"
NAME = f"apicurio-registry-app-{VERSION}"
WHERE = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/{NAME}-all.tar.gz"
START_WITHIN_S = 120.0


class Apicurio:
    """The server; within its block it answers at `url`."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "apicurio.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the interface that is Confluent's."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def __enter__(self) -> Apicurio:
        where = installed()
        words = ["-Xmx512m", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [java(), *words, "-jar", f"{NAME}-runner.jar"], cwd=where, stdout=log, stderr=log
            )
        until = time.monotonic() + START_WITHIN_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__(None, None, None)
                raise SetupError(f"Apicurio did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.2)
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None


def installed() -> Path:
    """Return the folder with the server, fetched once."""
    folder = CACHE / NAME
    done = folder / ".complete"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / "all.tar.gz"
        urllib.request.urlretrieve(WHERE, archive)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        archive.unlink()
        done.touch()
    return folder
