"""What a broker's answers to who we are come to, and what to say of one that is out of reach. Pure."""

import ssl
from typing import Any

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.client.errors import Disconnected
from coterie.client.net.addresses import Address
from coterie.security.sasl import AuthenticationFailed

NONCE_BYTES = 24
# How long answers may be: the first, which says what a broker can, and the others.
MOST_GREETING, MOST_ANSWER = 1 << 20, 1 << 30
TLS_ALERT = b"\x15\x03"  # how who wants TLS answers what is none
# A session that the broker ends after so long is renewed when this much of it is over (KIP-368).
RENEWED_AFTER = 0.85


def shaken(answer: Any, mechanism: str, address: Address) -> None:
    """Raise AuthenticationFailed unless the broker takes the mechanism."""
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not take {mechanism}; it takes {offered}")


def accepted(answer: Any, address: Address) -> None:
    """Raise AuthenticationFailed unless the broker takes what was said."""
    code = Code(answer.error_code)
    if code:
        raise AuthenticationFailed(f"{address} refused: {answer.error_message or code.name}")


def renewal_s(answer: Any) -> float | None:
    """Return after how many seconds a session is to be renewed; None: it does not end."""
    lifetime_s: float = answer.session_lifetime.total_seconds() if hasattr(answer, "session_lifetime") else 0
    return RENEWED_AFTER * lifetime_s or None


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
