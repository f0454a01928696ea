"""What the commands that talk to a broker share: how to reach it, the form of the output, asking, saying."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import plain, plain_json
from coterie.base.settings import did_you_mean
from coterie.base.signals import stop_signals

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin

TIMEOUT_MS = 15_000
PATIENCE_S = 2  # how long somebody who has pressed Ctrl-C waits without a word
QUOTED_OR_NAME = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")|(?<![\w.-])[\w.]*_\w+(?![\w-]|\.\w)""")
Settings = dict[str, Any]
"""A client's settings by Kafka's names in snake case."""

OPTIONS = (
    click.option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        "bootstrap",
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
    click.option("-q", "--quiet", is_flag=True, help="Print results and errors only."),
    click.option("-v", "--verbose", count=True, help="Log what the client does; -vv logs more."),
)
QUIET = "coterie.quiet"


def broker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options above, as one argument `broker`: a client's settings."""

    @wraps(function)
    def with_broker(
        *,
        bootstrap: str,
        config: str | None,
        assignments: tuple[str, ...],
        quiet: bool,
        verbose: int,
        **words: Any,
    ) -> Any:
        click.get_current_context().meta[QUIET] = quiet
        if verbose:
            log_to_standard_error(verbose)
        in_file = {} if config is None else settings_in(config)
        typed = [*in_file, *(name.partition("=")[0] for name in assignments)]
        given = {**in_snake_case(in_file), **settings_of(assignments)}
        try:
            return function(broker={"bootstrap_servers": bootstrap, **given}, **words)
        except CoterieError as error:
            said = in_typed_names(error, typed)
            if said == str(error):
                raise
            raise CoterieError(said) from error

    for option in reversed(OPTIONS):
        with_broker = option(with_broker)
    return with_broker


def log_to_standard_error(verbose: int) -> None:
    """Have the client say what it does: -v what it is told by its group, -vv all it knows."""
    import logging

    level = logging.INFO if verbose == 1 else logging.DEBUG
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def note(sentence: str) -> None:
    """Say on standard error what is going on, unless --quiet was given."""
    if not click.get_current_context().meta.get(QUIET):
        click.echo(plain(f"coterie: {sentence}"), err=True)


def group_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument GROUP, which may be written --group GROUP as for Kafka's tools."""

    @wraps(function)
    def with_group(*, group: str | None, named: str | None, **words: Any) -> Any:
        if group is not None and named is not None:
            raise click.UsageError(f"name the group once: {group} or --group {named}")
        if group is None and named is None:
            raise click.UsageError("Missing argument 'GROUP'.")
        return function(group=named if group is None else group, **words)

    option = click.option("--group", "named", metavar="GROUP", help="The group, as Kafka's tools name it.")
    return click.argument("group", required=False, metavar="GROUP")(option(with_group))


def settings_in(config: str) -> Mapping[str, str]:
    """Return the settings of a properties file, by the names they have there."""
    from coterie.broker.config.properties import PropertiesError, read_properties

    text = text_of(config)
    try:
        return read_properties(text)
    except PropertiesError as error:
        raise CoterieError(f"cannot read {config}: {error}") from None


def in_snake_case(settings: Mapping[str, str]) -> Settings:
    """Return settings by the names that the client has for them."""
    return {name.replace(".", "_"): value for name, value in settings.items()}


def text_of(name: str) -> str:
    """Return what a text file says; CoterieError names a file that cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise CoterieError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CoterieError(f"cannot read {name}: {error}") from None


def write_text(file: Path, text: str) -> None:
    """Write a file anew; CoterieError names one that cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CoterieError(f"cannot write {file}: {error.strerror}") from None


def insist_on_writable(file: Path) -> None:
    """Raise CoterieError for a file that cannot be written, before anybody works for what goes into it.

    What is there stays as it is, and nothing is made. Of a pipe or a terminal nothing is asked.
    """
    from tempfile import TemporaryFile

    try:
        if file.is_file():
            file.open("ab").close()
        elif not file.exists():
            TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise CoterieError(f"cannot write {file}: {error.strerror}") from None


def known_ones(option: str, words: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the words as Kafka writes them; UsageError for one that is none of these, in whatever case."""
    by_lower = {one.lower(): one for one in known}
    for word in words:
        if word.lower() not in by_lower:
            hint = did_you_mean(word, known)
            raise click.UsageError(f"{option} {word}: it is one of {', '.join(known)}{hint}")
    return tuple(by_lower[word.lower()] for word in words)


def settings_of(assignments: Iterable[str]) -> Settings:
    """Return the settings of NAME=VALUE texts; names may have dots as Kafka's do."""
    settings: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set {text}: write NAME=VALUE")
        settings[name.strip()] = value
    return in_snake_case(settings)


def in_typed_names(error: CoterieError, as_given: Iterable[str]) -> str:
    """Return what an error says with settings as they were typed here, and others as Kafka's files have them.

    The client says `group_id`, as a script does; what is quoted is a value. Where an error is about no
    setting, only its advice is changed, behind the last semicolon: a topic may be called `group_id`.
    """
    from coterie.client.errors import NoOffset, WrongSetting
    from coterie.client.producer.settings import ProducerSettings
    from coterie.client.settings import JAVAS, ConsumerSettings

    names = {*JAVAS, *ConsumerSettings.__dataclass_fields__, *ProducerSettings.__dataclass_fields__}
    typed = {name: name.replace("_", ".") for name in names}
    typed |= {name.strip().replace(".", "_"): name.strip() for name in as_given}

    def as_typed(found: re.Match[str]) -> str:
        return typed.get(found[0], found[0])

    before, semicolon, advice = str(error).rpartition(";")
    if isinstance(error, WrongSetting | NoOffset):
        return QUOTED_OR_NAME.sub(as_typed, str(error))
    return before + semicolon + (QUOTED_OR_NAME.sub(as_typed, advice) if semicolon else advice)


output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)


def with_admin(broker: Settings, ask: Callable[[Admin], Awaitable[Any]]) -> Any:
    """Return what `ask` finds out from the cluster. A broker that is not there is told of at once."""
    from coterie.client.admin.admin import Admin

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
    """Do this until it is done, or Ctrl-C, SIGTERM or SIGHUP cancels it: what it leaves open it closes.

    So does the end of whoever reads what it says.
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
        asyncio.run(stoppable())


def when_output_closes(then: Callable[[], object]) -> None:
    """Do this once whoever reads our output through a pipe has gone, as `head` does.

    What waits for records would find that out with the next one, and stay in its group until then.
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


def say_if_still_closing(sentence: str) -> None:
    """Say on standard error what is still being done, unless it is done soon."""
    asyncio.get_running_loop().call_later(PATIENCE_S, click.echo, sentence, sys.stderr)


def say(lines: Iterable[str]) -> None:
    """Print lines; names in them come from strangers and must do nothing to a terminal."""
    for line in lines:
        click.echo(plain(line))


def say_json(value: Any) -> None:
    """Print one JSON value on a line."""
    click.echo(plain_json(json.dumps(value, ensure_ascii=False)))


@contextmanager
def telling_deleted(kind: str, output: str) -> Iterator[list[str]]:
    """Give a list for the names of what is deleted, and say them at the end.

    They are said though one could not be deleted: those before it are gone.
    """
    deleted: list[str] = []
    try:
        yield deleted
    finally:
        if output == "json":
            say_json({"deleted": deleted})
        else:
            say([f"{kind} {name} is deleted" for name in deleted])
