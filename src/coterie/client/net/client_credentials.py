"""Tokens from an identity provider for a client's id and secret (OAuth 2.0, RFC 6749, section 4.4)."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from coterie.security.sasl import AuthenticationFailed

# Java's sasl.login.connect.timeout.ms has none, and nobody wants to wait for ever.
ANSWER_S = 10.0
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """A provider of tokens: called, it asks the endpoint for one."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""

    def __call__(self) -> tuple[str, float | None]:
        """Return a token and when it ends, in seconds since 1970. Raises OSError where nobody answers, and
        AuthenticationFailed where the endpoint refuses.
        """
        asked_at = time.time()
        answer = self._asked()
        token, lasts_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(token, str):
            raise AuthenticationFailed(f"{self.url} answers without an access_token")
        return token, asked_at + float(lasts_s) if isinstance(lasts_s, int | float) else None

    def _asked(self) -> dict[str, Any]:
        from urllib.error import HTTPError
        from urllib.parse import urlencode
        from urllib.request import Request, urlopen

        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        shown = b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        asked = Request(self.url, urlencode(form).encode(), {"Accept": "application/json"})
        asked.add_unredirected_header("Authorization", f"Basic {shown}")  # to nobody whom the endpoint names
        try:
            with urlopen(asked, timeout=ANSWER_S) as answer:
                found = answer.read(MOST_BYTES)
        except HTTPError as error:
            with error:
                words = error.read(MOST_BYTES).decode(errors="replace").strip()[:300] or error.reason
            if error.code in (429, *range(500, 600)):
                raise OSError(f"it answered {error.code}: {words}") from None
            raise AuthenticationFailed(f"{self.url} refused with {error.code}: {words}") from None
        with suppress(ValueError, RecursionError):
            said = json.loads(found)
            if isinstance(said, dict):
                return said
        raise AuthenticationFailed(f"{self.url} answers with no JSON object: is it a token endpoint?")
