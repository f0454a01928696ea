"""Every example of docs/producer.md runs; what stands below a command is what it says."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from .brokers import broker
from .test_admin_docs import WRITTEN_ADDRESS, blocks, run_console, run_python


def test_the_producers_page_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    with broker(num_partitions=2) as running:
        monkeypatch.setenv("COTERIE_BOOTSTRAP", running.bootstrap)
        for kind, text in blocks("producer.md"):
            if kind == "python":
                run_python(text.replace(WRITTEN_ADDRESS, running.bootstrap), names)
                continue
            printed, _, command = text.removeprefix("$ printf ").partition(" | ")
            lines = printed.strip("'").replace("\\n", "\n")
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
            capsys.readouterr()
            run_console(f"$ {command}", capsys)
