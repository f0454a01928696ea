"""What rubbish does to the broker: nothing. Its own connection ends; every other goes on."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import pytest

import coterie.testing
from coterie.wire.api.codec import (
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    request_type,
    response_type,
)

pytestmark = pytest.mark.ours("what it does with rubbish is tried, and no client of ours takes part")

API_VERSIONS, METADATA, HEARTBEAT = 18, 3, 12


@pytest.fixture(scope="module")
def broker() -> Iterator[coterie.testing.Broker]:
    with coterie.testing.broker() as running:
        yield running


class Client:
    """A connection that speaks in bytes."""

    def __init__(self, broker: coterie.testing.Broker) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), timeout=60)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> bytes:
        """Return the next answer without its size, b"" when the broker hung up."""
        head = self._exactly(4)
        return self._exactly(struct.unpack(">i", head)[0]) if head else b""

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                chunk = self.socket.recv(size - len(data))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return b""
            data += chunk
        return data


def a_question(correlation_id: int = 1) -> bytes:
    return encode_request(correlation_id, "test", build(request_type(METADATA, 12), topics=()))


def is_answered(client: Client, correlation_id: int = 7) -> bool:
    client.send(a_question(correlation_id))
    answered, response = decode_response(response_type(METADATA, 12), client.read())
    return answered == correlation_id and len(response.brokers) == 1


RUBBISH = {
    "a frame larger than socket.request.max.bytes": struct.pack(">i", 2**31 - 1) + b"x" * 100,
    "a frame of negative size": struct.pack(">i", -5) + b"x" * 100,
    "a web page that makes a browser POST here (TH-9)": b"POST / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "an API that nobody knows": struct.pack(">ihhih", 10, 9999, 0, 1, -1),
    "an API that is not served": struct.pack(">ihhih", 10, 26, 0, 1, -1),
    "a version from the future": struct.pack(">ihhih", 10, METADATA, 99, 1, -1),
    "a version from the past": struct.pack(">ihhih", 10, 8, 0, 1, -1),
    "an empty frame": struct.pack(">i", 0),
    "a header cut short": struct.pack(">ihh", 4, METADATA, 12),
    "a body cut short": struct.pack(">i", 14) + a_question()[4:18],
    "a list of two thousand million topics": struct.pack(">ihhihi", 14, METADATA, 4, 1, -1, 2**31 - 1),
    "a client id that is not text": struct.pack(">ihhih", 12, METADATA, 4, 1, 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_ends_its_own_connection_and_no_other(broker, rubbish):
    with Client(broker) as bystander, Client(broker) as offender:
        assert is_answered(bystander)

        offender.send(rubbish)

        assert offender.read() == b""
        assert is_answered(bystander)


def test_an_unknown_version_of_api_versions_is_told_which_are_known(broker):
    """KIP-511: the one API whose unknown version is answered, in version 0."""
    with Client(broker) as client:
        client.send(struct.pack(">ihhihB", 11, API_VERSIONS, 77, 5, -1, 0))

        correlation_id, response = decode_response(response_type(API_VERSIONS, 0), client.read())

        assert correlation_id == 5
        assert response.error_code == 35
        assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [(18, 0, 4)]
        assert is_answered(client)


def test_requests_come_through_however_the_stream_is_cut(broker):
    stream = b"".join(a_question(n) for n in range(20))
    chance = random.Random(7)
    with Client(broker) as client:
        while stream:
            size = chance.choice((1, 2, 3, 5, 50, 500))
            client.send(stream[:size])
            stream = stream[size:]

        answers = [decode_response(response_type(METADATA, 12), client.read())[0] for _ in range(20)]

    assert answers == list(range(20))


def test_random_bytes_never_take_the_broker_down(broker):
    chance = random.Random(11)
    for _ in range(200):
        with Client(broker) as client:
            body = chance.randbytes(chance.randrange(1, 200))
            key = struct.pack(">hh", chance.choice((0, 1, 3, 8, 11, 14, 19)), chance.randrange(3, 10))
            client.send(struct.pack(">i", len(body) + 8) + key + struct.pack(">i", 1) + body)

    with Client(broker) as client:
        assert is_answered(client)
