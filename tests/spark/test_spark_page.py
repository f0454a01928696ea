"""The examples of docs/spark.md run, in order, as they stand there, with one session and their own broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import coterie.testing
from coterie.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
ADDRESS, FOLDER, PORT = "127.0.0.1:9092", '"run/', "port=9404"
EXAMPLE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(spark: SparkSession) -> Iterator[dict[str, Any]]:
    """What the examples have named so far; afterwards the session has no listener of theirs."""
    made: dict[str, Any] = {}
    yield made
    for one in made.values():
        if isinstance(one, StreamingQueryListener):
            spark.streams.removeListener(one)


def run_commands(text: str) -> None:
    """Run each `$ coterie …` line."""
    for words in text.removeprefix("$ coterie ").split("\n$ coterie "):
        with pytest.raises(SystemExit) as ended:
            main(words.split())
        assert ended.value.code == 0, words


@pytest.mark.interop  # half a minute of both cores
@pytest.mark.timeout(600)
def test_the_examples_run(
    names: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with coterie.testing.broker() as running:
        monkeypatch.setenv("COTERIE_BOOTSTRAP", running.bootstrap)
        for kind, text in EXAMPLE.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "console":
                run_commands(text)
            else:
                example = text.replace(ADDRESS, running.bootstrap).replace(FOLDER, f'"{tmp_path}/run/')
                example = example.replace(PORT, "port=0")
                exec(compile(example, str(PAGE), "exec"), names)

    said = capfd.readouterr().out
    assert "1000 flights of the last hour" in said
    assert "0 flights are left" in said
    assert "lag 0" in said
    assert "1000 flights, each once" in said
    assert "# TYPE coterie_group_lag_records gauge" in said
    assert "copied: 4000" in said  # the examples before it have sent more
    assert "as recorded" in said
    assert "|7      |NULL" in said
    assert "not in the wire format of a schema registry" in said
