"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding. Pure.

Names and passwords are taken as they are: Kafka's brokers apply no SASLprep either.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64

from coterie.base.whole import whole_number
from coterie.security.sasl import AuthenticationFailed, Credentials

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# Kafka takes nothing less; more than this would keep the client's loop busy for seconds.
LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 1_000_000
# "n,,": no channel binding, no other identity. It is signed in base64.
GS2_HEADER = "n,,"
BOUND = b64encode(GS2_HEADER.encode()).decode()


class Scram:
    """One exchange: `first`, then `answer` to the server's first and to its final message."""

    def __init__(self, credentials: Credentials, nonce: str) -> None:
        assert nonce
        assert "," not in nonce
        self.hash = HASHES[credentials.mechanism]
        self.credentials = credentials
        self.nonce = nonce
        self.bare = f"n={saslname(credentials.username)},r={nonce}"
        self._signature: bytes | None = None
        """What the server must show at the end."""

    def first(self) -> bytes:
        """Return the client's first message: who we are, and our nonce."""
        return f"{GS2_HEADER}{self.bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the proof that we know the password, then None once the server has proved the same."""
        if self._signature is None:
            return self._prove(challenge)
        self._verify(challenge, self._signature)
        return None

    def _prove(self, challenge: bytes) -> bytes:
        """Return the client's final message; the password itself is not in it."""
        said = attributes(challenge)
        nonce, salt, iterations = self._terms(said)
        salted = hashlib.pbkdf2_hmac(self.hash, self.credentials.password.encode(), salt, iterations)
        unsigned = f"c={BOUND},r={nonce}"
        agreed = ",".join((self.bare, challenge.decode(), unsigned)).encode()
        client_key = self._mac(salted, b"Client Key")
        stored_key = hashlib.new(self.hash, client_key).digest()
        signature = self._mac(stored_key, agreed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), agreed)
        return f"{unsigned},p={b64encode(proof).decode()}".encode()

    def _terms(self, said: dict[str, str]) -> tuple[str, bytes, int]:
        """Return nonce, salt and iterations that the server asks for, or raise AuthenticationFailed."""
        nonce = said.get("r", "")
        if not nonce.startswith(self.nonce) or nonce == self.nonce:
            raise AuthenticationFailed("the broker answered to another SCRAM exchange: its nonce is not ours")
        iterations = whole_number(said.get("i", "")) or 0
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise AuthenticationFailed(
                f"the broker asks for {said.get('i')} SCRAM iterations;"
                f" {LEAST_ITERATIONS} to {MOST_ITERATIONS} are accepted"
            )
        return nonce, base64_of(said.get("s", "")), iterations

    def _verify(self, challenge: bytes, signature: bytes) -> None:
        said = attributes(challenge)
        if "e" in said:
            raise AuthenticationFailed(f"the broker refused the password: {said['e']}")
        if not hmac.compare_digest(base64_of(said.get("v", "")), signature):
            raise AuthenticationFailed("the broker does not know the password: its SCRAM signature is wrong")

    def _mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self.hash).digest()


def saslname(name: str) -> str:
    """Return the name with the two signs escaped that would end it."""
    return name.replace("=", "=3D").replace(",", "=2C")


def attributes(message: bytes) -> dict[str, str]:
    """Return the attributes of a server's message by letter, or raise AuthenticationFailed for rubbish.

    An extension that must be understood (`m`) is rubbish to us, as RFC 5802 wants it.
    """
    try:
        said = dict(part.split("=", 1) for part in message.decode().split(","))
    except ValueError:
        raise AuthenticationFailed("the broker's SCRAM message cannot be read") from None
    if "m" in said:
        raise AuthenticationFailed("the broker demands a SCRAM extension that nobody knows")
    return said


def base64_of(text: str) -> bytes:
    """Return the bytes of base64, or raise AuthenticationFailed."""
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        raise AuthenticationFailed("the broker's SCRAM message has something that is not base64") from None
