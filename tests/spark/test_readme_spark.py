"""README's Spark file and the examples for Spark run as they stand."""

from __future__ import annotations

import re
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import coterie.testing
from coterie.base.ids import TopicPartition
from coterie.client.blocking.admin import BlockingAdmin
from coterie.client.blocking.producer import BlockingProducer

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_query_that_readme_shows_and_the_example_read_a_topic(
    spark: Any, monkeypatch: pytest.MonkeyPatch
):
    blocks = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))
    (shown,) = (text for text in blocks if "readStream" in text)
    with coterie.testing.broker() as kafka, BlockingAdmin(kafka.bootstrap) as admin:

        def send() -> None:
            with BlockingProducer(bootstrap_servers=kafka.bootstrap) as producer:
                producer.send("greetings", b"hello")

        send()
        exec(compile(shown.replace("127.0.0.1:9092", kafka.bootstrap), "README.md", "exec"), {})
        assert admin.list_group_offsets("spark-readers") == {TopicPartition("greetings", 0): 1}

        send()
        monkeypatch.setattr(sys, "argv", ["stream.py", kafka.bootstrap])
        runpy.run_path(str(ROOT / "examples" / "stream.py"))
        assert admin.list_group_offsets("spark-readers") == {TopicPartition("greetings", 0): 2}


@pytest.mark.interop  # ten seconds of a core, for what test_history_live and test_what_if_rows hold
@pytest.mark.slow
def test_the_examples_tell_a_clusters_history_and_what_other_settings_would_have_changed(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with tarfile.open(ROOT / "tests" / "data" / "lives" / "one.tar.xz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has none
        packed.extractall(tmp_path)
    monkeypatch.setattr(sys, "argv", ["history.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "history.py"))
    told = capfd.readouterr().out
    monkeypatch.setattr(sys, "argv", ["what_if.py", str(tmp_path), "group.instance.id=on"])
    runpy.run_path(str(ROOT / "examples" / "what_if.py"))
    answered = capfd.readouterr().out

    assert re.search(r"life-base +.member-joined +.[1-9]", told)
    assert re.search(r"life-static30 *.[1-9]\d{3,}", told)
    assert re.search(r"life-base +.group.instance.id=on", answered)
