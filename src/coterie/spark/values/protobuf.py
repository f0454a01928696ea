"""Values of Protocol Buffers as Arrow columns, in the reader's message, and why some are none.

A schema is the text of a `.proto` file, which protoc compiles. Messages are decoded by their fields' numbers,
so the reader's message takes what any version of it wrote; the writer's schema says which message of its file
a value is (the message index of Confluent's format).
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.errors import CoterieError
from coterie.client.errors import MissingLibrary
from coterie.spark.values.avro_types import UnusableSchema
from coterie.spark.values.halving import Errors, described, pieces
from coterie.spark.values.registry import Schema
from coterie.spark.values.wire import HEADER_BYTES

try:
    import grpc_tools
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
    from ptars import HandlerPool, PtarsConfig
except ImportError as error:
    raise MissingLibrary(
        "value.format=protobuf needs ptars and grpcio-tools, on executors, too:"
        " pip install 'coterie[protobuf]'"
    ) from error

MAIN_FILE, SYNTAX = "coterie_value.proto", 'syntax = "proto3";'
CONFIG = PtarsConfig(timestamp_unit="us", duration_unit="us", enum_repr="string")
PROTOC = (sys.executable, "-m", "grpc_tools.protoc")  # one in this process says what is wrong to nobody
KNOWN_TYPES = Path(grpc_tools.__file__).parent / "_proto"
FIRST_BEYOND = 1 << 63
COMPILES_WITHIN_S = 60.0
"""So long protoc may take, which needs half a second."""
MOST_INDEXES = 64
"""How deep messages may lie in each other."""


class BadIndex(Exception):
    """Bytes behind the schema's id that name no message, or another than the one that is wanted."""


class CompilerHangs(CoterieError):
    """protoc did not end: the machine has no time for it, or the schema is one that it does not end for. The
    task fails, for what is no fault of the schema is to make no dead letters.
    """


class Protobuf:
    """The messages of a schema's file."""

    def __init__(self, schema: Schema) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        files = compiled(schema)
        try:
            for one in files.file:
                self._pool.Add(one)
        except TypeError as error:
            raise UnusableSchema(f"no descriptor of a file: {described(error)}") from error
        self._file = self._pool.FindFileByName(MAIN_FILE)
        self._messages = files.file[-1].message_type

    def message_at(self, path: Sequence[int]) -> str:
        """Return the full name of the message at a path of indexes; raises BadIndex."""
        among, names = self._messages, [self._file.package] if self._file.package else []
        for place in path:
            if not 0 <= place < len(among):
                raise BadIndex(f"message {'.'.join(map(str, path))} of {len(self._messages)} in the schema")
            names.append(among[place].name)
            # A map's entries are messages to protoc, and not to who counts messages in the text.
            among = [one for one in among[place].nested_type if not one.options.map_entry]
        return ".".join(names)

    def descriptor(self, name: str) -> Any:
        """Return a message's descriptor; raises UnusableSchema."""
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            known = ", ".join(one.full_name for one in self._file.message_types_by_name.values()) or "none"
            raise UnusableSchema(f"the schema has no message {name}; it has {known}") from None


class ProtobufReader:
    """The message in which values are wanted."""

    def __init__(self, schema: Schema, message: str) -> None:
        self._own = Protobuf(schema)
        try:
            self.message = message or self._own.message_at([0])
        except BadIndex as error:
            raise UnusableSchema(f"the schema has no message: {error}") from error
        self._descriptor = self._own.descriptor(self.message)
        refuse_recursive(self._descriptor, ())
        self._class = message_factory.GetMessageClass(self._descriptor)
        self._handler = HandlerPool([self._descriptor.file], CONFIG).get_for_message(self._descriptor)

    @cached_property
    def _has_times(self) -> bool:
        return has_times(self.type)

    @cached_property
    def type(self) -> pa.DataType:
        """The Arrow type of the message."""
        return signed(pa.struct(list(self._handler.schema())))

    def of(self, writer: Schema) -> ProtobufValues:
        """Return the decoder of values that a schema wrote; raises UnusableSchema."""
        return ProtobufValues(Protobuf(writer), self)

    def read(self, message: bytes) -> None:
        """Raise DecodeError for what is no message: Google's own reader is asked, as ptars runs out of the
        stack for groups within groups, thousands deep, and takes the process with it.
        """
        self._class.FromString(message)

    def rows(self, messages: Sequence[bytes]) -> pa.Array:
        """Return messages as they are decoded."""
        batch = self._handler.list_to_record_batch(list(messages))
        batch.validate(full=True)
        made = batch.to_struct_array().cast(self.type)
        if self._has_times:
            refuse_ends(made)
        return made


