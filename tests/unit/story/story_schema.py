"""Checks a record of `__group_story` against docs/story.schema.json: as much of JSON Schema as that uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[3] / "docs/story.schema.json").read_text(encoding="utf-8")
)
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
SAYS_NOTHING = {"$schema", "title", "description", "$defs"}
KEYWORDS = {"$ref", "oneOf", "const", "enum", "type", "minimum", "pattern", "required", "properties"} | {
    "additionalProperties",
    "items",
    "minItems",
}


def problems(value: object, schema: dict[str, Any] = SCHEMA, at: str = "record") -> list[str]:
    """Return what is wrong with a value, a sentence each; nothing if it is as the schema says."""
    assert schema.keys() <= KEYWORDS | SAYS_NOTHING, schema.keys()
    return list(_problems(value, schema, at))


def _problems(value: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from problems(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    if "oneOf" in schema:
        fits = [not problems(value, one, at) for one in schema["oneOf"]]
        if sum(fits) != 1:
            yield f"{at} is {sum(fits)} of the kinds: {value}"
            yield from (wrong for one in schema["oneOf"] for wrong in problems(value, one, at))
    if "const" in schema and value != schema["const"]:
        yield f"{at} is {value!r}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value!r}, none of {schema['enum']}"
    if "type" in schema and not _is_a(value, schema["type"]):
        yield f"{at} is {value!r}, no {schema['type']}"
    elif isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{at} is {value}, below {schema['minimum']}"
    elif isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{at} is {value!r}, not as {schema['pattern']}"
    elif isinstance(value, list):
        yield from _in_a_list(value, schema, at)
    elif isinstance(value, dict):
        yield from _in_an_object(value, schema, at)


def _is_a(value: object, names: str | list[str]) -> bool:
    kinds = tuple(TYPES[name] for name in ([names] if isinstance(names, str) else names))
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _in_a_list(value: list[Any], schema: dict[str, Any], at: str) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{at} has {len(value)} items, fewer than {schema['minItems']}"
    for number, item in enumerate(value):
        yield from problems(item, schema.get("items", {}), f"{at}[{number}]")


def _in_an_object(value: dict[str, Any], schema: dict[str, Any], at: str) -> Iterator[str]:
    known = schema.get("properties", {})
    yield from (f"{at} has no {name}" for name in schema.get("required", ()) if name not in value)
    for name, item in value.items():
        other = schema.get("additionalProperties", {})
        if name not in known and other is False:
            yield f"{at} has {name}, which the schema does not know"
        else:
            yield from problems(item, known.get(name, other or {}), f"{at}.{name}")
