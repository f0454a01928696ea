"""What the cluster is made of, made once and kept in `.cache`: an S3 server, jars, an environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.kafka import CACHE, REPOSITORY, SetupError, fetched, java

__all__ = ["Provisions", "provisions"]

GATEWAY = "1.8.0"
HADOOP = "3.5.0"
POM = Path(__file__).with_name("pom.xml")
PLACE = CACHE / "spark-cluster"


@dataclass(frozen=True, slots=True)
class Provisions:
    """Where each thing is on this machine."""

    gateway: Path
    """versitygw."""
    jars: Path
    """A folder of jars with which Spark opens s3a URLs."""
    environment: Path
    """A Python environment with coterie and what it needs but PySpark, compiled."""
    archive: Path
    """The same as an archive for `--archives`."""
    spark: Path
    """PySpark's folder, which is a SPARK_HOME."""
    python: Path
    """The Python that the environment links to."""
    java: Path


def provisions() -> Provisions:
    """Return all of it; made where it is not there yet. Raises SetupError with what could not be had."""
    PLACE.mkdir(parents=True, exist_ok=True)
    jars = PLACE / f"s3a-{HADOOP}"
    fetched(POM, jars, what=f"hadoop-aws {HADOOP}")
    environment, archive = packed()
    import pyspark

    return Provisions(
        gateway=gateway(),
        jars=jars,
        environment=environment,
        archive=archive,
        spark=Path(pyspark.__file__).parent,
        python=Path(sys.base_prefix),
        java=Path(java()).resolve().parent.parent,
    )


def gateway() -> Path:
    """Return versitygw's program, built from the Go proxy's source."""
    program = PLACE / f"versitygw-{GATEWAY}"
    if not program.exists():
        found = subprocess.run(
            ["sh", str(REPOSITORY / "scripts" / "go.sh")], stdout=subprocess.PIPE, text=True
        )
        if found.returncode != 0:
            raise SetupError("versitygw needs Go to be built (why there is none is said above)")
        print(f"building versitygw {GATEWAY}", file=sys.stderr)
        cache = {"GOPATH": str(CACHE / "go"), "GOCACHE": str(CACHE / "go" / "build")}
        flags = {"GOBIN": str(PLACE / "bin"), "GOTOOLCHAIN": "auto", "GOFLAGS": "-modcacherw -buildvcs=false"}
        module = f"github.com/versity/versitygw/cmd/versitygw@v{GATEWAY}"
        do(found.stdout.strip(), "install", module, environment={**cache, **flags})
        (PLACE / "bin" / "versitygw").rename(program)
    return program


def packed() -> tuple[Path, Path]:
    """Return an environment as it is now, and its archive. Those of older sources are removed."""
    place = PLACE / f"environment-{key()}"
    environment, archive = place / "environment", place / "environment.tar.gz"
    if not archive.exists():
        for older in PLACE.glob("environment-*"):
            shutil.rmtree(older)
        install(environment)
        print("compiling and packing the environment", file=sys.stderr)
        do(str(environment / "bin" / "python"), "-m", "compileall", "-q", "-j", "2", str(environment / "lib"))
        do(str(environment / "bin" / "python"), "-m", "coterie.arrow.precompile")
        half = archive.with_suffix(".half")
        do(
            "tar",
            "--create",
            "--use-compress-program=gzip -1",
            f"--file={half}",
            f"--directory={environment}",
            ".",
        )
        half.rename(archive)
    return environment, archive


def install(environment: Path) -> None:
    """Make an environment with coterie and what it needs, as locked, but PySpark, which workers have."""
    print("making an environment with coterie[spark,delta]", file=sys.stderr)
    do(sys.executable, "-m", "venv", "--without-pip", str(environment))
    lines = (REPOSITORY / "requirements.lock").read_text().splitlines()
    locked = [line.rstrip("\\ ") for line in lines if "==" in line and not line.startswith((" ", "#"))]
    constraints, no_spark = environment / "constraints.txt", environment / "overrides.txt"
    constraints.write_text("\n".join(locked))
    no_spark.write_text("pyspark; sys_platform == 'never'\n")
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "-q", "--link-mode", "copy"]
    words = [
        "--python",
        str(environment / "bin" / "python"),
        "-c",
        str(constraints),
        "--overrides",
        str(no_spark),
    ]
    do(*uv, *words, f"{REPOSITORY}[spark,delta]", environment={"UV_PYTHON_DOWNLOADS": "never"})


def key() -> str:
    """Return what the environment depends on, hashed."""
    sources = sorted((REPOSITORY / "src").rglob("*.py"))
    digest = hashlib.sha256()
    for path in (REPOSITORY / "requirements.lock", REPOSITORY / "pyproject.toml", Path(__file__), *sources):
        digest.update(str(path.relative_to(REPOSITORY)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def do(*words: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a command; raises SetupError if it fails."""
    done = subprocess.run(words, stdout=sys.stderr, env={**os.environ, **environment}, check=False)
    if done.returncode != 0:
        raise SetupError(f"this failed, and its words are above: {' '.join(words)}")
