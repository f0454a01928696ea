"""Where brokers are, as people write it."""

from collections.abc import Iterable
from typing import NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.whole import whole_number


class Address(NamedTuple):
    """A host and a port to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses_of(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Return the addresses in Kafka's list, `host:port,host:port`, or in one of Python's; IPv6 in brackets.

    Raises CoterieError where one is no address, or none is there.
    """
    text = servers if isinstance(servers, str) else ",".join(servers)
    found = tuple(address_of(part.strip()) for part in text.split(",") if part.strip())
    if not found:
        raise CoterieError(f"no broker in bootstrap.servers {text!r}; write host:port")
    return found


def address_of(text: str) -> Address:
    """Return one address; a listener's name before :// is dropped."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    number = whole_number(port, bits=16)
    if not colon or not number or number < 0:
        raise CoterieError(f"{text!r} in bootstrap.servers is no host:port; write it like broker-1:9092")
    host = host.strip("[]") or "127.0.0.1"
    try:
        host.encode("idna")
    except UnicodeError as error:
        why = str(error.__cause__ or error)
        raise CoterieError(f"{host!r} in bootstrap.servers is no host name: {why}") from None
    return Address(host, number)
