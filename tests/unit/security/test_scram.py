"""SCRAM's client against the exchanges printed in the RFCs, and against a server made from their formulas."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.security.sasl import AuthenticationFailed, Credentials, exchange_of
from coterie.security.scram import Scram

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def an_exchange(password="pencil"):
    return exchange_of(Credentials("SCRAM-SHA-256", "user", password), NONCE)


def an_answered_exchange():
    exchange = an_exchange()
    exchange.first()
    exchange.answer(SERVER_FIRST)
    return exchange


def test_the_exchange_of_rfc_7677_is_spoken_to_the_letter():
    exchange = an_exchange()

    assert exchange.first() == FIRST
    assert exchange.answer(SERVER_FIRST) == FINAL
    assert exchange.answer(SERVER_FINAL) is None


def test_a_server_that_does_not_know_the_password_is_found_out():
    exchange = an_answered_exchange()

    with pytest.raises(AuthenticationFailed, match="does not know the password"):
        exchange.answer(b"v=" + b64encode(bytes(32)))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (SERVER_FIRST.replace(NONCE.encode(), b"somebodyElses"), "nonce is not ours"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "nonce is not ours"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "4095 SCRAM iterations"),
        (SERVER_FIRST.replace(b"4096", b"2000000000"), "SCRAM iterations"),
        (SERVER_FIRST.replace(b"4096", b"many"), "SCRAM iterations"),
        (SERVER_FIRST.replace(b"W22Z", b"W!2Z"), "not base64"),
        (b"m=new," + SERVER_FIRST, "extension"),
        (b"nonsense", "cannot be read"),
        (b"\xff\xff", "cannot be read"),
    ],
)
def test_terms_that_are_weak_foreign_or_rubbish_are_refused(said, why):
    exchange = an_exchange()
    exchange.first()

    with pytest.raises(AuthenticationFailed, match=why):
        exchange.answer(said)


def test_a_refusal_of_the_server_is_passed_on():
    exchange = an_answered_exchange()

    with pytest.raises(AuthenticationFailed, match="invalid-proof"):
        exchange.answer(b"e=invalid-proof")


@given(st.binary(max_size=200))
def test_nothing_that_a_server_says_raises_anything_else(said):
    for exchange in (an_exchange(), an_answered_exchange()):
        with contextlib.suppress(AuthenticationFailed):
            exchange.answer(said)


class Server:
    """The other side, from the formulas of RFC 5802 section 3: it keeps StoredKey and ServerKey only."""

    def __init__(self, mechanism, password):
        self.hash, self.salt, self.rounds = HASHES[mechanism], b"salt of the server", 4096
        salted = hashlib.pbkdf2_hmac(self.hash, password.encode(), self.salt, self.rounds)
        self.stored = hashlib.new(self.hash, self.mac(salted, b"Client Key")).digest()
        self.key = self.mac(salted, b"Server Key")

    def mac(self, key, data):
        return hmac.new(key, data, self.hash).digest()

    def first(self, message):
        self.bare = message.removeprefix(b"n,,")
        nonce = self.bare.rpartition(b"r=")[2]
        self.said = b"r=%sXYZ,s=%s,i=%d" % (nonce, b64encode(self.salt), self.rounds)
        return self.said

    def final(self, message):
        unsigned, _, proof = message.rpartition(b",p=")
        agreed = b",".join((self.bare, self.said, unsigned))
        signature = self.mac(self.stored, agreed)
        client_key = bytes(a ^ b for a, b in zip(b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash, client_key).digest() != self.stored:
            return b"e=invalid-proof"
        return b"v=" + b64encode(self.mac(self.key, agreed))


@pytest.mark.parametrize("mechanism", HASHES)
def test_client_and_server_convince_each_other(mechanism):
    name, password = "a,user=with signs", "pässword"
    client, server = Scram(Credentials(mechanism, name, password), "nonce"), Server(mechanism, password)

    first = client.first()
    final = client.answer(server.first(first))
    end = client.answer(server.final(final))

    assert first == b"n,,n=a=2Cuser=3Dwith signs,r=nonce"
    assert end is None


def test_another_password_convinces_nobody():
    client, server = an_exchange("wrong"), Server("SCRAM-SHA-256", "pencil")

    final = client.answer(server.first(client.first()))

    with pytest.raises(AuthenticationFailed, match="invalid-proof"):
        client.answer(server.final(final))


def test_plain_sends_name_and_password_and_is_done():
    exchange = exchange_of(Credentials("PLAIN", "user", "pencil"), "unused")

    assert exchange.first() == b"\0user\0pencil"
    assert exchange.answer(b"") is None


def test_a_password_is_not_shown():
    assert "pencil" not in repr(Credentials("PLAIN", "user", "pencil"))
