"""What an application meets of the clients: one place to import from, no Any, docstrings that help."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest

import coterie.client
from coterie.base.errors import CoterieError
from coterie.client import Admin, BlockingAdmin, BlockingConsumer, BlockingProducer, Consumer, Producer
from coterie.client.errors import WrongSetting
from coterie.client.producer.settings import ProducerSettings
from coterie.client.settings import AdminSettings, ClientSettings, ConsumerSettings

FACES: tuple[tuple[type, type[ClientSettings]], ...] = (
    (Admin, AdminSettings),
    (BlockingAdmin, AdminSettings),
    (Consumer, ConsumerSettings),
    (BlockingConsumer, ConsumerSettings),
    (Producer, ProducerSettings),
    (BlockingProducer, ProducerSettings),
)
# For the Spark sink, which encodes its records itself, and keeps its connections.
FOR_OURSELVES = {"send_packed", "start_on"}
ROW = re.compile(r"\((?:[A-Z]{2}-\d|[0-9]\.\d)")


def public_methods(face: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and the function of each method and property that an application calls."""
    for name, member in inspect.getmembers(face):
        function = getattr(member, "fget", member)
        if (not name.startswith("_") or name in ("__anext__", "__iter__")) and inspect.isroutine(function):
            yield name, inspect.unwrap(function)


def types_in(hint: Any) -> Iterator[Any]:
    """Yield each type that an annotation names."""
    if isinstance(hint, list):
        for one in hint:
            yield from types_in(one)
        return
    yield typing.get_origin(hint) or hint
    for one in typing.get_args(hint):
        yield from types_in(one)


def hints_of(function: Any) -> dict[str, Any]:
    arrow = SimpleNamespace(Table=int)  # of pyarrow, which need not be there
    return typing.get_type_hints(function, {**vars(sys.modules[function.__module__]), "pa": arrow})


def errors_of(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from errors_of(one)


def test_the_public_names_are_listed_typed_and_importable():
    tree = ast.parse(inspect.getsource(coterie.client))
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coterie.")
        for alias in node.names
    }

    assert sorted(typed) == sorted(coterie.client.__all__) == sorted(coterie.client.PLACE_OF)
    assert dir(coterie.client) == sorted(coterie.client.__all__)
    for name in coterie.client.__all__:
        assert getattr(coterie.client, name) is not None
    with pytest.raises(AttributeError, match=r"module 'coterie\.client' has no attribute 'Consumr'"):
        coterie.client.__getattr__("Consumr")


def test_every_error_of_a_client_is_imported_from_the_one_place():
    for module in pkgutil.walk_packages(coterie.client.__path__, "coterie.client."):
        importlib.import_module(module.name)
    ours = {one.__name__ for one in errors_of(CoterieError) if one.__module__.startswith("coterie.client")}

    assert ours - {*coterie.client.__all__} == set()


@pytest.mark.parametrize("face", [face for face, _ in FACES], ids=lambda face: face.__name__)
def test_a_public_method_takes_and_returns_what_the_one_place_has_and_returns_no_any(face: type):
    overloaded = {"committed", "send"}  # whose last form is for nobody to see, and whose arguments are free
    for name, function in public_methods(face):
        if name in FOR_OURSELVES:
            continue
        hints = hints_of(function)
        if name not in overloaded:
            assert Any not in {*types_in(hints.get("return"))}, name
        for kind in {one for hint in hints.values() for one in types_in(hint)}:
            if isinstance(kind, type) and kind.__module__.startswith("coterie."):
                assert kind.__name__ in coterie.client.__all__, f"{name}: {kind.__name__}"


@pytest.mark.parametrize(("face", "settings"), FACES, ids=lambda one: one.__name__)
def test_a_constructor_lists_its_settings_and_their_defaults(face: type, settings: type[ClientSettings]):
    said = inspect.getdoc(face.__init__) or ""  # type: ignore[misc]

    for one in fields(settings):
        assert f"\n    {one.name}" + ("" if one.default is MISSING else f" = {one.default!r}") in said
    assert said.splitlines()[0].startswith("Make a")


def test_no_public_docstring_has_codes_of_the_catalogue():
    for name in coterie.client.__all__:
        found = getattr(coterie.client, name)
        texts = {name: found.__doc__ or ""}
        if isinstance(found, type):
            texts |= {method: function.__doc__ or "" for method, function in public_methods(found)}
        assert [where for where, text in texts.items() if ROW.search(text)] == [], name


@pytest.mark.parametrize("face", [Admin, BlockingConsumer, BlockingProducer, Consumer, Producer])
def test_settings_in_a_dictionary_are_named_arguments_here(face: Any):
    with pytest.raises(
        WrongSetting, match=r"named arguments here, with underscores: \w+\(bootstrap_servers="
    ):
        face({"bootstrap.servers": "b:1"})


@pytest.mark.parametrize("face", [BlockingConsumer, Consumer])
def test_settings_in_a_dictionary_behind_the_topics_are_a_type_error_that_says_what_to_write(face: Any):
    with pytest.raises(TypeError, match=r"named arguments here, .*: Consumer\(bootstrap_servers="):
        face("orders", {"bootstrap.servers": "b:1"})
