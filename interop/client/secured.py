"""An Apache Kafka node whose listeners demand TLS, SASL or both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench import kafka
from bench.brokers import Kafka, free_port
from bench.kafka import REPOSITORY

__all__ = ["PASSWORD", "SESSION_MS", "TLS", "USER", "SecuredKafka"]

TLS = REPOSITORY / "tests" / "data" / "tls"
USER, PASSWORD = "alice", "alice's secret"
SESSION_MS = 2_000
PROTOCOLS = {"TLS": "SSL", "MUTUAL": "SSL", "SASL": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL"}
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = "org.apache.kafka.common.security"


class SecuredKafka(Kafka):
    """A node with a listener of each kind; `ports` says where. The plain one is for everything else."""

    protocols: Mapping[str, str] = PROTOCOLS
    """The security protocol of each listener."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ports = {name: free_port() for name in self.protocols}

    def at(self, listener: str) -> str:
        """Return HOST:PORT of a listener."""
        return f"127.0.0.1:{self.ports[listener]}"

    def prepare(self) -> None:
        super(Kafka, self).prepare()
        controller_port = free_port()
        self.properties = kafka.format_storage(
            self.directory,
            port=self.port,
            controller_port=controller_port,
            settings={**self.settings, **self._listeners(controller_port), **self.security()},
            words=self.users(),
        )

    def users(self) -> list[str]:
        """Return what the storage tool is told of users."""
        return [word for name in SCRAM for word in ("--add-scram", scram_user(name))]

    def security(self) -> dict[str, str]:
        """Return the settings of the secured listeners."""
        return security()

    def _listeners(self, controller_port: int) -> dict[str, str]:
        there = [f"PLAINTEXT://{self.address}", *(f"{name}://{self.at(name)}" for name in self.ports)]
        protocols = [f"{name}:{protocol}" for name, protocol in self.protocols.items()]
        return {
            "listeners": ",".join([*there, f"CONTROLLER://127.0.0.1:{controller_port}"]),
            "advertised.listeners": ",".join(there),
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *protocols]
            ),
        }


def scram_user(mechanism: str) -> str:
    """Return the user as Kafka's storage tool wants it."""
    return f'{mechanism}=[name={USER},password="{PASSWORD}"]'


def security() -> dict[str, str]:
    """Return the settings of the secured listeners."""
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(TLS / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(TLS / "authority.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "listener.name.sasl.plain.connections.max.reauth.ms": str(SESSION_MS),
    }
    for listener in ("sasl", "sasltls"):
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.plain.sasl.jaas.config"] = (
            f'{JAAS}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        )
        for name in SCRAM:
            settings[f"{prefix}.{name.lower()}.sasl.jaas.config"] = f"{JAAS}.scram.ScramLoginModule required;"
    return settings
