"""How a query's reader learns that a batch is done, before Spark asks it for the next: by the application's
listener. Spark tells a listener at once, and the reader only when it plans.

The reader stays the only one who commits. A listener sends the plan's number to a socket that the batch's
offset document names; nobody waits for that, and nothing is lost where it does not arrive. Both are processes
of one user on one machine: with a listener over Spark Connect elsewhere the next plan commits.
"""

import asyncio
import logging
import os
import re
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard

from coterie.arrow.folders import own_folder

log = logging.getLogger("coterie.spark")

READER = re.compile(r"[0-9a-f]{32}")
PLAN_DIGITS = 20
REFUSED = b"refused "
LONGEST_ADDRESS = 100
FINISHED_WITHIN_S = 1.0
"""So long a reader that is stopped waits for a commit that is under way."""


def readers_folder() -> Path:
    """Return the folder in which the readers of this user leave word of themselves."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir()) / f"coterie-readers-{user}"


def socket_of(reader: str, folder: Path | None = None) -> Path:
    """Return the path of the socket at which a reader hears that its batches are done."""
    return (folder or readers_folder()) / f"{reader}.sock"


def tell_end(document: Mapping[str, Any], folder: Path | None = None) -> bool:
    """Return whether a reader was told that the batch of an offset document is done; waits for nothing."""
    reader, plan = document.get("reader"), document.get("plan")
    return type(plan) is int and is_reader(reader) and sent(b"%d" % plan, reader, folder)


def tell_refusal(document: Mapping[str, Any], guard: str, folder: Path | None = None) -> bool:
    """Return whether the reader of an offset document was told which guard refuses its query."""
    reader = document.get("reader")
    return is_reader(reader) and sent(REFUSED + guard.encode(), reader, folder)


def is_reader(name: object) -> TypeGuard[str]:
    """Return whether this is a reader's name, by which it is found."""
    return isinstance(name, str) and READER.fullmatch(name) is not None


def sent(words: bytes, reader: str, folder: Path | None) -> bool:
    """Return whether a reader was sent something; waits for nothing."""
    with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with address_of(socket_of(reader, folder)) as address:
            sender.sendto(words, address)
        return True
    return False


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield the path as an address of a socket, which has room for some hundred characters."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield os.fspath(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bound_to(path: Path) -> socket.socket:
    """Return a socket that hears what is sent to the path. Raises `OSError`."""
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        ear.setblocking(False)
        with address_of(path) as address:
            ear.bind(address)
    except BaseException:
        ear.close()
        raise
    return ear


class BatchEnds(asyncio.DatagramProtocol):
    """A reader's ear. Made and used on the reader's loop."""

    def __init__(
        self,
        is_news: Callable[[int], bool],
        ended: Callable[[int], Coroutine[Any, Any, None]],
        refused: Callable[[str], None] = lambda guard: None,
    ) -> None:
        """`is_news` says whether the end of a plan's batch is worth anything, `ended` has it committed, and
        `refused` hears which guard refuses the query.
        """
        self._is_news, self._ended, self._refused = is_news, ended, refused
        self._under_way: set[asyncio.Task[None]] = set()
        self._failed = -1
        """The last plan of which was said that it is not committed yet."""
        self._transport: asyncio.DatagramTransport | None = None
        self._path: Path | None = None

    async def open(self, reader: str, folder: Path | None = None) -> bool:
        """Return whether ends are heard of from now on; without a folder of our own they are not."""
        path = socket_of(reader, folder)
        try:
            if not own_folder(path.parent):
                return False
            with suppress(FileNotFoundError):
                path.unlink()
            ear = bound_to(path)
        except (OSError, AttributeError) as error:
            log.info("the ends of batches are not heard of at %s (%s)", path, error)
            return False
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=ear)
        self._path = path
        return True

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Have the batch of a plan committed; what is no plan under way changes nothing."""
        if data.startswith(REFUSED):
            self._refused(data.removeprefix(REFUSED).decode(errors="replace"))
            return
        if len(data) > PLAN_DIGITS or not data.isdigit():
            return
        plan = int(data)
        if not self._under_way and self._is_news(plan):
            self._under_way.add(task := asyncio.create_task(self._commit(plan)))
            task.add_done_callback(self._under_way.discard)

    async def _commit(self, plan: int) -> None:
        try:
            await self._ended(plan)
        except Exception as error:  # noqa: BLE001  Spark hears of it where it asks for the next batch
            if plan != self._failed:
                self._failed = plan
                log.warning("a batch that is done is committed with the next one: %s", error)

    async def close(self) -> None:
        """Hear nothing any more. A commit that is under way is waited for, a little."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        if self._transport is not None:
            self._transport.close()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=FINISHED_WITHIN_S)
        for task in self._under_way:
            task.cancel()
