"""The `coterie` command in this process, against the broker under test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from coterie.cli import main

__all__ = ["Command", "Ended", "runner"]

Command = Callable[..., "Ended"]


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, code: object, said: str, complained: str) -> None:
        self.code, self.said, self.complained = code, said, complained

    @property
    def json(self) -> Any:
        """What it said, as one JSON value."""
        return json.loads(self.said)


def runner(family: str, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `coterie FAMILY` with the words given."""

    def run(*words: str, broker: str = bootstrap) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([family, *words, "--bootstrap", broker])
        return Ended(ended.value.code, *capsys.readouterr())

    return run
