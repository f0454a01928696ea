"""An identity provider: signed tokens that end soon, over HTTP, and the key that brokers check them by."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "Issuer"]

CLIENT_ID, CLIENT_SECRET = "delays", "it's a secret"
ISSUER, AUDIENCE, KEY_ID = "https://issuer.example", "kafka", "one"


class Issuer:
    """A server whose tokens last `lasts_s`; within its block it answers at `url`."""

    def __init__(self, lasts_s: float) -> None:
        self.lasts_s = lasts_s
        self.away = threading.Event()
        """While it is set, who asks is answered 503."""
        self.given: Counter[str] = Counter()
        """How many tokens were given, by the path that was asked."""
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, body = issuer.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it answers; any path does."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def away_while(self, away: bool) -> None:
        """Answer nobody for now, or everybody again."""
        if away:
            self.away.set()
        else:
            self.away.clear()

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        """Return the status and body for a request: a token for who shows the client's id and secret."""
        if self.away.is_set():
            return 503, b"{}"
        shown = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {shown}":
            return 401, b'{"error":"invalid_client"}'
        self.given[path] += 1
        return 200, json.dumps({"access_token": self.token(), "expires_in": self.lasts_s}).encode()

    def token(self, **claims: Any) -> str:
        """Return a signed token, whose claims may be others than usual."""
        now_s = time.time()
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": CLIENT_ID, "iat": now_s, "exp": now_s + self.lasts_s}
        head = {"alg": "RS256", "kid": KEY_ID, "typ": "JWT"}
        signed = f"{packed(head)}.{packed({**usual, **claims})}"
        signature = self._key.sign(signed.encode(), PKCS1v15(), SHA256())
        return f"{signed}.{unpadded(signature)}"

    def keys(self) -> str:
        """Return its public key as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        parts = {name: value.to_bytes((value.bit_length() + 7) // 8) for name, value in
                 (("n", numbers.n), ("e", numbers.e))}  # fmt: skip
        named = {name: unpadded(value) for name, value in parts.items()}
        return json.dumps({"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID, **named}]})

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def packed(value: Mapping[str, Any]) -> str:
    """Return JSON as a part of a token."""
    return unpadded(json.dumps(value).encode())


def unpadded(value: bytes) -> str:
    """Return bytes in base64url without the signs at its end."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
