"""Connections that show who they are, over TLS and SASL, against a server's end of a few lines."""

from __future__ import annotations

import asyncio
import ssl
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_broker import OFFERED, SmallBroker

from coterie.base.codes import Code
from coterie.client.errors import Disconnected
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.authentication import SessionLife
from coterie.client.net.connection import Connection
from coterie.client.net.plain_socket import BlockingConnection
from coterie.client.net.tokens import TokenCredentials, TokenSource
from coterie.client.settings import ClientSettings, Security
from coterie.security.bearer import NoToken
from coterie.security.sasl import AuthenticationFailed, Credentials
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

FILES = Path(__file__).resolve().parents[2] / "data" / "tls"
SASL = {**OFFERED, ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
PLAIN = Security(credentials=Credentials("PLAIN", "me", "secret"))


def answer(header, **values):
    kind = response_type(header.api_key, header.api_version)
    return encode_response(header.correlation_id, build(kind, **values))


class PlainServer:
    """Takes PLAIN with the one password; sessions last `lifetime_ms` (0: for ever)."""

    def __init__(self, lifetime_ms=0, mechanisms=("PLAIN",)):
        self.lifetime_ms, self.mechanisms = lifetime_ms, mechanisms
        self.said = []

    def __call__(self, header, request):
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            code = 0 if request.mechanism in self.mechanisms else Code.UNSUPPORTED_SASL_MECHANISM
            return answer(header, error_code=code, mechanisms=self.mechanisms)
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            self.said.append(request.auth_bytes)
            code = 0 if request.auth_bytes == b"\0me\0secret" else Code.SASL_AUTHENTICATION_FAILED
            why = "no such user" if code else None
            return answer(header, error_code=code, error_message=why, session_lifetime=self.lifetime_ms)
        return answer(header, error_code=0)


def heartbeat(version):
    return messages.heartbeat(version, group_id="g", generation=1, member_id="m", instance_id=None)


async def beat(broker, security):
    """Open a connection and send one request over it."""
    connection = await Connection.open(broker.address, client_id="test", timeout_s=60, security=security)
    try:
        return await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)
    finally:
        connection.close()
        await connection.wait_closed()


async def beat_blocking(broker, security):
    """The same over a connection that blocks, as Spark's workers have them."""

    def beat():
        connection = BlockingConnection(broker.address, client_id="test", timeout_s=60, security=security)
        try:
            return connection.call(ApiKey.HEARTBEAT, heartbeat)
        finally:
            connection.close()

    return await asyncio.to_thread(beat)


@pytest.fixture(params=[beat, beat_blocking])
def beaten(request):
    """A function that does so against a server that reacts so, and returns which APIs it was asked."""

    def run(security, react, *, tls=None):
        async def scenario():
            async with SmallBroker(react, offered=SASL, tls=tls) as broker:
                await request.param(broker, security)
                return [key for key, _ in broker.seen]

        return asyncio.run(scenario())

    return run


@pytest.fixture(params=[beat, beat_blocking])
def opened_to(request):
    """A function that opens a connection to whoever says so much to what comes first, and hangs up."""

    def run(security, first_words):
        async def scenario():
            async def say(reader, writer):
                await reader.read(1 << 16)
                writer.write(first_words)
                writer.close()

            async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
                address = Address(*server.sockets[0].getsockname()[:2])
                await request.param(SimpleNamespace(address=address), security)

        asyncio.run(scenario())

    return run


def test_a_password_is_shown_before_the_first_request(beaten):
    server = PlainServer()

    seen = beaten(PLAIN, server)

    assert seen == [
        ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.HEARTBEAT,
    ]  # fmt: skip
    assert server.said == [b"\0me\0secret"]


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        (Credentials("PLAIN", "me", "wrong"), "refused: no such user"),
        (Credentials("SCRAM-SHA-256", "me", "secret"), "does not take SCRAM-SHA-256; it takes PLAIN"),
    ],
)
def test_a_refusal_says_why_and_is_not_tried_again(beaten, credentials, why):
    with pytest.raises(AuthenticationFailed, match=why):
        beaten(Security(credentials=credentials), PlainServer())


def test_a_session_that_ends_soon_is_renewed_before_the_next_request():
    server = PlainServer(lifetime_ms=1)

    async def scenario():
        async with SmallBroker(server, offered=SASL) as broker:
            connection = await Connection.open(broker.address, client_id="t", timeout_s=60, security=PLAIN)
            over = connection.clock.time() + server.lifetime_ms / 1000
            while connection.clock.time() < over:
                pass
            await asyncio.gather(*(connection.call(ApiKey.HEARTBEAT, heartbeat, 5) for _ in range(3)))
            connection.close()
            await connection.wait_closed()

    asyncio.run(scenario())

    assert len(server.said) >= 2


