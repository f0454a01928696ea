"""The addresses of `listeners` and `advertised.listeners`, in Kafka's form `NAME://HOST:PORT`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from coterie.base.whole import whole_number

PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
SERVED = frozenset({"PLAINTEXT"})
ANY_HOST = frozenset({"", "0.0.0.0", "::"})


class ListenerError(ValueError):
    """An address that cannot be used; `str()` says what is wrong and what is wanted."""


class Listener(NamedTuple):
    """One named address."""

    name: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of this machine, and so for none a client can connect to."""
        return self.host in ANY_HOST


def host_and_port(text: str) -> tuple[str, int]:
    """Return the two halves of `HOST:PORT` or `[IPV6]:PORT`, or raise `ListenerError`."""
    protocol, scheme, _ = text.partition("://")
    if scheme:
        raise ListenerError(f"{text} is not HOST:PORT: leave out {protocol}://")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ListenerError(f"{text} is ambiguous: write an IPv6 address as [::1]:9092")
    number = whole_number(port, bits=16)
    if not colon or number is None or not port.isdigit():
        raise ListenerError(f"{text} is not HOST:PORT with a port from 0 to 65535")
    return host, number


def parse_listeners(items: list[str]) -> list[Listener]:
    """Return the listeners of a setting's items, or raise `ListenerError`."""
    return [_parse(item) for item in items]


def _parse(item: str) -> Listener:
    name, found, address = item.partition("://")
    if not found or not name:
        raise ListenerError(f"{item} is not NAME://HOST:PORT, as in PLAINTEXT://127.0.0.1:9092")
    return Listener(name.upper(), *host_and_port(address))


def protocol_map(items: list[str]) -> dict[str, str]:
    """Return the protocol of each listener name: `listener.security.protocol.map`."""
    protocols = {name: name for name in PROTOCOLS}
    for item in items:
        name, _, protocol = item.partition(":")
        if protocol.strip().upper() not in PROTOCOLS:
            raise ListenerError(
                f"{item} is not NAME:PROTOCOL with a protocol of {', '.join(sorted(PROTOCOLS))}"
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def check_served(listener: Listener, protocols: Mapping[str, str]) -> None:
    """Raise `ListenerError` unless the listener speaks a protocol that this broker serves."""
    protocol = protocols.get(listener.name)
    if protocol is None:
        raise ListenerError(f"{listener.name} has no protocol; add it to listener.security.protocol.map")
    if protocol not in SERVED:
        raise ListenerError(f"{listener.name} speaks {protocol}, which is not served; use PLAINTEXT")
