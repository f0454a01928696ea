"""`serve`: opens the data directory, listens, says `ready HOST:PORT`, stops cleanly on a signal or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Callable, Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol

from coterie.base.plain import first_of
from coterie.broker.net.request_queue import RequestQueue
from coterie.broker.net.server import SocketProtocol
from coterie.broker.node import Node
from coterie.broker.processes import METADATA, directory_of_all
from coterie.broker.runtime.background import Beside
from coterie.broker.shell.listening import (
    CannotServe,
    address_of,
    let_in,
    listen,
    sweep_again_and_again,
    try_port,
)
from coterie.broker.shell.loop import Alarm, thinking_of
from coterie.broker.shell.process import (
    file_limit,
    keep_what_is_there,
    new_runner,
    on_stop_signals,
    raise_file_limit,
    say_ready,
    steady_clock_ms,
    wall_clock_ms,
    warm_up_soon,
)
from coterie.broker.topics.registry import Topics
from coterie.storage.directory import things_of_others
from coterie.storage.disk import OsDisk
from coterie.storage.files import FileStore, unusable
from coterie.storage.log.contract import DirectoryInUse, DirectoryUnusable, StorageFailed

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings

log = logging.getLogger("coterie.broker")


class Role(Protocol):
    """What a broker over files is: alone, or one of several."""

    def check(self, directory: str) -> None:
        """Raise CannotServe if a data directory is not for this."""
        ...

    def open_store(self, settings: BrokerSettings, now_ms: int) -> FileStore:
        """Return the store of the broker. Raises `DirectoryInUse`, `DirectoryUnusable`."""
        ...

    def node(self, settings: BrokerSettings, store: FileStore, shell: Mapping[str, Any]) -> Node:
        """Return the node, made with what `shell` hands in. Raises `CannotServe`."""
        ...

    async def begin(self, node: Node) -> None:
        """Have the node, whose address is known, serve. Raises `StorageFailed`, `CannotServe`."""
        ...

    def end(self) -> None:
        """Let go of what the role holds: the broker has stopped."""
        ...


class Alone:
    """The role of a broker that has all topics in its own directory."""

    def check(self, directory: str) -> None:
        """Raise CannotServe if a directory is several brokers', or holds other things only."""
        _refuse_several(directory)
        _check_whose(directory)

    def open_store(self, settings: BrokerSettings, now_ms: int) -> FileStore:
        """Return the store in the data directory."""
        configs = Topics.written_configs(settings, OsDisk(), settings.data_directory)
        return FileStore.open(settings.data_directory, now_ms=now_ms, configs=configs)

    def node(self, settings: BrokerSettings, store: FileStore, shell: Mapping[str, Any]) -> Node:
        """Return a node with the topics of the directory."""
        return Node(settings=settings, topics=_topics(settings, store), store=store, **shell)

    async def begin(self, node: Node) -> None:
        """Open the logs."""
        node.start()

    def end(self) -> None:
        """Do nothing."""


def serve(settings: BrokerSettings, role: Role | None = None) -> int:
    """Serve until told to stop, alone if nothing else is said. Raises `CannotServe` with a sentence."""
    role = role or Alone()
    raise_file_limit()
    clock = steady_clock_ms()
    role.check(settings.data_directory)
    try_port(settings)  # before a directory is made for nothing, or opened, recovered and written to
    try:
        store = role.open_store(settings, clock())
    except (DirectoryInUse, DirectoryUnusable) as error:
        raise CannotServe(str(error)) from error
    try:
        with new_runner() as runner:
            return runner.run(_serve(settings, store, clock, role))
    except CannotServe:
        with contextlib.suppress(StorageFailed):  # of the same cause, which has been told
            store.close()
        raise
    finally:
        store.close()
        role.end()


def _refuse_several(directory: str) -> None:
    """Raise CannotServe where several brokers have their directories, or one of them: alone it would not know
    its topics.
    """
    where = directory if os.path.exists(f"{directory}/{METADATA}") else directory_of_all(directory)
    if where is not None:
        raise CannotServe(
            f"{directory} is kept by several brokers: serve it with --data {quote(where)} --processes N"
        )


def _check_whose(directory: str) -> None:
    """Raise CannotServe if a directory holds other things only: a broker's would be hard to tell apart."""
    try:
        others = things_of_others(OsDisk(), directory)
    except OSError:  # not there yet, or about to be refused with the reason
        return
    if others:
        raise CannotServe(
            f"cannot use {directory}: it holds other things ({first_of(others)}) and nothing of a broker's; "
            "name a directory that is new or empty, or that Coterie or Kafka has kept its topics in"
        )


def _topics(settings: BrokerSettings, store: FileStore) -> Topics:
    """Return the topics of a data directory."""
    try:
        return Topics.open(settings, store)
    except OSError as error:
        raise CannotServe(unusable(store.path, error)) from error


async def _begin(role: Role, node: Node, server: asyncio.Server) -> None:
    """Have the node serve. Where it cannot nobody listens any more, or the loop's end would be the error."""
    try:
        await role.begin(node)
    except StorageFailed as error:
        server.close()
        raise CannotServe(str(error)) from error
    except CannotServe:
        server.close()
        raise


async def _serve(settings: BrokerSettings, store: FileStore, clock: Callable[[], int], role: Role) -> int:
    loop = asyncio.get_running_loop()
    alarm = Alarm(loop, clock)
    beside = Beside(loop)
    queue = RequestQueue(loop.call_soon, aside=thinking_of(loop))
    shell = {
        "clock": clock,
        "wall": wall_clock_ms,
        "call_soon": queue.call_soon,
        "alarm": alarm.set,
        "aside": beside,
        "work": queue.work,
        "groups_loaded": gc.freeze,  # a million offsets are not looked through again and again
    }
    node = role.node(settings, store, shell)
    alarm.expire = node.purgatory.expire
    server = await listen(settings, lambda: SocketProtocol(node, queue))
    node.peers.descriptor_limit = file_limit()
    sweep_again_and_again(loop, node.peers)
    host, port = address_of(server)
    node.advertise(host, port)
    stopping = asyncio.Event()
    failures: list[str] = []

    def give_up(why: str) -> None:
        failures.append(why)
        stopping.set()

    store.checkpoints.on_failed_flush = give_up
    await _begin(role, node, server)
    # Not before: until here a signal ends the process at once, and logs may take minutes to recover.
    on_stop_signals(loop, stopping.set)
    keep_what_is_there()
    await let_in(settings, server)  # not before: who knows no brokers would name none, and clients forget all
    say_ready(host, port)
    warm_up_soon(loop, node)
    await stopping.wait()
    if failures:  # what the system could not write it may have forgotten: only a start reads what is there
        log.error("%s; the broker ends, since only a start can tell what is left (exit code 1)", failures[0])
        store.abandon()
    else:
        log.info("stopping")
    server.close()
    for peer in tuple(node.peers.all):
        peer.drop(None)
    beside.stop()
    if not failures:
        node.stop()
    return 1 if failures else 0
