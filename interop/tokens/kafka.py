"""An Apache Kafka node with a listener that wants an issuer's tokens."""

from __future__ import annotations

from pathlib import Path

from interop.client.secured import JAAS, SecuredKafka
from interop.tokens.issuer import AUDIENCE, ISSUER, Issuer

__all__ = ["LISTENER", "TokenKafka"]

LISTENER = "TOKEN"


class TokenKafka(SecuredKafka):
    """The node; it knows the issuer's key from a file, and ends each session with its token."""

    protocols = {LISTENER: "SASL_PLAINTEXT"}  # noqa: RUF012  as its base has it

    def __init__(self, directory: Path, issuer: Issuer) -> None:
        super().__init__(directory)
        self.keys = directory.with_suffix(".jwks")
        self.keys.write_text(issuer.keys())

    def users(self) -> list[str]:
        return []

    def security(self) -> dict[str, str]:
        mechanism = f"listener.name.{LISTENER.lower()}.oauthbearer"
        return {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{mechanism}.sasl.jaas.config": f"{JAAS}.oauthbearer.OAuthBearerLoginModule required;",
            f"{mechanism}.sasl.server.callback.handler.class": (
                f"{JAAS}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "sasl.oauthbearer.jwks.endpoint.url": self.keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.clock.skew.seconds": "0",
        }

    def command(self) -> list[str]:
        java, *words = super().command()
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.keys.as_uri()}"
        return [java, allowed, *words]
