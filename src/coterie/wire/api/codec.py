"""Requests and responses to bytes and back: headers, whole frames, bodies.

Reading raises Corrupt and nothing else, whatever the bytes; writing trusts what it is given.
"""

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, NamedTuple

from coterie.base.errors import Corrupt
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    kio_reader_of,
    read_failures,
    reporting_corrupt,
    request_type,
    response_type,
)
from coterie.wire.api.guards import (
    LONGEST_TEXT,
    Edit,
    apply_edits,
    checker_of,
    has_bounded_times,
    walk_tags,
    walker_of,
)
from coterie.wire.api.layout import plan_of
from coterie.wire.api.writers import FrameWriter, frame_writer_of, writer_of

HEADER = Struct(">hhih")
REQUEST_HEAD = Struct(">ihhih")
INT32 = Struct(">i")

# Chunks of at least this many bytes are passed on as they are instead of being copied.
SPLICE_BYTES = 4096


class RequestHeader(NamedTuple):
    """What stands before a request; the body starts at `body_at` of the same frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_request_header(frame: bytes, at: int = 0) -> RequestHeader:
    """Return the header of a request, known API or not, or raise Corrupt. It starts at `at`, behind its size.

    The client id always has a 16-bit length; the header of flexible versions ends in tagged fields.
    """
    try:
        key, version, correlation_id, length = HEADER.unpack_from(frame, at)
        begin = at + HEADER.size
        at = begin + length if length > 0 else begin
        client_id = None if length < 0 else str(frame[begin:at], "utf-8")
        if at > len(frame) or length < -1:
            raise Corrupt("client id", at=begin, expected=f"{length} bytes")
        api = APIS.get(key)
        if api is not None and api.is_flexible(version):
            at = at + 1 if frame[at] == 0 else walk_tags(frame, at, len(frame), [], {})
    except (StructError, IndexError, UnicodeDecodeError) as failure:
        raise Corrupt("request header", at=0, expected="api, version, correlation id, client id") from failure
    return RequestHeader(key, version, correlation_id, client_id, at)


@cache
def _decoder_of(cls: type) -> Callable[[bytes, int], Any]:
    """Return the reader of a class behind its checker."""
    check, read = checker_of(cls), kio_reader_of(cls)
    if has_bounded_times(plan_of(cls)):
        return lambda data, at: read(apply_edits(data, at, _edits(cls, data, at)), 0)[0]
    if check is None:
        return lambda data, at: read(data, at)[0]

    def decode_checked(data: bytes, at: int) -> Any:
        check(data, at, len(data), [])
        return read(data, at)[0]

    return decode_checked


def decode(cls: type, data: bytes, at: int = 0) -> Any:
    """Return the entity that starts at `at`, or raise Corrupt. What follows it is ignored, as Kafka does."""
    try:
        return _decoder_of(cls)(data, at)
    except KeyError:
        # kio does not know a tagged field. That is no fault of the bytes: a newer client sends it.
        return decode_walked(cls, data, at, _edits(cls, data, at))
    except read_failures() as failure:
        raise Corrupt(f"{cls.__name__}: {failure}", at=at) from failure


def _edits(cls: type, data: bytes, at: int) -> list[Edit]:
    """Return the edits that leave of an entity what kio knows, or raise Corrupt."""
    edits: list[Edit] = []
    with reporting_corrupt(cls, at):
        walker_of(cls)(data, at, len(data), edits)
    return edits


def decode_walked(cls: type, data: bytes, at: int, edits: Sequence[Edit]) -> Any:
    """Return the entity that starts at `at`, over which a checker has walked that found these edits."""
    if edits:
        data, at = apply_edits(data, at, edits), 0
    with reporting_corrupt(cls, at):
        return kio_reader_of(cls)(data, at)[0]


def decode_request(header: RequestHeader, frame: bytes) -> Any:
    """Return the request of a frame whose header has been read, or raise Corrupt."""
    cls = request_type(header.api_key, header.api_version)
    if len(frame) > LONGEST_TEXT:  # else there is no room for a text that is too long
        _edits(cls, frame, header.body_at)
    return decode(cls, frame, header.body_at)


def decode_response(cls: type, frame: bytes) -> tuple[int, Any]:
    """Return the correlation id and the response of a frame without its size, or raise Corrupt.

    A read-only view of bytes does as well. The response has no part in it, so it may be written over.
    """
    at = INT32.size
    try:
        (correlation_id,) = INT32.unpack_from(frame)
        if has_tagged_header(cls):
            at = at + 1 if frame[at] == 0 else walk_tags(frame, at, len(frame), [], {})
    except (StructError, IndexError) as failure:
        raise Corrupt("response header", at=0, expected="a correlation id") from failure
    return correlation_id, decode(cls, frame, at)


def prepare(api_key: int) -> None:
    """Make what reads and writes the newest version of an API; the first who asks would wait 10 ms for it."""
    newest = APIS[api_key].most
    _decoder_of(request_type(api_key, newest))
    _response_writer(response_type(api_key, newest))


@cache
def has_tagged_header(cls: type) -> bool:
    """Return whether the header before this request or response has tagged fields.

    Not the same as flexible: an ApiVersions response never has them, so that any client can read it.
    """
    version = int(cls.__header_schema__.__version__)  # type: ignore[attr-defined]
    return version == (2 if cls.__name__.endswith("Request") else 1)


def encode(entity: Any) -> bytes:
    """Return the bytes of an entity, body only."""
    out: list[bytes] = []
    writer_of(entity.__class__)(out, entity)
    return b"".join(out)


@cache
def _response_writer(cls: type) -> FrameWriter:
    return frame_writer_of(cls, tagged_header=has_tagged_header(cls))


def encode_response(correlation_id: int, response: Any, cls: type | None = None) -> bytes:
    """Return the whole frame of a response, size first. `cls` where the response only looks like one."""
    return _response_writer(cls or response.__class__)(correlation_id, response)


def encode_response_parts(correlation_id: int, response: Any, cls: type | None = None) -> list[bytes]:
    """Return the same frame in pieces: large ones, as the records of a fetch, are the caller's own bytes."""
    cls = cls or response.__class__
    if not _carries_records(cls):
        return [_response_writer(cls)(correlation_id, response)]
    out: list[bytes] = [b""]
    writer_of(cls)(out, response)
    size = sum(map(len, out))
    out[0] = frame_head(correlation_id, cls, size)
    return [b"".join(out)] if size < SPLICE_BYTES else splice(out)


