"""What the commands that talk to a broker share: its address, the form of the output, asking and saying."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from coterie.client.admin import Admin

__all__ = ["bootstrap_option", "output_option", "say", "say_json", "with_admin"]

TIMEOUT_MS = 15_000

bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    envvar="COTERIE_BOOTSTRAP",
    show_default=True,
    show_envvar=True,
    help="A broker to ask, or several with commas.",
)
output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)


def with_admin(bootstrap: str, ask: Callable[[Admin], Awaitable[Any]]) -> Any:
    """Return what `ask` finds out from the cluster. A broker that is not there is told of at once."""
    from coterie.client.admin import Admin

    async def run() -> Any:
        async with Admin(
            bootstrap, client_id="coterie-cli", request_timeout_ms=TIMEOUT_MS, api_timeout_ms=TIMEOUT_MS
        ) as admin:
            return await ask(admin)

    return asyncio.run(run())


def say(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        click.echo(line)


def say_json(value: Any) -> None:
    """Print one JSON value on a line."""
    click.echo(json.dumps(value, ensure_ascii=False))
