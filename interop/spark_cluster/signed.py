"""Requests to an S3, signed as it wants them (AWS Signature Version 4): enough to make buckets and race."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["Keys", "Signed"]

REGION = "us-east-1"
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class Keys:
    """A name and a secret."""

    access: str
    secret: str


@dataclass(frozen=True, slots=True)
class Signed:
    """A server that is asked with keys."""

    address: str
    keys: Keys

    def asked(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        within_s: float = 30.0,
    ) -> int:
        """Return the status of the answer to one request, on a connection of its own."""
        server = http.client.HTTPConnection(self.address, timeout=within_s)
        try:
            server.request(method, path, body, {**headers, **self._signature(method, path)})
            answer = server.getresponse()
            answer.read()
            return answer.status
        finally:
            server.close()

    def _signature(self, method: str, path: str) -> dict[str, str]:
        now = datetime.datetime.now(datetime.UTC)
        moment, day = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}"
        scope = f"{day}/{REGION}/s3/aws4_request"
        signed = {"host": self.address, "x-amz-content-sha256": UNSIGNED, "x-amz-date": moment}
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        request = f"{method}\n{path}\n\n{lines}\n{names}\n{UNSIGNED}"
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self.keys.secret}".encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        told = f"Credential={self.keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**signed, "Authorization": f"AWS4-HMAC-SHA256 {told}"}
