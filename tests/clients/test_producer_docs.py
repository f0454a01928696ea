"""Every example of docs/producer.md runs; what stands below a command is what it says."""

from __future__ import annotations

import pytest

from .brokers import broker
from .test_admin_docs import run_page


def test_the_producers_page_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with broker(num_partitions=2) as running:
        run_page("producer.md", running.bootstrap, capsys, monkeypatch)
