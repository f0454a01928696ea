"""Tokens and the exchange that shows them: what goes to the broker, what is kept, whose fault is whose."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from coterie.client.errors import WrongSetting
from coterie.client.net.client_credentials import ClientCredentials
from coterie.client.net.tokens import TokenCredentials, TokenSource, provider_of
from coterie.security.bearer import NoToken, expiry_s, token_of
from coterie.security.sasl import AuthenticationFailed


def jwt(**claims):
    parts = ({"alg": "none"}, claims)
    packed = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join((*packed, ""))


class Clock:
    """A time that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def source_of(*given, clock=None):
    """A source whose provider gives these one after the other, and the list of those that are left."""
    left = list(given)

    def provider():
        one = left.pop(0)
        if isinstance(one, BaseException):
            raise one
        return one

    return TokenSource(provider, "tests:provider", now_s=clock or Clock()), left


def first_of(source, **extensions):
    return TokenCredentials(source, extensions).exchange(5).first()


# What goes to the broker


def test_a_token_goes_in_the_form_of_rfc_7628():
    source, _ = source_of("abc.def")

    assert first_of(source) == b"n,,\x01auth=Bearer abc.def\x01\x01"


def test_extensions_go_with_the_token_those_of_the_provider_over_those_of_the_settings():
    source, _ = source_of(("abc", None, "me", {"pool": "theirs"}))

    assert first_of(source, logicalCluster="lkc-1", pool="ours") == (
        b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01pool=theirs\x01\x01"
    )


@pytest.mark.parametrize(
    "extensions", [{"auth": "x"}, {"a-b": "x"}, {"a": "x\x01y=z"}, {"": "x"}, {"a": "ü"}]
)
def test_what_can_be_no_extension_is_not_sent(extensions):
    with pytest.raises(AuthenticationFailed, match="can be no extension"):
        first_of(source_of("abc")[0], **extensions)


def test_a_broker_that_takes_the_token_has_the_last_word():
    assert TokenCredentials(source_of("abc")[0], {}).exchange(5).answer(b"") is None


def test_a_broker_that_refuses_is_let_say_why_and_the_token_is_not_kept():
    source, left = source_of(("abc", 9_999), ("def", 9_999))
    exchange = TokenCredentials(source, {}).exchange(5)

    assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationFailed, match=r"refused the token of tests:provider.*invalid_token"):
        exchange.answer(b"")
    assert source.token(5).text == "def"
    assert not left


# What is kept


def test_a_token_is_kept_for_the_first_half_of_its_life():
    clock = Clock()
    source, _ = source_of(("abc", 1_100), ("def", 1_200), clock=clock)

    assert source.token(5).text == "abc"
    clock.now_s = 1_049.9
    assert source.token(5).text == "abc"
    clock.now_s = 1_050.1
    assert source.token(5).text == "def"


@pytest.mark.parametrize("expiry", [1_100, 1_100.0])
def test_the_end_of_a_json_web_token_is_its_own(expiry):
    clock = Clock()
    source, _ = source_of(jwt(sub="me", exp=expiry), "def", clock=clock)

    source.token(5)
    clock.now_s = 1_049.9
    assert source.token(5).until_s == 1_100
    clock.now_s = 1_050.1
    assert source.token(5).text == "def"


def test_a_token_without_an_end_that_is_known_is_asked_for_each_time():
    source, _ = source_of("abc", "def")

    assert [source.token(5).text, source.token(5).text] == ["abc", "def"]


def test_a_token_that_has_ended_already_is_not_kept():
    source, _ = source_of(("abc", 900), ("def", 900))

    assert [source.token(5).text, source.token(5).text] == ["abc", "def"]


def test_an_end_in_milliseconds_is_understood_as_aws_s_signer_gives_it():
    assert token_of(("abc", 1_700_000_000_123), "p").until_s == 1_700_000_000.123
    assert token_of(("abc", 1_700_000_000), "p").until_s == 1_700_000_000


@pytest.mark.parametrize("text", ["a.b", "a.b.c", "..", f"a.{'e' * 9}.c", jwt(), jwt(exp="soon"), "x.W10.z"])
def test_a_text_that_says_no_end_has_none(text):
    assert expiry_s(text) is None


def test_who_asks_at_the_same_time_shares_one_call_of_the_provider():
    called, go_on = [], threading.Event()

    def provider():
        called.append(1)
        go_on.wait(30)
        return "abc", 9_999

    source = TokenSource(provider, "p", now_s=Clock())
    found = []
    threads = [threading.Thread(target=lambda: found.append(source.token(30).text)) for _ in range(4)]
    for one in threads:
        one.start()
    go_on.set()
    for one in threads:
        one.join()

    assert found == ["abc"] * 4
    assert len(called) == 1


def in_a_fork(work):
    """What a process that is forked from this one returns."""
    ear, mouth = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that others' threads are not there is the point
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # one that hangs ends
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001  the parent hears of it
            said = repr(error)
        os.write(mouth, said.encode())
        os._exit(0)
    os.close(mouth)
    with os.fdopen(ear) as heard:
        found = heard.read()
    os.waitpid(child, 0)
    return found


