"""Listening for clients: the address, the sentence where it cannot be had, the descriptors that they use."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.net.peers import Peers


class CannotServe(Exception):
    """The broker cannot start; `str()` is the sentence that says why."""


def try_port(settings: BrokerSettings) -> None:
    """Raise CannotServe if somebody listens where this broker is to."""
    wanted = (settings.listen_host or None, settings.listen_port)  # without a host: every address
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            *wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                if os.name == "posix":  # elsewhere this would let two listen on one port
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(settings, error) from error


def _cannot_listen(settings: BrokerSettings, error: OSError | UnicodeError) -> CannotServe:
    where = f"{settings.listen_host}:{settings.listen_port}"
    taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    hint = "; another broker, perhaps: end it, or choose another port with --listen" if taken else ""
    return CannotServe(f"cannot listen on {where}: {_reason(error)}{hint}")


def _reason(error: OSError | UnicodeError) -> str:
    """Return the system's words: asyncio writes others around them, and the address once more."""
    if isinstance(error, UnicodeError):
        return str(error)
    number = error.errno or 0
    if number in errno.errorcode and not isinstance(error, socket.gaierror):  # whose numbers are others
        return os.strerror(number)
    return error.strerror or str(error)


async def listen(settings: BrokerSettings, accept: Callable[[], asyncio.Protocol]) -> asyncio.Server:
    """Return the server that has the port, and accepts clients from `let_in` on. Raises `CannotServe`."""
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            accept,
            settings.listen_host or None,
            settings.listen_port,
            backlog=settings.socket_listen_backlog_size,
            start_serving=False,
        )
    except (OSError, UnicodeError) as error:  # UnicodeError: what can be no host name
        raise _cannot_listen(settings, error) from error
    for listening in server.sockets:  # what is accepted inherits it
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return server


async def let_in(settings: BrokerSettings, server: asyncio.Server) -> None:
    """Have a server accept clients from now on. Raises `CannotServe`: somebody else may do so by now."""
    try:
        await server.start_serving()
    except OSError as error:
        server.close()
        raise _cannot_listen(settings, error) from error


def address_of(server: asyncio.Server) -> tuple[str, int]:
    """Return the host and port that a server listens at; of every address, in any order, that of IPv4."""
    listens = min(server.sockets, key=lambda one: one.family != socket.AF_INET)
    host, port, *_ = listens.getsockname()
    return host, port


def sweep_again_and_again(loop: asyncio.AbstractEventLoop, peers: Peers) -> None:
    """Have the connections looked through again and again."""

    def sweep() -> None:
        sweep_again_and_again(loop, peers)
        next_one = _next_descriptor()
        peers.sweep((peers.descriptor_limit or 0) if next_one is None else next_one)

    loop.call_later(peers.sweep_every_ms / 1000, sweep)


def _next_descriptor() -> int | None:
    """Return the next descriptor that would be given out, the lowest free one; None when all are taken."""
    try:
        probe = os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        return None if error.errno == errno.EMFILE else 0
    os.close(probe)
    return probe
