"""The settings of a client in its constructor's docstring: `help` shows them where they are given."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import TypeVar

from coterie.client.settings import ClientSettings

F = TypeVar("F", bound=Callable[..., None])


def lists_settings(settings: type[ClientSettings]) -> Callable[[F], F]:
    """Return a decorator that adds the settings and their defaults to a constructor's docstring."""

    def decorate(constructor: F) -> F:
        lines = [
            f"    {one.name}" + ("" if one.default is MISSING else f" = {one.default!r}")
            for one in fields(settings)
        ]
        what = "Settings, by Kafka's names with underscores, and their defaults:"
        if constructor.__doc__ is not None:  # as under python -OO
            constructor.__doc__ = "\n".join([constructor.__doc__, "", what, "", *lines])
        return constructor

    return decorate