class ProtobufValues:
    """Decodes what one writer's schema wrote."""

    def __init__(self, writer: Protobuf, reader: ProtobufReader) -> None:
        self._writer, self._reader = writer, reader

    def decoded(self, framed: Sequence[bytes]) -> tuple[pa.Array, Errors]:
        """Return the values of what has a header, null where one is none, and why."""
        errors: Errors = {}
        bodies, places = [], []
        for place, one in enumerate(framed):
            try:
                path, body = indexed(one[HEADER_BYTES:])
                name = self._writer.message_at(path)
                if name != self._reader.message:
                    raise BadIndex(f"a message {name}, and {self._reader.message} is wanted")
                self._reader.read(body)
            except BadIndex as error:
                errors[place] = str(error)
                continue
            except DecodeError as error:
                errors[place] = described(error)
                continue
            bodies.append(body)
            places.append(place)
        if not bodies:
            return pa.nulls(len(framed), self._reader.type), errors

        def by_itself(some: Sequence[bytes], first: int) -> pa.Array:
            try:
                return self._reader.rows(some)
            except Exception as error:  # noqa: BLE001  Google's reader does not look at texts of proto2
                errors[places[first]] = described(error)
                return pa.nulls(1, self._reader.type)

        made = pa.concat_arrays(pieces(bodies, self._reader.rows, by_itself, few=1))
        if len(bodies) == len(framed):
            return made, errors
        back: list[int | None] = [None] * len(framed)
        for row, place in enumerate(places):
            back[place] = row
        return made.take(pa.array(back, pa.int64())), errors


def indexed(payload: bytes) -> tuple[list[int], bytes]:
    """Return the message's indexes that stand before a value, and the value; raises BadIndex."""
    if payload[:1] == b"\0":  # the first message, for short
        return [0], payload[1:]
    count, at = varint(payload, 0)
    if not 0 < count <= MOST_INDEXES:
        raise BadIndex(f"{count} indexes of a message in a message")
    path = []
    for _ in range(count):
        place, at = varint(payload, at)
        path.append(place)
    return path, payload[at:]


def varint(payload: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, written as Kafka writes them (zigzag), and the place behind it."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(payload):
            raise BadIndex("the message's index ends early")
        octet = payload[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise BadIndex("the message's index is no number")


def compiled(schema: Schema) -> Any:
    """Return the descriptors of a schema's file and its imports, its own last; raises UnusableSchema."""
    own = serialized(schema.text)
    text = schema.text if own is None else "".join((SYNTAX, *(f'import "{one}";' for one in own.dependency)))
    with tempfile.TemporaryDirectory(prefix="coterie-proto-") as name:
        folder = Path(name)
        for file, each in (*schema.references, (MAIN_FILE, text)):
            if os.path.isabs(file) or ".." in Path(file).parts:
                raise UnusableSchema(f"the schema refers to {file}, which is no name of a file")
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(each, "utf-8")
        out = folder / "compiled"
        words = [f"-I{folder}", f"-I{KNOWN_TYPES}", "--include_imports", f"--descriptor_set_out={out}"]
        command = [*PROTOC, *words, MAIN_FILE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILES_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise CompilerHangs(
                f"protoc has not compiled schema {schema.id} within {COMPILES_WITHIN_S:g} s: is the machine"
                " too busy? If it never does, read with a schema that protoc ends for (value.schema)"
            ) from error
        if done.returncode:
            raise UnusableSchema(f"protoc refuses the schema: {' '.join(done.stderr.split())[:500]}")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    if own is not None:
        own.name = MAIN_FILE
        files.file[-1].CopyFrom(own)
    return files


def serialized(text: str) -> Any:
    """Return the descriptor of a file that is one in base64 and no text, as clients register it and
    not every registry makes a text of; None for a text.
    """
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def refuse_recursive(message: Any, within: tuple[str, ...]) -> None:
    """Raise UnusableSchema for a message that contains itself."""
    if message.full_name in within:
        raise UnusableSchema(f"{message.full_name} contains itself: Spark has no type for that")
    for one in message.fields:
        if one.message_type is not None:
            refuse_recursive(one.message_type, (*within, message.full_name))


def has_times(kind: pa.DataType) -> bool:
    """Return whether values of a type have durations or timestamps in them."""
    return is_time(kind) or any(has_times(kind.field(one).type) for one in range(kind.num_fields))


def is_time(kind: pa.DataType) -> bool:
    """Return whether this is a duration or a timestamp."""
    return bool(pa.types.is_duration(kind) or pa.types.is_timestamp(kind))


def refuse_ends(values: pa.Array) -> None:
    """Raise OverflowError for a time at an end of the 64 bits that microseconds have: there ptars leaves
    whatever lies beyond.
    """
    kind = values.type
    if is_time(kind):
        ends = pc.min_max(values.cast(pa.int64())).as_py()
        if ends["max"] == FIRST_BEYOND - 1 or ends["min"] == -FIRST_BEYOND:
            raise OverflowError(f"a {kind} that 64 bits of microseconds do not hold")
    elif pa.types.is_struct(kind):
        for one in values.flatten():
            refuse_ends(one)
    elif pa.types.is_map(kind):
        refuse_ends(values.items)
    elif pa.types.is_list(kind):
        refuse_ends(values.flatten())


def signed(kind: pa.DataType) -> pa.DataType:
    """Return a type without unsigned numbers, which Spark does not have, and with fields that may be null."""
    if kind == pa.uint32():
        return pa.int64()
    if kind == pa.uint64():
        return pa.decimal128(20, 0)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, signed(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(signed(kind.key_type), signed(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(signed(kind.value_type))
    return kind
