"""What a broker's answers to who we are come to, and what to say of one that is out of reach."""

import logging
import secrets
import ssl
from typing import Any

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.client.errors import Disconnected
from coterie.client.net.addresses import Address
from coterie.client.net.tokens import AnyCredentials, TokenCredentials
from coterie.security.bearer import NoToken
from coterie.security.sasl import AuthenticationFailed, SaslExchange, exchange_of

NONCE_BYTES = 24
# How long answers may be: the first, which says what a broker can, and the others.
MOST_GREETING, MOST_ANSWER = 1 << 20, 1 << 30
TLS_ALERT = b"\x15\x03"  # how who wants TLS answers what is none
# A session that the broker ends after so long is renewed when this much of it is over (KIP-368).
RENEWED_AFTER = 0.85
# So long a renewal waits for a token while the session still lasts: heartbeats wait behind it.
RENEWAL_TOKEN_S = 5.0
# Nothing is sent in so little time before a session's end: it would arrive after it.
LAST_MOMENT_S = 0.1

log = logging.getLogger("coterie.client")


class SessionLife:
    """When a connection's SASL session ends, and when it is to be renewed, by a clock in seconds."""

    def __init__(self) -> None:
        self.ends_at: float | None = None
        """None: it does not end."""
        self._renew_at: float | None = None

    def began(self, answer: Any, now: float) -> None:
        """Note how long the broker lets it last, as its last answer says."""
        lasts = answer.session_lifetime if hasattr(answer, "session_lifetime") else None
        lasts_s = lasts.total_seconds() if lasts else 0.0
        self.ends_at = now + lasts_s if lasts_s else None
        self._renew_at = now + RENEWED_AFTER * lasts_s if lasts_s else None

    def fresh(self, now: float) -> bool:
        """Return whether requests may be sent without a renewal."""
        return self._renew_at is None or now < self._renew_at

    def token_s(self, timeout_s: float) -> float:
        """Return the time to wait for a token: less where a session is renewed than for the first."""
        return timeout_s if self.ends_at is None else min(timeout_s, RENEWAL_TOKEN_S)

    def put_off(self, error: NoToken, now: float) -> None:
        """Let requests go on in the session that there is, and have it renewed a little later; raises
        Disconnected where none is left.
        """
        if self.ends_at is None or now >= self.ends_at - LAST_MOMENT_S:
            raise Disconnected(str(error)) from error
        self._renew_at = now + (self.ends_at - now) / 2
        log.warning("a session goes on until its end in %.0f s: %s", self.ends_at - now, error)


def begun(credentials: AnyCredentials, timeout_s: float) -> SaslExchange:
    """Return a new exchange; raises NoToken where tokens are needed and none comes in this time."""
    if isinstance(credentials, TokenCredentials):
        return credentials.exchange(timeout_s)
    return exchange_of(credentials, secrets.token_urlsafe(NONCE_BYTES))


def shaken(answer: Any, mechanism: str, address: Address) -> None:
    """Raise AuthenticationFailed unless the broker takes the mechanism, or Disconnected if it is too soon."""
    if answer.error_code == Code.ILLEGAL_SASL_STATE:  # a session is renewed once a second at most (SA-14)
        raise Disconnected(f"{address} took no renewal of a session that it has just renewed")
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not take {mechanism}; it takes {offered}")


def accepted(answer: Any, address: Address) -> None:
    """Raise AuthenticationFailed unless the broker takes what was said."""
    code = Code(answer.error_code)
    if code:
        raise AuthenticationFailed(f"{address} refused: {answer.error_message or code.name}")


# What connecting raises: ValueError and OverflowError for what can be no host or no port at all (a label that
# is empty or has 70 letters, a zero byte, port 70000), which a broker may have advertised.
NO_CONNECTION = (OSError, ValueError, OverflowError)


def unreachable(address: Address, error: Exception, *, over_tls: bool = False) -> Disconnected:
    """Return the error of a connection that did not come about; `over_tls` if TLS was wanted."""
    if over_tls and isinstance(error, ConnectionResetError | ConnectionAbortedError):
        return no_tls(address, error)
    if not isinstance(error, OSError):
        return Disconnected(f"no connection to {str(address)!r}: that is no host and port; who says so?")
    refused = isinstance(error, ConnectionRefusedError)
    why = "nobody listens there" if refused else error.strerror or str(error) or type(error).__name__
    return Disconnected(f"no connection to {address}: {why}; is the address right, and the broker up?")


def untrusted(address: Address, error: ssl.SSLCertVerificationError) -> AuthenticationFailed:
    """Return the error of a certificate that no authority of ours has signed."""
    return AuthenticationFailed(
        f"the certificate of {address} is not to be trusted: {error.verify_message};"
        " ssl_truststore_location names the authorities to trust"
    )


def no_answer(size: int) -> Corrupt:
    """Return the error of an answer whose size cannot be, with the protocol if it is plain to see."""
    begins = size.to_bytes(4, "big", signed=True)
    spoken = "HTTP" if begins == b"HTTP" else "TLS" if begins.startswith(TLS_ALERT) else ""
    seen = f"{spoken} is spoken there" if spoken else f"it begins with a size of {size}"
    return Corrupt(f"had an answer that is not Kafka's: {seen}")


def no_tls(address: Address, error: OSError) -> Disconnected:
    """Return the error of a TLS handshake that failed."""
    reason = error.reason if isinstance(error, ssl.SSLError) else "the connection was closed"
    return Disconnected(f"no TLS with {address}: {reason or error}; is security_protocol right?")


def wordless(error: Disconnected | Corrupt) -> Disconnected:
    """Return the error of a connection that was over before the other side had said what it is."""
    return Disconnected(f"{error} (at the first request); are address and security_protocol right?")
