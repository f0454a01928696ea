"""What the parts of the broker are given: by name, each of the type that the node has under that name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.api import FAMILIES
from coterie.broker.fastpath import FastPathParts
from coterie.broker.node import Node
from coterie.broker.runtime.topic_shards import CoordinatorParts
from coterie.story.topic import StoryParts
from coterie.wire.api.apis import APIS
from unit.broker.rig import Rig

FAMILY_MODULES = [
    importlib.import_module(f"coterie.broker.api.{name}") for name in sorted({*FAMILIES.values()})
]
PARTS = [CoordinatorParts, FastPathParts, StoryParts]
PARTS += [module.Parts for module in FAMILY_MODULES if hasattr(module, "Parts")]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def type_of_part(name: str) -> str:
    """Return the type of a node's part of this name, as the source says it."""
    part = vars(Node).get(name)
    if isinstance(part, cached_property):
        return str(part.func.__annotations__["return"])
    if callable(part):
        return f"Callable[[], {part.__annotations__['return']}]"
    return str(Node.__annotations__[name])


@pytest.mark.parametrize("wanted", PARTS, ids=lambda parts: f"{parts.__module__}.{parts.__name__}")
def test_a_part_is_of_the_type_that_the_node_has_by_its_name(wanted: Any):
    for name, annotation in wanted.__annotations__.items():
        assert getattr(annotation, "__forward_arg__", annotation) == type_of_part(name)


def test_a_handler_is_made_once_with_the_parts_that_its_module_names(rig: Rig):
    handler = rig.node.handlers[3, 9]

    assert rig.node.handlers[3, 9] is handler
    assert isinstance(handler, partial)
    (parts,) = handler.args
    assert parts.topics is rig.node.topics
    assert not hasattr(parts, "coordinator")


def test_a_handler_that_was_made_before_the_broker_listened_answers_with_its_address(rig: Rig):
    client = rig.client()
    client.ask(3, 9, topics=())

    rig.node.advertise("broker.example", 9_999)

    (broker,) = client.ask(3, 9, topics=()).brokers
    assert (broker.host, broker.port) == ("broker.example", 9_999)


def test_what_does_not_need_the_groups_or_transactions_does_not_load_them(rig: Rig):
    for api_key in (0, 1, 2, 3, 10, 18, 19, 20, 32):
        rig.node.handlers[api_key, APIS[api_key].most]

    assert not {"coordinator", "transactions"} & vars(rig.node).keys()
