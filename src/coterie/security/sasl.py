"""SASL as Kafka's clients speak it: what to send first, and what to answer to each challenge. Pure."""

from dataclasses import dataclass, field
from typing import Protocol

from coterie.base.errors import CoterieError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class AuthenticationFailed(CoterieError):
    """The broker did not accept who we say we are, or could not show who it is. Check name and password, or
    the certificates. Clients that were let in before try again, and lose nothing meanwhile.
    """


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and password, and the mechanism that proves them."""

    mechanism: str
    username: str
    password: str = field(repr=False)


class SaslExchange(Protocol):
    """One authentication: used once, from its first message to the end."""

    def first(self) -> bytes:
        """Return the client's first message."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the next message to send, None after the broker's last, or raise AuthenticationFailed."""
        ...


class Plain:
    """PLAIN (RFC 4616): the password itself, so use it over TLS."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials

    def first(self) -> bytes:
        """Return name and password. The identity to act as is left empty: it is the name's own."""
        return f"\0{self.credentials.username}\0{self.credentials.password}".encode()

    def answer(self, challenge: bytes) -> None:
        """Return None: the broker has accepted, or the request would have been refused."""


def exchange_of(credentials: Credentials, nonce: str) -> SaslExchange:
    """Return the exchange of the credentials' mechanism; `nonce` is fresh and hard to guess."""
    if credentials.mechanism == "PLAIN":
        return Plain(credentials)
    from coterie.security.scram import Scram

    return Scram(credentials, nonce)
