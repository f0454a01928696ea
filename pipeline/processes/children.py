"""The processes that the job starts: their logs, what they say, and their certain end.

A child speaks in lines on its standard output (`pipeline.applications.events`), obeys words on its standard
input, and writes whatever else it has to tell into its log.
"""

from __future__ import annotations

import asyncio
import ctypes
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.applications.events import parsed
from pipeline.processes.process_tree import living, signal_all, tree

LAST_LINES = 12
DEAD_WITHIN_S = 30.0  # after SIGKILL, and its output read to the end, on a machine however busy
SLOW = "Nothing is known to be wrong. Is the machine busy? With fewer records: make run EVENTS=20000"
# What goes wrong last is seldom what went wrong: a gateway that exited. Nor is it a broken pipe: Spark's
# Python workers report one whenever Spark hangs up on them.
CAUSE = re.compile(r"\s*(?!BrokenPipeError)(Error\b|Caused by\b|Exception in\b|[\w.]+(Error|Exception): )")


class JobError(Exception):
    """Something that makes the job impossible to finish; its text is for the user."""


class TooSlow(JobError):
    """Something took longer than it may; nothing has shown to be wrong."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"{sentence}\n{SLOW}")


class Child:
    """One process of the job."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.log = name, log
        self.may_end = False
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        self._process, self._news = process, asyncio.Condition()
        self._said: list[dict[str, Any]] = []
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], *, log: Path) -> Child:
        """Start a process in a session of its own, so that Ctrl-C reaches only the one who cleans up."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event = parsed(line.decode(errors="replace"))
            if self.on_event is not None:
                self.on_event(event)
            await self._note(event)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()  # asyncio does when it has looked at it, which may be too late
        await self._note({"event": "ended", "code": self._process.returncode})

    async def _note(self, event: dict[str, Any]) -> None:
        async with self._news:
            self._said.append(event)
            self._news.notify_all()

    async def expect(self, event: str, *, within_s: float) -> dict[str, Any]:
        """Return the child's message with this event, once it comes.

        JobError if the child ends instead, TooSlow if it is silent.
        """
        try:
            async with asyncio.timeout(within_s), self._news:
                await self._news.wait_for(lambda: self._find(event) or self._find("ended"))
        except TimeoutError:
            raise TooSlow(
                f"{self.name} did not say {event!r} within {within_s:.0f} s.\n{self.tail()}"
            ) from None
        found = self._find(event)
        if found is None:
            raise self.failure()
        return found

    def _find(self, event: str) -> dict[str, Any] | None:
        return next((said for said in self._said if said["event"] == event), None)

    def send(self, command: str) -> None:
        """Say one word to the child."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())

    def close_input(self) -> None:
        """End the child's input: it has nothing more to do."""
        assert self._process.stdin is not None
        self.may_end = True
        self._process.stdin.close()

    async def end(self, *, within_s: float) -> None:
        """Wait until the child has ended by itself and well."""
        self.may_end = True
        ended = await self.expect("ended", within_s=within_s)
        if ended["code"] != 0:
            raise self.failure()

    async def ended_early(self) -> None:
        """Wait until the child has ended although it may not."""
        await self._listening
        if self.may_end:
            await asyncio.Event().wait()

    def failure(self) -> JobError:
        failed = self._find("failed")
        reason = f": {failed['error']}" if failed else ""
        return JobError(f"{self.name} ended with code {self._process.returncode}{reason}\n{self.tail()}")

    def tail(self) -> str:
        """Return the first cause in the child's log, its last lines, and where the rest is."""
        lines = self.log.read_text(errors="replace").splitlines()
        before, end = lines[:-LAST_LINES], lines[-LAST_LINES:]
        cause = [line for line in before if CAUSE.match(line)][:1]
        if not lines:
            return f"Its log, {self.log}, is empty."
        head = [f"Its log, {self.log}, says first:", f"  {cause[0]}", "and ends with:"] if cause else []
        return "\n".join([*(head or [f"Its log, {self.log}, ends with:"]), *(f"  {line}" for line in end)])

    async def terminate(self, *, within_s: float) -> None:
        """Ask the child to end, then make it and everything it started end."""
        if self.ended:
            return
        self.may_end = True
        family = tree(self.pid)
        signal_all(family[:1], signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            known = {process.identity for process in family}
            left = [process for process in living() if process.identity in known]
            signal_all(left, signal.SIGKILL)
            await asyncio.wait({self._listening}, timeout=DEAD_WITHIN_S)


LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let Linux end this process when its parent is killed and cannot clean up; elsewhere its input ends."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def module(name: str, *arguments: object) -> list[str]:
    """Return the command line that runs a module of this package."""
    return [sys.executable, "-m", f"pipeline.{name}", *map(str, arguments)]
