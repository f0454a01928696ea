"""Clients that work in threads of their own while something else happens to brokers."""

from __future__ import annotations

import abc
import threading

__all__ = ["JOINED_S", "Worker"]

JOINED_S = 60.0


class Worker(abc.ABC):
    """Works in a thread of its own until it is asked to stop. `done` counts what was acknowledged."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.done = 0
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have the work end soon."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end, and raise what the work failed with."""
        assert self.ends_within(JOINED_S), f"{self.name} does not end"
        self.raise_failure()

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end for so long; return whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the work, and raise what it failed with."""
        self.ask_to_stop()
        self.join()

    def raise_failure(self) -> None:
        """Raise what ended the work before its time."""
        if self.failure is not None:
            raise self.failure

    @property
    def stopping(self) -> bool:
        """Whether the work shall end."""
        return self._stopping.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait a while; return whether there is more to do."""
        return not self._stopping.wait(seconds)

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # noqa: BLE001  the root of a thread: whoever looks raises it
            self.failure = failure

    @abc.abstractmethod
    def work(self) -> None:
        """Work until `stopping`."""
