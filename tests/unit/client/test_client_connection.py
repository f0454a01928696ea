"""Connections against a broker of a few lines: it answers what the test tells it to, on loopback."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_broker import SmallBroker, brokers_beside, offer

from coterie.base.errors import Corrupt
from coterie.client.errors import ClientTimeout, Disconnected, Unsupported
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.connection import MOST_KEPT, READ_BYTES, Connection, Frames
from coterie.client.net.plain_socket import BlockingConnection
from coterie.wire.api import codec
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    response_type,
)


def heartbeat(version, generation=1):
    return messages.heartbeat(version, group_id="g", generation=generation, member_id="m", instance_id=None)


def beat_answer(header, code=0):
    kind = response_type(header.api_key, header.api_version)
    return encode_response(header.correlation_id, build(kind, error_code=code))


API_VERSIONS_ANSWER = encode_response(1, offer())


async def opened(broker):
    return await Connection.open(broker.address, client_id="test", timeout_s=60)


def test_the_newest_version_that_both_speak_is_used():
    async def scenario():
        async with SmallBroker(lambda header, _: beat_answer(header)) as broker:
            connection = await opened(broker)
            await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)
            connection.close()
            return connection.agreed, broker.seen

    agreed, seen = asyncio.run(scenario())

    assert (agreed[ApiKey.HEARTBEAT], agreed[ApiKey.FIND_COORDINATOR], agreed[ApiKey.METADATA]) == (4, 6, 12)
    assert seen == [(ApiKey.API_VERSIONS, 3), (ApiKey.HEARTBEAT, 4)]


def test_an_api_that_the_broker_does_not_offer_is_named():
    async def scenario():
        async with SmallBroker() as broker:
            connection = await opened(broker)
            try:
                await connection.call(ApiKey.LIST_GROUPS, heartbeat, 5)
            finally:
                connection.close()

    with pytest.raises(Unsupported, match="ListGroups of versions 3 to 5"):
        asyncio.run(scenario())


def test_answers_find_their_requests_in_whatever_order_they_come():
    held = []

    def react(header, request):
        held.append(beat_answer(header, code=request.generation_id))
        if len(held) < 3:
            return b""
        return b"".join(reversed(held))

    async def scenario():
        async with SmallBroker(react) as broker:
            connection = await opened(broker)
            answers = await asyncio.gather(
                *(
                    connection.call(ApiKey.HEARTBEAT, lambda version, code=code: heartbeat(version, code), 5)
                    for code in (22, 25, 27)
                )
            )
            connection.close()
            return [int(answer.error_code) for answer in answers]

    assert asyncio.run(scenario()) == [22, 25, 27]


def test_a_broker_that_hangs_up_leaves_nobody_waiting():
    async def scenario():
        async with SmallBroker() as broker:
            connection = await opened(broker)
            calls = [connection.call(ApiKey.HEARTBEAT, heartbeat, 5) for _ in range(2)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert connection.closed
            with pytest.raises(Disconnected, match="is closed"):
                await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)
            return results

    assert [type(one) for one in asyncio.run(scenario())] == [Disconnected, Disconnected]


def test_ctrl_c_while_an_answer_is_decoded_leaves_the_connection_to_the_others():
    """asyncio's handler cancels the main task at once, between two steps of whatever runs."""

    def ctrl_c_as_it_is_decoded(frame, event, _):
        if event == "call" and frame.f_code is codec.decode_response.__code__:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    def react(header, _):
        sys.setprofile(ctrl_c_as_it_is_decoded)
        return beat_answer(header)

    async def scenario():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        async with SmallBroker(react) as broker:
            connection = await opened(broker)
            with pytest.raises(asyncio.CancelledError):
                await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)
            broker.react = lambda header, _: beat_answer(header, code=27)
            answer = await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)
            connection.close()
        return int(answer.error_code), problems

    try:
        assert asyncio.run(scenario()) == (27, [])
    finally:
        sys.setprofile(None)


def test_an_answer_that_does_not_come_is_a_timeout_and_a_late_one_harms_nobody():
    late = []

    def react(header, request):
        if not late:
            late.append(beat_answer(header, code=22))
            return b""
        return late.pop() + beat_answer(header, code=27)

    async def scenario():
        async with SmallBroker(react) as broker:
            connection = await opened(broker)
            with pytest.raises(ClientTimeout, match="Heartbeat: no answer"):
                await connection.call(ApiKey.HEARTBEAT, heartbeat, 0.01)
            answer = await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)
            connection.close()
            return int(answer.error_code)

    assert asyncio.run(scenario()) == 27


def test_rubbish_ends_the_connection():
    async def scenario():
        async with SmallBroker(lambda *_: b"\xff\xff\xff\xff rubbish") as broker:
            connection = await opened(broker)
            await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)

    with pytest.raises(Disconnected, match="answer"):
        asyncio.run(scenario())


def test_an_answer_that_cannot_be_read_leaves_nobody_waiting():
    def react(header, request):
        whole = beat_answer(header)
        return (len(whole) - 5).to_bytes(4, "big") + whole[4:-1]

    async def scenario():
        async with SmallBroker(react) as broker:
            connection = await opened(broker)
            await connection.call(ApiKey.HEARTBEAT, heartbeat, 60)

    with pytest.raises(Disconnected, match="HeartbeatResponse"):
        asyncio.run(scenario())


