"""The client's side of OAUTHBEARER (RFC 7628, KIP-255), and what a provider of tokens returns. Pure."""

from __future__ import annotations

import binascii
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from coterie.base.errors import CoterieError
from coterie.security.sasl import AuthenticationFailed

SEPARATOR = "\x01"
REFUSAL_SEEN = SEPARATOR.encode()
"""What a client says to a refusal, upon which the broker refuses in its own words (OB-2)."""
TOKEN = re.compile(r"[A-Za-z0-9._~+/=:-]+")
EXTENSION_NAME, EXTENSION_VALUE = re.compile(r"(?!auth\Z)[A-Za-z]+"), re.compile(r"[\x20-\x7e\t\r\n]*")
# No second since 1970 is as large before the year 5000, and no millisecond as small since 1973.
LEAST_MS = 100_000_000_000


class NoToken(CoterieError):
    """The provider of tokens gave none: it raised, or took too long. It is asked again, as a broker is that
    does not answer.
    """


class Token(NamedTuple):
    """A bearer token, and what goes to the broker with it."""

    text: str
    until_s: float | None = None
    """When it ends, in seconds since 1970; None: not known."""
    extensions: Mapping[str, str] = {}


class Bearer:
    """One exchange: `first`, then `answer` to what the broker makes of it.

    `name` says where the token is from; `refused` is called with a token that the broker does not take.
    """

    def __init__(self, token: Token, name: str, refused: Callable[[Token], None]) -> None:
        for extension, value in token.extensions.items():
            if not (EXTENSION_NAME.fullmatch(extension) and EXTENSION_VALUE.fullmatch(str(value))):
                raise AuthenticationFailed(
                    f"{extension!r}={value!r} can be no extension of a token: names have letters alone, and"
                    " are not auth; values are printable ASCII"
                )
        self.token, self.name = token, name
        self._refused = refused
        self._refusal = ""

    def first(self) -> bytes:
        """Return the token and its extensions; the identity to act as is left to the token (OB-1)."""
        pairs = [f"auth=Bearer {self.token.text}"]
        pairs += (f"{name}={value}" for name, value in self.token.extensions.items())
        return "".join(("n,,", SEPARATOR, *(pair + SEPARATOR for pair in pairs), SEPARATOR)).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return None where the broker takes the token, and else what makes it say why it does not (OB-2)."""
        if self._refusal:
            raise AuthenticationFailed(f"the broker refused the token of {self.name}: {self._refusal}")
        if not challenge:
            return None
        self._refused(self.token)
        self._refusal = challenge.decode(errors="replace")
        return REFUSAL_SEEN


def token_of(given: Any, name: str) -> Token:
    """Return the Token that a provider gave: a text, or a tuple of a text, when it ends, and perhaps a
    principal and extensions, as confluent-kafka's `oauth_cb` returns it. The end is in seconds since 1970, or
    in milliseconds, as AWS's signer has it. Raises AuthenticationFailed for anything else.
    """
    text, until_s, *more = given if isinstance(given, tuple) and len(given) > 1 else (given, None)
    if not isinstance(text, str) or not isinstance(until_s, int | float | None):
        kind = type(given).__name__
        raise AuthenticationFailed(f"{name} returns {kind}: a token is a text, or a tuple of it and its end")
    if not TOKEN.fullmatch(text):  # never the token itself: it opens doors
        raise AuthenticationFailed(
            f"{name} returns what is no token: it is empty, or has signs that none has"
        )
    extensions: Mapping[str, str] = next((one for one in more if isinstance(one, Mapping)), {})
    if until_s is None:
        until_s = expiry_s(text)
    elif until_s > LEAST_MS:
        until_s /= 1000
    return Token(text, until_s, extensions)


def expiry_s(text: str) -> float | None:
    """Return the end of a JSON Web Token in seconds since 1970; None where it is none or does not say."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return float(expiry) if isinstance(expiry, int | float) else None