def frame_head(correlation_id: int, cls: type, size: int) -> bytes:
    """Return the bytes before a response of `size` bytes: the size of the frame, and the header."""
    header = INT32.pack(correlation_id) + b"\0" * has_tagged_header(cls)
    return INT32.pack(len(header) + size) + header


@cache
def _carries_records(cls: type) -> bool:
    """Return whether record batches may be somewhere in such an entity."""
    return any(
        field.kind == "records" or (field.entity is not None and _carries_records(field.entity))
        for field in plan_of(cls)
    )


def only(entries: Sequence[Any], what: str) -> Any:
    """Return the entry of an answer about one thing, or raise Corrupt where it has none or several."""
    if len(entries) != 1:
        raise Corrupt(f"answer about {len(entries)} {what}", expected="one")
    return entries[0]


def splice(chunks: list[bytes]) -> list[bytes]:
    """Return the chunks with neighbours that are small joined into one."""
    parts: list[bytes] = []
    small: list[bytes] = []
    for chunk in chunks:
        if len(chunk) < SPLICE_BYTES:
            small.append(chunk)
            continue
        parts += b"".join(small), chunk
        small = []
    if small:
        parts.append(b"".join(small))
    return parts


def encode_request(correlation_id: int, client_id: str | None, request: Any) -> bytes:
    """Return the whole frame of a request, size first."""
    cls = request.__class__
    name = b"" if client_id is None else client_id.encode()
    tags = b"\0" * has_tagged_header(cls)
    body = encode(request)
    size = HEADER.size + len(name) + len(tags) + len(body)
    length = -1 if client_id is None else len(name)
    head = REQUEST_HEAD.pack(size, cls.__api_key__, cls.__version__, correlation_id, length)
    return b"".join((head, name, tags, body))
