"""What commands share at the terminal: printing lines and JSON, notes on standard error, files, and ending in
good order on Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import plain, plain_json
from coterie.base.signals import stop_signals

Result = TypeVar("Result")

PATIENCE_S = 2  # how long somebody who has pressed Ctrl-C waits without a word
QUIET = "coterie.quiet"


def say(lines: Iterable[str]) -> None:
    """Print lines; names in them come from strangers and must do nothing to a terminal."""
    for line in lines:
        click.echo(plain(line))


def say_json(value: Any) -> None:
    """Print one JSON value on a line."""
    click.echo(plain_json(json.dumps(value, ensure_ascii=False)))


@contextmanager
def listing_deleted(kind: str, output: str) -> Iterator[list[str]]:
    """Yield a list for the names of what is deleted, and print it at the end.

    It is printed even if one of them could not be deleted: those before it are gone.
    """
    deleted: list[str] = []
    try:
        yield deleted
    finally:
        if output == "json":
            say_json({"deleted": deleted})
        else:
            say([f"{kind} {name} is deleted" for name in deleted])


def note(sentence: str) -> None:
    """Print a sentence on standard error about what is going on, unless --quiet was given."""
    if not click.get_current_context().meta.get(QUIET):
        click.echo(plain(f"coterie: {sentence}"), err=True)


def say_if_still_closing(sentence: str) -> None:
    """Print on standard error what is still being done, unless it is done soon."""
    asyncio.get_running_loop().call_later(PATIENCE_S, click.echo, sentence, sys.stderr)


# -- files


def text_of(name: str, *, latin_1: bool = False) -> str:
    """Return the content of a text file; CoterieError names one that cannot be read.

    With `latin_1`, one that is not UTF-8 is in the encoding in which Java reads properties.
    """
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise CoterieError(f"cannot read {name}: {error.strerror}") from None
    try:
        return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        if latin_1:
            return content.decode("latin-1")
        raise CoterieError(f"cannot read {name}: it is not UTF-8 from byte {error.start} on") from None


def write_text(file: Path, text: str) -> None:
    """Write a file anew; CoterieError names one that cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CoterieError(f"cannot write {file}: {error.strerror}") from None


def insist_on_writable(file: Path) -> None:
    """Raise CoterieError for a file that cannot be written, before the work for its content begins.

    A file that is there is left as it is, and none is created. A pipe or a terminal is not checked.
    """
    from tempfile import TemporaryFile

    try:
        if file.is_file():
            file.open("ab").close()
        elif not file.exists():
            TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise CoterieError(f"cannot write {file}: {error.strerror}") from None


# -- until it is stopped


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, run in a loop of its own. Ctrl-C cancels it, and KeyboardInterrupt is
    raised when it has ended; a second Ctrl-C raises at once.

    asyncio.run alone cancels within the signal handler, between any two instructions of the loop, and a
    connection that is made in that moment is complained about on standard error.
    """
    interrupts = 0

    async def interruptible() -> Result:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += 1
            if interrupts > 1:
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(task.cancel)

        before = signal.getsignal(signal.SIGINT)
        if not callable(before) or threading.current_thread() is not threading.main_thread():
            return await work  # ignored beneath `nohup ... &`, or somebody else's to set
        signal.signal(signal.SIGINT, on_interrupt)
        try:
            return await work
        finally:
            signal.signal(signal.SIGINT, before)

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if interrupts:
            raise KeyboardInterrupt from None
        raise


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run this until it is done, or cancel it on Ctrl-C, SIGTERM or SIGHUP, or when the reader of a pipe has
    gone; it closes what is open.
    """

    async def stoppable() -> None:
        task = asyncio.current_task()
        assert task is not None
        with suppress(NotImplementedError, ValueError):  # no such signal here, or not the main thread
            for number in stop_signals():
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        when_output_closes(task.cancel)
        await work

    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        run_async(stoppable())


@contextmanager
def saying_what_is_left(sentence: Callable[[], str]) -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the block as Ctrl-C does, and say then what is left. The exit code is the
    one that shells have for the signal.
    """
    heard: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        on_interrupt = signal.getsignal(signal.SIGINT)
        if not callable(on_interrupt):  # ignored, as beneath `nohup ... &`, which is no reason to go on
            raise KeyboardInterrupt
        on_interrupt(signal.SIGINT, frame)

    before = {}
    with suppress(ValueError):  # not the main thread
        before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    except KeyboardInterrupt:
        click.echo(plain(f"coterie: {sentence()}"), err=True)
        if heard:
            click.get_current_context().exit(128 + heard[0])
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def when_output_closes(then: Callable[[], object]) -> None:
    """Call `then` once whoever reads our output through a pipe has gone, as `head` does.

    A consumer that waits for records would notice with the next one only, and stay in its group until then.
    """
    loop = asyncio.get_running_loop()
    with suppress(OSError, AttributeError, ValueError):  # no output, or none with a number
        output = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(output).st_mode):
            return

        def look() -> None:
            loop.remove_reader(output)
            asked = select.poll()
            asked.register(output, 0)
            if asked.poll(0):  # an error or a hang-up, and not something to read of a pipe that is both
                then()

        with suppress(NotImplementedError):  # Windows
            loop.add_reader(output, look)