def test_nobody_at_the_address_is_a_disconnect_that_says_where():
    async def scenario():
        async with SmallBroker() as broker:
            gone = broker.address
        await Connection.open(gone, client_id="test", timeout_s=60)

    with pytest.raises(Disconnected, match=r"no connection to 127\.0\.0\.1"):
        asyncio.run(scenario())


@pytest.fixture
def served():
    """A small broker on a loop in a thread, for callers that block."""
    with brokers_beside() as start:
        yield start


def test_a_blocking_connection_sends_ahead_of_the_answers(served):
    address = served(lambda header, request: beat_answer(header, code=request.generation_id))
    connection = BlockingConnection(address, client_id="test", timeout_s=60)

    for code in (22, 25):
        connection.send(ApiKey.HEARTBEAT, lambda version, code=code: heartbeat(version, code))
    assert connection.awaited == 2
    codes = [int(connection.receive().error_code) for _ in range(2)]
    connection.close()

    assert codes == [22, 25]


def test_a_blocking_connection_tells_a_hang_up_from_silence_and_rubbish(served):
    hang_up = BlockingConnection(served(lambda *_: None), client_id="test", timeout_s=60)
    silent = BlockingConnection(served(lambda *_: b""), client_id="test", timeout_s=60)
    silent._socket.settimeout(0.05)
    babbling = BlockingConnection(served(lambda *_: b"\0\0\0\4\0\0\0\0"), client_id="test", timeout_s=60)

    for connection, error in ((hang_up, Disconnected), (silent, ClientTimeout), (babbling, Corrupt)):
        with pytest.raises(error):
            connection.call(ApiKey.HEARTBEAT, heartbeat)
        assert connection.broken
        connection.close()


def test_an_answer_that_comes_by_the_byte_is_over_when_its_time_is():
    """The time of a socket begins anew with each byte."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def trickle():
            accepted, _ = listening.accept()
            with accepted, suppress(ConnectionError):
                accepted.sendall(API_VERSIONS_ANSWER)
                accepted.sendall(b"\0\0\1\0")
                while True:
                    accepted.sendall(b"\0")
                    time.sleep(0.02)

        thread = threading.Thread(target=trickle)
        thread.start()
        address = Address(*listening.getsockname())
        connection = BlockingConnection(address, client_id="test", timeout_s=60)
        connection.timeout_s = 0.1  # for what is asked next; no single byte takes as long as its socket waits
        with pytest.raises(ClientTimeout, match=r"within 0\.1 s"):
            connection.call(ApiKey.HEARTBEAT, heartbeat)
        connection.close()
        thread.join()


@pytest.mark.parametrize("step", ["sendall", "recv_into"])
def test_a_blocking_connection_that_was_interrupted_is_of_no_more_use(served, step):
    """Half a request may have gone out, or half an answer have come: the next would be taken for another."""

    class Interrupted:
        def __getattr__(self, name):
            if name == step:
                raise KeyboardInterrupt
            return getattr(plain, name)

    connection = BlockingConnection(
        served(lambda header, _: beat_answer(header)), client_id="t", timeout_s=60
    )
    plain = connection._socket
    connection._socket = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        connection.call(ApiKey.HEARTBEAT, heartbeat)
    connection.close()

    assert connection.broken


@given(
    sizes=st.lists(st.sampled_from([4, 5, 100, READ_BYTES, READ_BYTES + 9, 3 * READ_BYTES]), max_size=6),
    reads=st.lists(st.one_of(st.integers(1, 9), st.integers(5_000, READ_BYTES)), min_size=1, max_size=40),
)
def test_answers_of_any_size_are_cut_from_whatever_the_reads_bring(sizes, reads):
    """A large answer is received in the room of the last one: who is given it copies what it wants."""
    answers = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream = b"".join(len(answer).to_bytes(4, "big") + answer for answer in answers)
    got = []
    frames = Frames(lambda frame: got.append(bytes(frame)), lambda error: None)

    at = 0
    for most in chain(reads, repeat(READ_BYTES)):
        room = frames.get_buffer(-1)
        size = min(most, len(room), len(stream) - at)
        if not size:
            break
        room[:size] = stream[at : at + size]
        frames.buffer_updated(size)
        at += size

    assert got == answers


def test_room_for_an_answer_is_kept_unless_it_is_huge():
    frames = Frames(lambda frame: None, lambda error: None)

    large, next_large, huge = map(frames.room_for, (2 * READ_BYTES, READ_BYTES + 1, MOST_KEPT + 1))

    assert large.obj is next_large.obj
    assert huge.obj is not frames.room_for(MOST_KEPT).obj
    assert len(next_large) == READ_BYTES + 1


@pytest.mark.parametrize("address", [("a..b", 9092), ("a" * 70, 9092), ("a\0b", 9092), ("127.0.0.1", 70_000)])
def test_what_a_broker_advertises_and_is_no_address_is_out_of_reach(address):
    """It is no mistake of the application's, which may reach others."""

    async def scenario():
        with pytest.raises(Disconnected, match="no connection to"):
            await Connection.open(Address(*address), client_id="test", timeout_s=60)

    asyncio.run(scenario())
    with pytest.raises(Disconnected, match="no connection to"):
        BlockingConnection(Address(*address), client_id="test", timeout_s=60)
