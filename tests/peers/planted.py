"""`python tests/peers/planted.py FAULT serve …`: the broker, with a fault put back that was mended."""

from __future__ import annotations

import sys
from asyncio import BaseTransport
from collections.abc import Callable

from coterie.broker.net import peers
from coterie.broker.net.peers import Peer, Peers
from coterie.broker.net.server import SocketProtocol
from coterie.cli import main

__all__ = ["PLANTS"]

WITHOUT_END = 1 << 50
greet = SocketProtocol.connection_made
take_in = Peers.join


def stumble(self: SocketProtocol, transport: BaseTransport) -> None:
    """Ask who has gone for its address, and keep its socket for good (A6)."""
    transport.get_extra_info("peername")[:2]
    greet(self, transport)


def always_room(self: Peers, peer: Peer, descriptor: int) -> bool:
    """Take in whoever comes, as long as there are descriptors (TH-4)."""
    self._most = WITHOUT_END
    return take_in(self, peer, -1)


# Each must be found by `run.py --plant FAULT`.
PLANTS: dict[str, Callable[[], None]] = {
    "reset": lambda: setattr(SocketProtocol, "connection_made", stumble),
    "answers": lambda: setattr(peers, "UNSENT_BYTES_MAX", WITHOUT_END),  # A11
    "requests": lambda: setattr(peers, "BEGUN_BYTES_MAX", WITHOUT_END),  # TH-2
    "descriptors": lambda: setattr(Peers, "join", always_room),
}


if __name__ == "__main__":
    PLANTS[sys.argv[1]]()
    main(sys.argv[2:])
