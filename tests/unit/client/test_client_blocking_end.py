"""What a process leaves open when it ends: all of it is closed, whatever one of them says."""

from __future__ import annotations

import os

import pytest

from coterie.client import blocking_face
from coterie.client.blocking_face import BlockingFace, close_all
from coterie.client.loop import LoopThread


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
