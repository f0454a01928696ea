"""The parent of several brokers on one machine: it starts their processes, and waits.

It does so little that it does not fail, and where it is killed all its children end: each reads from a pipe
of which the parent has the other end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

from coterie.base.signals import StopRequests, stop_signals
from coterie.broker.processes.supervision import (
    Action,
    Back,
    Gone,
    Kill,
    KillSilent,
    ParentExit,
    RestartTerms,
    SayReady,
    Start,
    Stop,
    Supervisor,
    said,
)

log = logging.getLogger("coterie.broker")

COMMAND = (sys.executable, "-m", "coterie.broker.processes.child")
READY = "ready"
NEWS = "changed"
ALIVE = "alive"
OUTPUT_WITHIN_S = 1.0
Event: TypeAlias = Callable[[], Sequence[Action]]


class Parent:
    """The processes of some brokers, in the hands of a `Supervisor`. Events come from threads, one for each
    process, and all is done in the thread that calls `run`.
    """

    def __init__(
        self,
        broker_ids: Sequence[int],
        settings_of: Callable[[int, int | None], Mapping[str, str]],
        *,
        log_level: str,
        command: Sequence[str] = COMMAND,
        terms: RestartTerms | None = None,
        gone: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`settings_of` returns the settings of a broker, and gets the port that it had the last time;
        `gone` is called with each broker whose process has ended, before it is started again and in that
        process's thread: where it takes long the others are watched meanwhile.
        """
        self._supervisor = Supervisor(broker_ids, terms)
        self._settings_of = settings_of
        self._log_level = log_level
        self._command = command
        self._gone = gone
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._ports: dict[int, int] = {}
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._exit: ParentExit | None = None
        self._stop_requests = StopRequests()

    def run(self) -> ParentExit:
        """Have the brokers run until all have ended, and return why; a signal to stop stops them first, one
        more kills them.
        """
        try:
            with self._signals():
                self._do(self._supervisor.tick(_now_ms()))
                while self._exit is None:
                    self._do(self._next_event()())
        finally:
            for process in self._processes.values():  # none, unless something has failed here
                process.kill()
        return self._exit

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(number: int, _: object) -> None:
            self._events.put(self._stop)

        before = {number: signal.signal(number, stop) for number in (*stop_signals(), signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self) -> Sequence[Action]:
        if not self._stop_requests.hear(_now_ms()):
            return ()
        log.info("asked to stop twice" if self._stop_requests.count > 1 else "stopping")
        return self._supervisor.stop(_now_ms())

    def _next_event(self) -> Event:
        due_ms = self._supervisor.due_ms
        try:
            return self._events.get(timeout=None if due_ms is None else max(due_ms - _now_ms(), 0) / 1000)
        except Empty:
            return lambda: self._supervisor.tick(_now_ms())

    # -- actions

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(broker_id):
                    self._start(broker_id)
                case Stop(broker_id):
                    if broker_id in self._processes:
                        self._processes[broker_id].terminate()
                case Kill(broker_id):
                    if broker_id in self._processes:
                        log.warning("broker %d has not stopped yet; it is killed", broker_id)
                        self._processes[broker_id].kill()
                case KillSilent(broker_id, silent_ms):
                    self._kill_silent(broker_id, silent_ms)
                case SayReady(addresses):
                    sys.stdout.write(f"{READY} {','.join(addresses)}\n")
                    sys.stdout.flush()
                case Gone(broker_id, status, again_in_ms):
                    self._take_note_of_end(broker_id, status, again_in_ms)
                case Back(broker_id):
                    log.info("broker %d is back", broker_id)
                case ParentExit():
                    self._exit = action

    def _start(self, broker_id: int) -> None:
        try:
            process = subprocess.Popen(
                [*self._command, "broker", str(broker_id)],  # which ps shows
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:  # too many processes, no memory
            log.error("cannot start a process for broker %d: %s", broker_id, error.strerror or error)
            self._events.put(lambda: self._supervisor.ended(broker_id, 1, _now_ms()))
            return
        self._processes[broker_id] = process
        log.info("broker %d is process %d", broker_id, process.pid)
        assert process.stdin is not None
        settings = dict(self._settings_of(broker_id, self._ports.get(broker_id)))
        with contextlib.suppress(OSError):  # it has ended already
            process.stdin.write(json.dumps({"settings": settings, "log_level": self._log_level}) + "\n")
            process.stdin.flush()
        os.set_blocking(process.stdin.fileno(), False)
        reading = threading.Thread(target=self._read, args=(broker_id, process), daemon=True)
        reading.start()
        threading.Thread(target=self._wait, args=(broker_id, process, reading), daemon=True).start()

    def _kill_silent(self, broker_id: int, silent_ms: int) -> None:
        if broker_id in self._processes:
            sentence = "broker %d hangs: it has shown no sign of life for %.1f s; its process is killed"
            log.error(sentence, broker_id, silent_ms / 1000)
            self._processes[broker_id].kill()

    def _take_note_of_end(self, broker_id: int, status: int, again_in_ms: int | None) -> None:
        process = self._processes.pop(broker_id, None)
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        if again_in_ms is not None:
            when = f"in {again_in_ms / 1000:.1f} s" if again_in_ms else "at once"
            log.warning("broker %d has ended with %s; it is started again %s", broker_id, said(status), when)

    def _pass_on(self, news: str, sender: int) -> None:
        """Tell all brokers but one; who does not read misses nothing that it would not see when it looks."""
        for broker_id, process in self._processes.items():
            if broker_id != sender and process.stdin is not None:
                with contextlib.suppress(OSError):
                    os.write(process.stdin.fileno(), f"{news}\n".encode())

    def _ready(self, broker_id: int, process: subprocess.Popen[str], address: str) -> Sequence[Action]:
        if self._processes.get(broker_id) is not process:
            return ()
        self._ports[broker_id] = int(address.rpartition(":")[2])
        return self._supervisor.ready(broker_id, address, _now_ms())

    def _alive(self, broker_id: int, process: subprocess.Popen[str]) -> Sequence[Action]:
        if self._processes.get(broker_id) is not process:
            return ()
        return self._supervisor.alive(broker_id, _now_ms())

    def _changed(self, broker_id: int) -> Sequence[Action]:
        self._pass_on(NEWS, broker_id)
        return ()

    # -- in the threads of a process

    def _read(self, broker_id: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == READY:
                    self._events.put(partial(self._ready, broker_id, process, rest))
                elif word == NEWS:
                    self._events.put(partial(self._changed, broker_id))
                elif word == ALIVE:
                    self._events.put(partial(self._alive, broker_id, process))

    def _wait(self, broker_id: int, process: subprocess.Popen[str], reading: threading.Thread) -> None:
        """Wait for the end, and for that of its output, which may say that it was ready. Where it has started
        others its output goes on, and is not waited for.
        """
        status = process.wait()
        reading.join(OUTPUT_WITHIN_S)
        try:
            self._gone(broker_id)
        finally:
            self._events.put(lambda: self._supervisor.ended(broker_id, status, _now_ms()))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
