"""A misspelt setting or a wrong kind is refused by mypy, and another client's name says what it is here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import coterie.client
from coterie.client import Admin, BlockingConsumer, BlockingProducer, Consumer, Producer
from coterie.client.blocking.producer import BlockingDelivery
from coterie.client.errors import WrongSetting

ROOT = Path(__file__).resolve().parents[3]

RIGHT = """
from coterie.client import Admin, BlockingConsumer, Consumer, Producer

Consumer("t", bootstrap_servers="b:1", group_id="g", session_timeout_ms=6_000, max_poll_records="10")
BlockingConsumer("t", bootstrap_servers=["b:1"], enable_auto_commit=False)
Producer("b:1", acks="all", value_serializer=str.encode)
Admin("b:1", request_timeout_ms=5)
settings: dict[str, str] = {}
"""
TYPES = """
import json
from typing import Any, assert_type

import coterie.client as c


async def read(reset: c.Reset) -> None:
    plain = c.Consumer("t", bootstrap_servers="b:1")
    assert_type(plain, c.Consumer[bytes, bytes])
    record = await plain.getone()
    assert_type(record, c.ConsumerRecord[bytes, bytes])
    assert_type(record.value, bytes | None)
    assert_type(await plain.getone(timeout_ms=5), c.ConsumerRecord[bytes, bytes] | None)
    async for each in c.Consumer("t", bootstrap_servers="b:1", value_deserializer=bytes.decode):
        assert_type(each, c.ConsumerRecord[bytes, str])
    both = c.Consumer("t", bootstrap_servers="b:1", key_deserializer=int, value_deserializer=json.loads)
    assert_type(await both.getmany(), dict[c.TopicPartition, list[c.ConsumerRecord[int, Any]]])
    assert_type(plain.group_metadata(), c.GroupMetadata)
    with c.BlockingConsumer("t", bootstrap_servers="b:1", key_deserializer=int) as blocking:
        for one in blocking:
            assert_type(one.key, int | None)
        assert_type(blocking.position(("t", 0)), int)
        assert_type(blocking.lag(), dict[c.TopicPartition, int])
        blocking.commit()


def takes_any(consumer: c.Consumer, record: c.ConsumerRecord) -> None:
    assert_type(record.key, bytes | None)
"""
WRONG = """
from coterie.client import Admin, Consumer, Producer

Consumer("t", bootstrap_servers="b:1", sesion_timeout_ms=6_000)
Producer("b:1", linger_ms=None)
Admin("b:1", group_id="g")
Consumer("t")
"""


def the_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("options", ROOT / "scripts" / "options.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_options_are_made_from_the_settings_as_they_are():
    written = (ROOT / "src" / "coterie" / "client" / "options.py").read_text(encoding="utf-8")

    assert written == the_script().text(), "python scripts/options.py --write"


def test_mypy_takes_what_there_is_knows_its_types_and_refuses_what_is_misspelt_wrong_or_missing(
    tmp_path: Path,
):
    for name, text in (("right", RIGHT), ("typed", TYPES), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(text)

    files = [str(tmp_path / f"{name}.py") for name in ("right", "typed", "wrong")]
    how = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent"]
    mypy = [sys.executable, "-m", "mypy", *how, "--cache-dir", str(tmp_path / "cache"), *files]
    # In a process of its own: half a million objects of mypy's would stay in this one.
    said = subprocess.run(mypy, capture_output=True, text=True, check=False).stdout

    lines = [line for line in said.splitlines() if ": error:" in line]
    assert [line.split(":")[0].rpartition("/")[2] + ":" + line.split(":")[1] for line in lines] == [
        "wrong.py:4", "wrong.py:5", "wrong.py:6", "wrong.py:7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("face", "name", "here"),
    [
        (Producer("b:1"), "send_and_wait", "await (await producer.send(topic, value))"),
        (BlockingProducer("b:1"), "produce", "send(topic, value, key=...)"),
        (BlockingProducer("b:1"), "send_and_wait", "send(topic, value).result()"),
        (BlockingProducer("b:1"), "begin_transaction", "with producer.transaction(): ..."),
        (object.__new__(BlockingDelivery), "get", "result()"),
        (Consumer(bootstrap_servers="b:1"), "poll", "getmany(timeout_ms=...) or getone(timeout_ms=...)"),
        (
            BlockingConsumer(bootstrap_servers="b:1"),
            "poll",
            "getmany(timeout_ms=...) or getone(timeout_ms=...)",
        ),
        (Admin("b:1"), "create_topics", "create_topic(name, ...)"),
    ],
)
def test_another_clients_method_says_what_it_is_called_here(face: object, name: str, here: str):
    with pytest.raises(AttributeError) as failed:
        getattr(face, name)

    assert (
        str(failed.value) == f"{type(face).__name__!r} object has no attribute {name!r}; here it is: {here}"
    )
    assert not hasattr(face, "nothing_of_the_kind")


def test_another_clients_setting_says_what_to_do_instead():
    with pytest.raises(WrongSetting, match="no setting consumer_timeout_ms; give getone or getmany a"):
        Consumer("t", bootstrap_servers="b:1", consumer_timeout_ms=1_000)  # type: ignore[call-arg]
    with pytest.raises(WrongSetting, match=r'no setting topics; topics come first: Consumer\("orders", '):
        Consumer(bootstrap_servers="b:1", topics=["t"])  # type: ignore[call-arg]


def test_an_address_in_the_place_of_a_topic_is_answered_with_the_name_that_it_goes_by():
    with pytest.raises(WrongSetting, match=r"must be set, by its name: bootstrap_servers=\.\.\."):
        Consumer("127.0.0.1:9092", group_id="g")  # as Producer and Admin take it


@pytest.mark.parametrize("kind", ["PRODUCER", "CONSUMER", "ADMIN"])
def test_what_is_hinted_at_is_not_there_itself(kind: str):
    from coterie.client import other_clients

    face = {"PRODUCER": Producer, "CONSUMER": Consumer, "ADMIN": Admin}[kind]
    assert [name for name in getattr(other_clients, f"{kind}_METHODS") if hasattr(face, name)] == []


def test_the_place_to_import_from_lists_what_there_is():
    assert {"Admin", "BlockingConsumer", "Consumer", "Producer"} <= {*dir(coterie.client)}
