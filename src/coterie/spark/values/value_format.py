"""How a query's values are decoded: from its options, resolved once, on the driver.

The reader's schema goes along in the metadata of the column `value`, from the process that Spark asks for the
columns to the one that plans: they read by one schema, whatever is registered in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from coterie.base.settings.named_functions import function_named
from coterie.base.whole import whole_number
from coterie.spark.options import BadOption, Options
from coterie.spark.values.registry import (
    LATEST,
    Registry,
    RegistryRefused,
    Schema,
    Schemas,
    UnknownSchema,
)

READERS_SCHEMA = "coterie.value.schema"
"""The key of the reader's schema in the metadata of the column `value`."""
SCHEMA_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}

NEED_FORMAT = (
    "value.schema",
    "value.subject",
    "value.message",
    "value.check",
    "deadLetterColumn",
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
    "schema.registry.bearer.auth.token",
    "schema.registry.ssl.ca.location",
)

Check = Callable[[pa.Array], Any]


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """All that a task needs to know to decode values."""

    kind: str
    reader: Schema
    registry: Registry
    dead_letters: bool = False
    """Whether what is no value gets a reason in the column `deadLetter`; if not, it fails the query."""
    check: str = ""
    """`package.module:function`, which sees the values; nothing: none does."""
    message: str = ""
    """The full name of the message, with protobuf; nothing: the first of the schema's file."""

    @property
    def mark(self) -> str:
        """What tells the reader's schema from any other, with its id: the checkpoint has it."""
        texts = json.dumps([self.kind, self.reader.text, self.reader.references, self.message])
        return f"{self.reader.id} {hashlib.sha256(texts.encode()).hexdigest()[:16]}"


def value_format_of(options: Options, metadata: Mapping[str, Any] | None = None) -> ValueFormat | None:
    """Return the way to decode values, None if they are bytes; `metadata` is the column's, if it is known.

    Raises BadOption.
    """
    kind = options["value.format"]
    if kind is None:
        refuse_without_format(options)
        return None
    message = options["value.message"] or ""
    if message and kind != "protobuf":
        raise BadOption("option value.message is for value.format=protobuf")
    url = options.required("schema.registry.url")
    registry = Registry(
        tuple(one.strip() for one in url.split(",") if one.strip()),
        options["schema.registry.basic.auth.user.info"] or "",
        options["schema.registry.bearer.auth.token"] or "",
        options["schema.registry.ssl.ca.location"] or "",
    )
    refuse_urls(registry.urls)
    check = options["value.check"] or ""
    if check:
        check_of(check)
    carried = (metadata or {}).get(READERS_SCHEMA)
    reader = (
        Schema.of_json(carried) if carried else readers_schema(options, Schemas(registry), SCHEMA_KINDS[kind])
    )
    if reader.kind != SCHEMA_KINDS[kind]:
        raise BadOption(f"option value.format is {kind}, and the schema is one of {reader.kind}")
    return ValueFormat(kind, reader, registry, options["deadLetterColumn"], check, message)


def refuse_urls(urls: tuple[str, ...]) -> None:
    """Raise BadOption unless these are servers, or one file."""
    if not urls or not all(one.startswith(("http://", "https://", "file:")) for one in urls):
        raise BadOption("option schema.registry.url must begin with http://, https:// or file:")
    if len(urls) > 1 and any(one.startswith("file:") for one in urls):
        raise BadOption("option schema.registry.url must be servers, or one file alone")
    if any("@" in urlsplit(one).netloc for one in urls):
        raise BadOption(
            "option schema.registry.url must have no name and password:"
            " schema.registry.basic.auth.user.info has them"
        )


def refuse_other_schema(kept: str, values: ValueFormat | None, *, allowed: bool) -> None:
    """Raise BadOption if the checkpoint's batches were decoded by another schema (`kept`, its mark): the
    columns may be others, and a batch that is run again would not have the rows that it had.
    """
    here = "" if values is None else values.mark
    if allowed or not kept or kept.split(" ")[-1] == here.split(" ")[-1]:
        return
    schema_id = kept.split(" ")[0]
    how = "the file that it was" if schema_id == "-1" else schema_id
    raise BadOption(
        f"the checkpoint's batches were decoded by another value.schema. Set value.schema to {how}, and the"
        " query goes on as it was; with allowSchemaChange=true it takes the one that it has now"
    )


def refuse_without_format(options: Options) -> None:
    """Raise BadOption for what has no meaning where values are not decoded."""
    for name in NEED_FORMAT:
        if options.text(name) is not None:
            raise BadOption(f"option {name} needs value.format")


def readers_schema(options: Options, schemas: Schemas, kind: str) -> Schema:
    """Return the schema in which values are wanted: the latest of a subject, that of an id, or of a file."""
    wanted = (options.text("value.schema") or LATEST).strip()
    try:
        if wanted == LATEST:
            return schemas.latest(subject_of(options))
        schema_id = whole_number(wanted)
        if schema_id is not None:
            return schemas.by_id(schema_id, wait_s=0)
        return Schema(Path(wanted.removeprefix("file:").removeprefix("//")).read_text("utf-8"), kind)
    except UnknownSchema as error:
        raise BadOption(f"option value.schema: {error}") from error
    except RegistryRefused as error:
        raise BadOption(str(error)) from error
    except (OSError, ValueError) as error:
        raise BadOption(f"option value.schema is {wanted}: {error}") from error


def subject_of(options: Options) -> str:
    """Return the subject of which the latest schema is wanted: by default that of the one topic's values."""
    subject = options.text("value.subject")
    if subject:
        return subject
    topics = [one.strip() for one in (options.text("subscribe") or "").split(",") if one.strip()]
    if len(topics) != 1:
        raise BadOption(
            "value.schema=latest needs value.subject where not exactly one topic is subscribed to"
        )
    return f"{topics[0]}-value"


def check_of(text: str) -> Check:
    """Return the function that `package.module:function` names; raises BadOption."""
    try:
        return function_named(text)
    except LookupError as error:
        raise BadOption(f"option value.check: {error.args[0]}") from error
