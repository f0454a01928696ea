"""What the commands that talk to a broker share: how to reach it, the form of the output, asking, saying."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.base.plain import plain, plain_json
from coterie.base.signals import stop_signals

if TYPE_CHECKING:
    from coterie.client.admin import Admin

__all__ = [
    "Settings",
    "broker_options",
    "output_option",
    "run_until_stopped",
    "say",
    "say_json",
    "text_of",
    "with_admin",
]

TIMEOUT_MS = 15_000
Settings = dict[str, Any]
"""A client's settings by Kafka's names in snake case."""

OPTIONS = (
    click.option(
        "--bootstrap",
        metavar="HOST:PORT",
        default="127.0.0.1:9092",
        envvar="COTERIE_BOOTSTRAP",
        show_default=True,
        show_envvar=True,
        help="A broker to ask, or several with commas.",
    ),
    click.option(
        "--command-config",
        "config",
        metavar="FILE",
        envvar="COTERIE_COMMAND_CONFIG",
        show_envvar=True,
        help="The client's settings, as in a properties file of Kafka's tools: TLS and SASL, for example.",
    ),
    click.option(
        "--set",
        "assignments",
        metavar="NAME=VALUE",
        multiple=True,
        help="A setting of the client by Kafka's name; overrides --command-config.",
    ),
)


def broker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options above, as one argument `broker`: a client's settings."""

    @wraps(function)
    def with_broker(*, bootstrap: str, config: str | None, assignments: tuple[str, ...], **words: Any) -> Any:
        given = {**({} if config is None else settings_in(config)), **settings_of(assignments)}
        return function(broker={"bootstrap_servers": bootstrap, **given}, **words)

    for option in reversed(OPTIONS):
        with_broker = option(with_broker)
    return with_broker


def settings_in(config: str) -> Settings:
    """Return the settings of a properties file."""
    from coterie.base.errors import CoterieError
    from coterie.broker.properties import PropertiesError, read_properties

    text = text_of(config)
    try:
        given = read_properties(text)
    except PropertiesError as error:
        raise CoterieError(f"cannot read {config}: {error}") from None
    return {name.replace(".", "_"): value for name, value in given.items()}


def text_of(name: str) -> str:
    """Return what a text file says; CoterieError names a file that cannot be read."""
    from coterie.base.errors import CoterieError

    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise CoterieError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CoterieError(f"cannot read {name}: {error}") from None


def settings_of(assignments: Iterable[str]) -> Settings:
    """Return the settings of NAME=VALUE texts; names may have dots as Kafka's do."""
    settings: Settings = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set {text}: write NAME=VALUE")
        settings[name.strip().replace(".", "_")] = value
    return settings


output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)


def with_admin(broker: Settings, ask: Callable[[Admin], Awaitable[Any]]) -> Any:
    """Return what `ask` finds out from the cluster. A broker that is not there is told of at once."""
    from coterie.client.admin import Admin

    ours = {
        "client_id": "coterie-cli",
        "request_timeout_ms": TIMEOUT_MS,
        "default_api_timeout_ms": TIMEOUT_MS,
    }

    async def run() -> Any:
        async with Admin(**{**ours, **broker}) as admin:
            return await ask(admin)

    return asyncio.run(run())


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Do this until it is done, or Ctrl-C, SIGTERM or SIGHUP cancels it: what it leaves open it closes."""

    async def stoppable() -> None:
        task = asyncio.current_task()
        assert task is not None
        with suppress(NotImplementedError, ValueError):  # no such signal here, or not the main thread
            for number in stop_signals():
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await work

    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(stoppable())


def say(lines: Iterable[str]) -> None:
    """Print lines; names in them come from strangers and must do nothing to a terminal."""
    for line in lines:
        click.echo(plain(line))


def say_json(value: Any) -> None:
    """Print one JSON value on a line."""
    click.echo(plain_json(json.dumps(value, ensure_ascii=False)))