def test_a_blocking_session_that_ends_soon_is_renewed_when_asked():
    server = PlainServer(lifetime_ms=1)

    def beat_twice(address):
        connection = BlockingConnection(address, client_id="t", timeout_s=60, security=PLAIN)
        over = time.monotonic() + server.lifetime_ms / 1000
        while time.monotonic() < over:
            pass
        connection.renew()
        connection.call(ApiKey.HEARTBEAT, heartbeat)
        connection.close()

    async def scenario():
        async with SmallBroker(server, offered=SASL) as broker:
            await asyncio.to_thread(beat_twice, broker.address)

    asyncio.run(scenario())

    assert len(server.said) == 2


def test_what_a_blocking_connection_has_received_outlives_a_renewal():
    server = PlainServer(lifetime_ms=1)

    def as_it_came(frame, *, version):
        return int.from_bytes(frame[:4], "big"), frame

    def received_and_renewed(address):
        connection = BlockingConnection(address, client_id="t", timeout_s=60, security=PLAIN)
        connection.send(ApiKey.HEARTBEAT, heartbeat, as_it_came)
        answer = connection.receive()
        before = bytes(answer)
        over = time.monotonic() + server.lifetime_ms / 1000
        while time.monotonic() < over:
            pass
        connection.renew()
        connection.close()
        return before, bytes(answer)

    async def scenario():
        async with SmallBroker(server, offered=SASL) as broker:
            return await asyncio.to_thread(received_and_renewed, broker.address)

    before, after = asyncio.run(scenario())

    assert len(server.said) == 2
    assert before == after


# Tokens


class BearerServer(PlainServer):
    """Takes the token `good` as Apache Kafka does (OB-1, OB-2), and a handshake a second at most (SA-14)."""

    def __init__(self, lifetime_ms=0, *, state=Code.NONE):
        super().__init__(lifetime_ms, mechanisms=("OAUTHBEARER",))
        self.state = state

    def __call__(self, header, request):
        if header.api_key == ApiKey.SASL_HANDSHAKE and self.said and self.state:
            return answer(header, error_code=self.state, mechanisms=())
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            return super().__call__(header, request)
        self.said.append(request.auth_bytes)
        if request.auth_bytes == b"n,,\x01auth=Bearer good\x01\x01":
            return answer(header, session_lifetime=self.lifetime_ms)
        if request.auth_bytes == b"\x01":
            return answer(header, error_code=Code.SASL_AUTHENTICATION_FAILED, error_message="not this one")
        return answer(header, auth_bytes=b'{"status":"invalid_token"}')


def bearing(*tokens):
    """Return the security of a client whose provider gives these, one after the other."""
    left = list(tokens)

    def provider():
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return Security(credentials=TokenCredentials(TokenSource(provider, "a:provider"), {}))


def test_a_token_is_shown_before_the_first_request(beaten):
    server = BearerServer()

    seen = beaten(bearing("good"), server)

    assert seen == [
        ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.HEARTBEAT,
    ]  # fmt: skip


def test_a_token_that_is_refused_has_the_broker_say_why(beaten):
    server = BearerServer()

    with pytest.raises(AuthenticationFailed, match="refused: not this one"):
        beaten(bearing("bad"), server)
    assert server.said[-1] == b"\x01"


def test_without_a_token_the_broker_is_as_one_that_is_away(beaten):
    with pytest.raises(Disconnected, match=r"a:provider gave no token: OSError: the service is away"):
        beaten(bearing(OSError("the service is away")), BearerServer())


@pytest.fixture(params=["asyncio", "blocking"])
def beaten_twice(request):
    """A function that sends a request over a connection whose session is to be renewed."""

    async def over_asyncio(broker, security, ends_at):
        connection = await Connection.open(broker.address, client_id="t", timeout_s=60, security=security)
        try:
            connection._session._renew_at, connection._session.ends_at = 0, ends_at(connection.clock.time())
            await connection.call(ApiKey.HEARTBEAT, heartbeat, 5)
        finally:
            connection.close()
            await connection.wait_closed()

    def over_a_socket(broker, security, ends_at):
        connection = BlockingConnection(broker.address, client_id="t", timeout_s=60, security=security)
        try:
            connection._session._renew_at, connection._session.ends_at = 0, ends_at(time.monotonic())
            connection.renew()
            connection.call(ApiKey.HEARTBEAT, heartbeat)
        finally:
            connection.close()

    def run(security, react, *, left_s):
        async def scenario():
            async with SmallBroker(react, offered=SASL) as broker:
                given = (broker, security, lambda now: now + left_s)
                if request.param == "asyncio":
                    await over_asyncio(*given)
                else:
                    await asyncio.to_thread(over_a_socket, *given)
                return [key for key, _ in broker.seen]

        return asyncio.run(scenario())

    return run


def test_a_session_goes_on_until_its_end_where_no_token_comes_to_renew_it(beaten_twice, caplog):
    seen = beaten_twice(bearing("good", OSError("away")), BearerServer(60_000), left_s=9)

    assert seen[-2:] == [ApiKey.SASL_AUTHENTICATE, ApiKey.HEARTBEAT]
    assert "a session goes on until its end in 9 s: a:provider gave no token: OSError: away" in caplog.text


def test_a_session_at_its_end_that_no_token_renews_is_as_a_connection_that_broke(beaten_twice):
    with pytest.raises(Disconnected, match="a:provider gave no token"):
        beaten_twice(bearing("good", OSError("away")), BearerServer(60_000), left_s=-1)