def test_a_source_that_is_held_across_a_fork_waits_for_no_call_of_the_parent_s():
    asked, go_on, parent = threading.Event(), threading.Event(), os.getpid()

    def provider():
        if os.getpid() != parent:
            return "child", 9_999
        asked.set()
        go_on.wait(30)
        return "parent", 9_999

    source = TokenSource(provider, "tests:slow", now_s=Clock())
    waiting = threading.Thread(target=source.token, args=(30,))
    waiting.start()
    assert asked.wait(30)

    with source._lock:  # as another thread may hold it at this very moment
        found = in_a_fork(lambda: source.token(5).text)
    go_on.set()
    waiting.join()

    assert found == "child"
    assert source.token(5).text == "parent"


# Whose fault is whose


def test_a_provider_that_hangs_keeps_nobody_longer_than_he_waits_and_is_not_called_beside_itself():
    called, go_on = [], threading.Event()

    def provider():
        called.append(1)
        go_on.wait(30)
        return "abc", 9_999

    source = TokenSource(provider, "tests:slow", now_s=Clock())

    for _ in range(3):
        with pytest.raises(NoToken, match=r"tests:slow gave no token within 0\.01 s"):
            source.token(0.01)
    go_on.set()
    assert source.token(30).text == "abc"
    assert len(called) == 1


def test_a_service_that_is_away_is_asked_again():
    source, _ = source_of(ConnectionRefusedError("nobody there"), "abc")

    with pytest.raises(NoToken, match="ConnectionRefusedError: nobody there"):
        source.token(5)
    assert source.token(5).text == "abc"


def test_a_provider_that_is_wrong_itself_is_said_to_be():
    source, _ = source_of(TypeError("provider() takes 1 argument"))

    with pytest.raises(AuthenticationFailed, match="tests:provider raised TypeError: provider"):
        source.token(5)


def test_a_provider_that_ends_its_thread_ends_nobody_s_wait():
    source, _ = source_of(SystemExit(3), "abc")

    with pytest.raises(NoToken, match="SystemExit"):
        source.token(5)
    assert source.token(5).text == "abc"


@pytest.mark.parametrize("given", [None, b"abc", 7, ("abc", "soon"), (b"abc", 7), [], ()])
def test_what_a_provider_returns_must_be_a_token(given):
    with pytest.raises(AuthenticationFailed, match="p returns"):
        token_of(given, "p")


@pytest.mark.parametrize("text", ["", "a b", "a\x01b", "a\nb", "ü"])
def test_a_text_that_is_no_token_is_not_sent_and_not_shown(text):
    with pytest.raises(AuthenticationFailed, match="no token: it is empty, or has signs"):
        token_of(text, "p")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("json", "names no function"),
        (":dumps", "names no function"),
        ("json:", "names no function"),
        ("no_such_module:token", "is not there.*no_such_module"),
        ("json:no_such", "is not there.*no_such"),
        ("json.:dumps", "is not there"),
        ("json:__name__", "is no function, but str"),
    ],
)
def test_a_name_of_no_function_is_refused_with_how_to_write_one(text, why):
    with pytest.raises(WrongSetting, match=why):
        provider_of(text)


def test_a_function_is_found_by_its_name_in_a_class_too():
    assert provider_of("json:dumps") is json.dumps
    assert provider_of("json:JSONDecoder.decode") is json.JSONDecoder.decode


# A token endpoint


@pytest.fixture
def endpoint():
    """A real HTTP server, `answers` what it says next (status, body), `asked` what it was asked."""

    class Endpoint(BaseHTTPRequestHandler):
        answers: list = []  # noqa: RUF012  of this test's class alone
        asked: list = []  # noqa: RUF012

        def do_POST(self):
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.asked.append((self.headers["Authorization"], self.headers["Content-Type"], form))
            status, body = self.answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Endpoint.url = f"http://127.0.0.1:{server.server_port}/token"
    yield Endpoint
    server.shutdown()
    thread.join()
    server.server_close()


def asking(endpoint, **more):
    return TokenSource(ClientCredentials(endpoint.url, "me", "s:cret", **more), "the token endpoint")


def test_a_token_endpoint_gives_a_token_for_a_client_s_id_and_secret(endpoint):
    endpoint.answers.append((200, b'{"access_token": "abc.def", "expires_in": 300}'))

    source = asking(endpoint, scope="kafka read")

    assert source.token(5).text == source.token(5).text == "abc.def"  # the second is the one that was kept
    assert endpoint.asked == [
        (
            "Basic " + base64.b64encode(b"me:s:cret").decode(),
            "application/x-www-form-urlencoded",
            "grant_type=client_credentials&scope=kafka+read",
        )
    ]


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        ((401, b'{"error":"invalid_client"}'), AuthenticationFailed, "refused with 401.*invalid_client"),
        ((200, b"<html>"), AuthenticationFailed, "no JSON object: is it a token endpoint"),
        ((200, b"[1]"), AuthenticationFailed, "no JSON object"),
        ((200, b'{"id_token": "x"}'), AuthenticationFailed, "without an access_token"),
        ((503, b""), NoToken, "503"),
        ((429, b""), NoToken, "429"),
    ],
)
def test_an_endpoint_that_refuses_is_told_from_one_that_is_away(endpoint, answer, error, why):
    endpoint.answers.append(answer)

    with pytest.raises(error, match=why):
        asking(endpoint).token(5)


def test_an_endpoint_where_nobody_listens_is_asked_again():
    with pytest.raises(NoToken, match="the token endpoint gave no token: URLError"):
        TokenSource(ClientCredentials("http://127.0.0.1:1/", "me", "it"), "the token endpoint").token(5)


def test_a_secret_is_not_shown():
    assert "s:cret" not in repr(ClientCredentials("https://a", "me", "s:cret"))
