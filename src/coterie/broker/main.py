"""`serve`: opens the data directory, listens, says `ready HOST:PORT`, stops cleanly on a signal or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any

from coterie.base.signals import stop_signals
from coterie.broker.net.request_queue import Done, RequestQueue
from coterie.broker.net.server import SocketProtocol
from coterie.broker.node import Node
from coterie.broker.runtime.background import Beside
from coterie.broker.topics.registry import Topics
from coterie.storage.directory import things_of_others
from coterie.storage.disk import OsDisk
from coterie.storage.files import FileStore, unusable
from coterie.storage.log.contract import DirectoryInUse, DirectoryUnusable, StorageFailed

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.net.peers import Peers

log = logging.getLogger("coterie.broker")

FILES_WANTED = 100_000
NAMED = 3  # of the things of others in a directory
WARM_UP_AFTER_S = 0.05
# What lives long here has no cycles: looking through all of it less often costs nothing and pauses less.
GC_THRESHOLDS = (20_000, 20, 20)
# A deadline that is noticed so late was slept through; for so long at most it then waits for what has come.
LATE_MS, CATCH_UP_MS = 500, 1_000
PUT_BACK_S = 1e-4  # for each thing that work aside looks at, many times what that takes
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)


class CannotServe(Exception):
    """The broker cannot start; `str()` is the sentence that says why."""


def serve(settings: BrokerSettings) -> int:
    """Serve until told to stop. Raises `CannotServe` with a sentence for the user."""
    _raise_file_limit()
    clock = steady_clock_ms()
    _check_whose(settings.data_directory)
    _try_port(settings)  # before a directory is made for nothing, or opened, recovered and written to
    try:
        configs = Topics.written_configs(settings, OsDisk(), settings.data_directory)
        store = FileStore.open(settings.data_directory, now_ms=clock(), configs=configs)
    except (DirectoryInUse, DirectoryUnusable) as error:
        raise CannotServe(str(error)) from error
    try:
        with _runner() as runner:
            return runner.run(_serve(settings, store, clock))
    except CannotServe:
        with contextlib.suppress(StorageFailed):  # of the same cause, which has been told
            store.close()
        raise
    finally:
        store.close()


def steady_clock_ms() -> Callable[[], int]:
    """Return a clock of wall-clock milliseconds that never jumps: deadlines and timestamps share it."""
    offset = time.time() - time.monotonic()
    monotonic = time.monotonic

    def now_ms() -> int:
        return int((monotonic() + offset) * 1000)

    return now_ms


def wall_clock_ms() -> int:
    """Return the wall clock's ms: it may have been set, or gone on while the machine was suspended."""
    return int(time.time() * 1000)


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def _raise_file_limit() -> None:
    """Let the process open as many files as it may: partitions and connections each hold some."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if wanted > soft:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _file_limit() -> int | None:
    """Return the number of files that the process may have open, None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _sweep_in(loop: asyncio.AbstractEventLoop, peers: Peers) -> None:
    """Have the connections looked through again and again."""

    def sweep() -> None:
        _sweep_in(loop, peers)
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


def _keep_freed_blocks() -> None:
    """Have glibc keep blocks of a fetch's size once they are freed.

    Taken from the kernel anew for each fetch, their page faults cost ten times the read itself
    (docs/decisions/0006-freed-blocks.md).
    """
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError, TypeError):  # no glibc: nothing to tell it
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, 64 << 20)


class Alarm:
    """Calls the purgatory at its next deadline.

    Where the process has not run for a while (it was stopped, its machine was), what clients have sent
    meanwhile lies in the sockets, heartbeats among it: that is read before anybody's time is up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._overdue = False  # when it was set: it follows others that have been put off
        self._not_before_ms = 0
        self.node: Node | None = None

    def set(self, at_ms: int) -> None:
        """Ring at `at_ms` instead of whenever it was to ring."""
        if self._handle is not None:
            self._handle.cancel()
        now_ms = self._clock()
        self._overdue = at_ms <= now_ms
        self._due_ms = max(at_ms, self._not_before_ms, now_ms)
        self._handle = self._loop.call_later((self._due_ms - now_ms) / 1000, self._ring)

    def _ring(self) -> None:
        assert self.node is not None
        self._handle = None
        now_ms = self._clock()
        late_ms = now_ms - self._due_ms
        if late_ms > LATE_MS and not self._overdue:
            self._not_before_ms = now_ms + min(late_ms, CATCH_UP_MS)
            self.set(self._due_ms)
        else:
            self.node.purgatory.expire(now_ms)


def thinking_of(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a way to have requests thought about aside: in one thread, so the event loop has its half.

    The process does not wait for it at its end: a few hundred bytes can take seconds, and many may wait. Who
    wants little does not wait for all of them: work on a million things lets go first what comes within the
    next hundred seconds.
    """
    asked: PriorityQueue[tuple[float, int, Callable[..., Any], tuple[Any, ...], Callable[[Done], None]]]
    asked, numbers = PriorityQueue(), count()

    def think() -> None:
        while True:
            _, _, work, arguments, finish = asked.get()
            done: Future[Any] = Future()
            try:
                done.set_result(work(*arguments))
            except Exception as error:  # noqa: BLE001  the root of what is thought: who asked has it raised
                done.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(finish, done)

    threading.Thread(target=think, name="requests", daemon=True).start()

    def aside(
        work: Callable[..., Any], arguments: tuple[Any, ...], finish: Callable[[Done], None], items: int
    ) -> None:
        asked.put((time.monotonic() + items * PUT_BACK_S, next(numbers), work, arguments, finish))

    return aside


