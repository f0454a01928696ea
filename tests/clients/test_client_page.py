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
from .brokers import broker
from .test_admin_docs import run_page

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


def said_by_the_examples(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the examples print, on the topic that the page has made first."""
    value = json.dumps({"amount": 5}).encode()
    CONFLUENT.produce(bootstrap, [Message(topic="orders", partition=0, value=value)] * 20)
    names: dict[str, Any] = {}
    capsys.readouterr()
    for example in examples():
        run(run_example(example.replace(SERVER, bootstrap), names))
    return capsys.readouterr().out


def test_the_examples_run(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = said_by_the_examples(bootstrap, capsys)

    assert "orders 0 9 None b'{" in said
    assert "['key', 'value', 'topic', 'partition', 'offset'" in said
    assert "assigned: (TopicPartition(topic='orders', partition=0)" in said
    assert "did you mean max_poll_records?" in said


@pytest.mark.parametrize("client_first", [True, False])
def test_the_pages_may_be_read_in_any_order_beside_one_broker(
    client_first: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None makes a topic that another has, or leaves records or offsets where another reads."""
    with broker() as running:
        if client_first:
            assert "orders 0 9 None b'{" in said_by_the_examples(running.bootstrap, capsys)
        for page in ("producer.md", "admin.md") if client_first else ("admin.md", "producer.md"):
            run_page(page, running.bootstrap, capsys, monkeypatch)
        if not client_first:
            assert "orders 0 9 None b'{" in said_by_the_examples(running.bootstrap, capsys)
