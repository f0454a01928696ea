"""The examples of docs/client.md run, in order, as they stand there."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from no_task_left import run

from .adapters import CLIENTS, Message

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
SERVER = "localhost:9092"
CONFLUENT = CLIENTS[0]


def examples() -> list[str]:
    """Return the page's blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


async def run_example(source: str, names: dict[str, Any]) -> None:
    """Run one block; `await` may stand anywhere in it."""
    code = compile(source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    returned = eval(code, names)
    if inspect.isawaitable(returned):
        await returned


def test_the_examples_run(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = json.dumps({"amount": 5}).encode()
    CONFLUENT.produce(bootstrap, [Message(topic="orders", partition=0, value=value)] * 20)
    names: dict[str, Any] = {}

    for example in examples():
        run(run_example(example.replace(SERVER, bootstrap), names))

    said = capsys.readouterr().out
    assert "orders 0 9 None b'{" in said
    assert "['key', 'value', 'topic', 'partition', 'offset'" in said
    assert "ours now: (TopicPartition(topic='orders', partition=0)" in said
    assert "did you mean max_poll_records?" in said