def _warm_up(node: Node) -> None:
    """Do soon after the start what the start itself need not wait for."""
    _keep_freed_blocks()
    node.warm_up()
    node.get_ready()


def _check_whose(directory: str) -> None:
    """Raise CannotServe if a directory holds other things only: a broker's would be hard to tell apart."""
    try:
        others = things_of_others(OsDisk(), directory)
    except OSError:  # not there yet, or about to be refused with the reason
        return
    if others:
        named = ", ".join(others[:NAMED]) + (", ..." if len(others) > NAMED else "")
        raise CannotServe(
            f"cannot use {directory}: it holds other things ({named}) and nothing of a broker's; "
            "name a directory that is new or empty, or that Coterie or Kafka has kept its topics in"
        )


def _try_port(settings: BrokerSettings) -> None:
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


async def _listen(loop: asyncio.AbstractEventLoop, node: Node, queue: RequestQueue) -> asyncio.Server:
    """Return the server that listens for clients."""
    settings = node.settings
    try:
        server = await loop.create_server(
            lambda: SocketProtocol(node, queue),
            settings.listen_host or None,
            settings.listen_port,
            backlog=settings.socket_listen_backlog_size,
        )
    except (OSError, UnicodeError) as error:  # UnicodeError: what can be no host name
        raise _cannot_listen(settings, error) from error
    for listening in server.sockets:  # what is accepted inherits it
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return server


def _topics(settings: BrokerSettings, store: FileStore) -> Topics:
    """Return the topics of a data directory."""
    try:
        return Topics.open(settings, store)
    except OSError as error:
        raise CannotServe(unusable(store.path, error)) from error


def _address_of(server: asyncio.Server) -> tuple[str, int]:
    """Return the host and port that a server listens at; of every address, in any order, that of IPv4."""
    listens = min(server.sockets, key=lambda one: one.family != socket.AF_INET)
    host, port, *_ = listens.getsockname()
    return host, port


async def _serve(settings: BrokerSettings, store: FileStore, clock: Callable[[], int]) -> int:
    loop = asyncio.get_running_loop()
    alarm = Alarm(loop, clock)
    beside = Beside(loop)
    queue = RequestQueue(loop.call_soon, aside=thinking_of(loop))
    node = Node(
        settings=settings,
        topics=_topics(settings, store),
        store=store,
        clock=clock,
        wall=wall_clock_ms,
        call_soon=queue.call_soon,
        alarm=alarm.set,
        aside=beside,
        work=queue.work,
        groups_loaded=gc.freeze,  # a million offsets are not looked through again and again
    )
    alarm.node = node
    server = await _listen(loop, node, queue)
    node.peers.descriptor_limit = _file_limit()
    _sweep_in(loop, node.peers)
    host, port = _address_of(server)
    node.advertise(host, port)
    stopping = asyncio.Event()
    failures: list[str] = []

    def give_up(why: str) -> None:
        failures.append(why)
        stopping.set()

    store.checkpoints.on_failed_flush = give_up
    try:
        node.start()
    except StorageFailed as error:
        raise CannotServe(str(error)) from error
    # Not before: until here a signal ends the process at once, and logs may take minutes to recover.
    for number in (*stop_signals(), signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows has no signal handlers in its loops
            loop.add_signal_handler(number, stopping.set)
    gc.freeze()  # what start-up made is never collected again
    gc.set_threshold(*GC_THRESHOLDS)
    sys.stdout.write(f"ready {f'[{host}]' if ':' in host else host}:{port}\n")
    sys.stdout.flush()
    loop.call_later(WARM_UP_AFTER_S, _warm_up, node)
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