def test_a_renewal_that_comes_too_soon_is_as_a_connection_that_broke(beaten_twice):
    server = BearerServer(60_000, state=Code.ILLEGAL_SASL_STATE)

    with pytest.raises(Disconnected, match="took no renewal of a session that it has just renewed"):
        beaten_twice(bearing("good", "good"), server, left_s=9)


def test_a_renewal_that_is_put_off_is_due_half_way_to_the_end():
    session = SessionLife()
    session.began(SimpleNamespace(session_lifetime=timedelta(seconds=100)), now=0)

    assert session.fresh(84.9)
    assert not session.fresh(85.1)
    session.put_off(NoToken("away"), now=90)
    assert session.fresh(94.9)
    assert not session.fresh(95.1)


def test_while_a_session_lasts_requests_wait_little_for_the_token_of_the_next():
    session = SessionLife()

    assert session.token_s(30) == 30
    session.began(SimpleNamespace(session_lifetime=timedelta(seconds=100)), now=0)
    assert session.token_s(30) == 5
    assert session.token_s(3) == 3


@pytest.fixture
def server_tls():
    """The server's side of TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(FILES / "server.pem")
    return context


def client_settings(**given):
    return ClientSettings.of(
        **{
            "bootstrap_servers": "127.0.0.1:1",
            "security_protocol": "SSL",
            "ssl_truststore_location": str(FILES / "authority.pem"),
            **given,
        }
    )


def test_requests_go_over_tls(beaten, server_tls):
    seen = beaten(client_settings().security(), PlainServer(), tls=server_tls)

    assert seen == [ApiKey.API_VERSIONS, ApiKey.HEARTBEAT]


def test_a_large_answer_comes_whole_over_tls(server_tls):
    host = "x" * 30_000
    one = build(entity("find_coordinator", 6, "Coordinator", "response"), host=host)

    async def ask(connection):
        answer = await connection.call(
            ApiKey.FIND_COORDINATOR, lambda version: messages.find_coordinator(version, "g"), 5
        )
        return [each.host for each in answer.coordinators]

    async def scenario():
        async with SmallBroker(
            lambda header, _: answer(header, coordinators=(one,) * 90), tls=server_tls
        ) as broker:
            security = client_settings().security()
            connection = await Connection.open(broker.address, client_id="t", timeout_s=60, security=security)
            found = await asyncio.gather(ask(connection), ask(connection))
            connection.close()
            await connection.wait_closed()
            return found

    assert asyncio.run(scenario()) == [[host] * 90] * 2


def test_the_server_may_demand_a_certificate_of_ours(beaten, server_tls):
    server_tls.verify_mode = ssl.CERT_REQUIRED
    server_tls.load_verify_locations(FILES / "authority.pem")

    with_one = client_settings(ssl_keystore_location=str(FILES / "client.pem"))
    assert beaten(with_one.security(), PlainServer(), tls=server_tls)

    with pytest.raises(Disconnected):
        beaten(client_settings().security(), PlainServer(), tls=server_tls)


def test_a_certificate_of_an_authority_that_is_not_trusted_is_refused(beaten, server_tls):
    strangers = client_settings(ssl_truststore_location=None)

    with pytest.raises(AuthenticationFailed, match="ssl_truststore_location names the authorities"):
        beaten(strangers.security(), PlainServer(), tls=server_tls)


def test_plain_words_to_a_server_that_wants_tls_get_a_hint(beaten, server_tls):
    with pytest.raises(Disconnected, match="are address and security_protocol right"):
        beaten(Security(), PlainServer(), tls=server_tls)


def test_plain_words_to_a_server_that_speaks_http_get_a_hint(opened_to):
    with pytest.raises(
        Disconnected, match=r"is not Kafka's: HTTP is spoken there.*are address and security_protocol right"
    ):
        opened_to(Security(), b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_plain_words_to_a_server_that_says_it_wants_tls_name_it(opened_to):
    """What OpenSSL and Java answer: an alert, fatal, of a record that is none."""
    with pytest.raises(Disconnected, match=r"TLS is spoken there.*are address and security_protocol right"):
        opened_to(Security(), bytes((21, 3, 3, 0, 2, 2, 70)))


def test_tls_to_a_server_that_hangs_up_instead_gets_a_hint(opened_to):
    with pytest.raises(Disconnected, match=r"no TLS with .*is security_protocol right"):
        opened_to(client_settings().security(), b"")


def test_tls_to_a_server_that_speaks_none_is_told(server_tls):
    async def scenario():
        def garble(reader, writer):
            writer.write(b"what?")
            writer.close()

        server = await asyncio.start_server(garble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = client_settings(bootstrap_servers=f"127.0.0.1:{port}")
        try:
            (address,) = settings.addresses
            await Connection.open(address, client_id="t", timeout_s=60, security=settings.security())
        finally:
            server.close()
            await server.wait_closed()

    with pytest.raises(Disconnected, match="no TLS with"):
        asyncio.run(scenario())
