"""What is interrupted, and what a process leaves open when it ends: all is put right or closed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from coterie.client.blocking import face as blocking_face
from coterie.client.blocking.face import BlockingFace, close_all
from coterie.client.blocking.loop import LoopThread


class Face(BlockingFace[object]):
    """A face that runs, and whose end says this."""

    def __init__(self, name: str, says: Exception | None = None) -> None:
        super().__init__(object(), name=name)
        self._says = says
        self._thread, self._process = LoopThread(name), os.getpid()
        blocking_face.RUNNING.add(self)

    async def _last(self) -> None:
        if self._says is not None:
            raise self._says


def test_an_interrupted_call_returns_when_its_work_has_put_everything_right():
    face, right = Face("interrupted"), []
    main = threading.main_thread().ident
    assert main is not None

    async def work() -> None:
        try:
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            right.append("aborted")

    with pytest.raises(KeyboardInterrupt):
        face._run(work())
    assert right == ["aborted"]
    face._stop()


def test_what_one_face_raises_at_the_end_keeps_no_other_from_being_stopped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(blocking_face, "RUNNING", set())
    Face("first", ValueError("of the application"))
    Face("second", OSError("no route"))
    Face("third")

    close_all()

    assert not blocking_face.RUNNING
    assert sorted(caplog.messages) == [
        "a first that was not closed: of the application",
        "a second that was not closed: no route",
    ]
