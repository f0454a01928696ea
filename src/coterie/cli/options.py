"""The options that commands share: which broker to ask, the client's settings, the group, the form of the
output; and how a command asks a cluster and prints what it found out.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.base.errors import CoterieError
from coterie.base.settings import did_you_mean, nearest
from coterie.cli.output import QUIET, run_async, say, say_json, text_of

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin

TIMEOUT_MS = 15_000
ANSWER_WITHIN_MS = 5_000  # then another broker is asked: one that is silent leaves time for two more
COMPLETION_TIMEOUT_MS = 1_000  # somebody has pressed the tab key
QUOTED_OR_NAME = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")|(?<![\w.-])[\w.]*_\w+(?![\w-]|\.\w)""")
Settings = dict[str, Any]
"""A client's settings by Kafka's names in snake case."""
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]

BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_NAMES = ("-b", "--bootstrap-server", "--bootstrap", "bootstrap")
CLIENT_OPTIONS = (
    click.option(
        "--command-config",
        "config",
        metavar="FILE",
        envvar="COTERIE_COMMAND_CONFIG",
        show_envvar=True,
        help="A properties file with the client's settings, as Kafka's tools take it: TLS, SASL.",
    ),
    click.option(
        "--set",
        "assignments",
        metavar="NAME=VALUE",
        multiple=True,
        help="One setting of the client, by Kafka's name; overrides --command-config.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print results and errors only."),
    click.option("-v", "--verbose", count=True, help="Log what the client does; -vv logs more."),
)
bootstrap_option = click.option(
    *BOOTSTRAP_NAMES,
    metavar="HOST:PORT",
    default=BOOTSTRAP,
    envvar="COTERIE_BOOTSTRAP",
    show_default=True,
    show_envvar=True,
    help="The broker to connect to, or several with commas.",
)
output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs.",
)


def with_options(*options: Wrapper) -> Wrapper:
    """Return a decorator that gives a command these options, the first of them first in its help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


# -- the client


def client_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command with a --bootstrap of its own the options of a client, as one argument `broker`: a
    client's settings.
    """

    @wraps(function)
    def with_client(
        *,
        bootstrap: str | None,
        config: str | None,
        assignments: tuple[str, ...],
        quiet: bool,
        verbose: int,
        **words: Any,
    ) -> Any:
        click.get_current_context().meta[QUIET] = quiet
        if verbose:
            log_to_standard_error(verbose)
        given = named_settings(config, assignments)
        try:
            return function(broker={"bootstrap_servers": bootstrap, **in_snake_case(given)}, **words)
        except CoterieError as error:
            said = in_typed_names(error, given) + asks_for_others(error, bootstrap)
            said = next(filter(None, (about_other_setting(said, name) for name in given)), said)
            if said == str(error):
                raise
            raise CoterieError(said) from error

    return with_options(*CLIENT_OPTIONS)(with_client)


def asks_for_others(error: CoterieError, bootstrap: str | None) -> str:
    """Return the end of a sentence about the one broker that a command was given, where nobody listens; "" of
    any other.
    """
    if str(error).startswith(f"no connection to {bootstrap}: nobody listens there"):
        return " Are there other brokers? -b HOST:PORT or COTERIE_BOOTSTRAP names them"
    return ""


def broker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a client and a broker to connect to, as one argument `broker`."""
    return bootstrap_option(client_options(function))


def log_to_standard_error(verbose: int) -> None:
    """Have the client log to standard error: with -v what its group does, with -vv everything."""
    level = logging.INFO if verbose == 1 else logging.DEBUG
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def named_settings(config: str | None, assignments: Iterable[str]) -> dict[str, str]:
    """Return the settings of a properties file and those of --set, by the names they have there."""
    from coterie.broker.config.properties import PropertiesError, read_properties

    try:
        in_file = {} if config is None else read_properties(text_of(config, latin_1=True))
    except PropertiesError as error:
        raise CoterieError(f"cannot read {config}: {error}") from None
    return {**in_file, **assigned(assignments, "--set")}


def in_snake_case(settings: Mapping[str, str]) -> Settings:
    """Return settings by the names that the client has for them."""
    return {name.replace(".", "_"): value for name, value in settings.items()}


def assigned(words: Iterable[str], option: str) -> dict[str, str]:
    """Return the NAME=VALUE words of an option as a mapping; UsageError for one without a name or a sign."""
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.strip() and equals):
            raise click.UsageError(f"{option} {word}: write NAME=VALUE")
        settings[name.strip()] = value
    return settings


def in_typed_names(error: CoterieError, as_given: Iterable[str]) -> str:
    """Return an error's message with settings as they were typed here, and others as Kafka's files have them.

    The client says `group_id`, as a script does; what is quoted is a value. Where an error is about no
    setting, only its advice is changed, behind the last semicolon: a topic may be called `group_id`, and a
    record have the key `client_id=7`.
    """
    from coterie.client.errors import NoOffset, WrongSetting
    from coterie.client.producer.settings import ProducerSettings
    from coterie.client.settings import JAVAS, ConsumerSettings

    names = {*JAVAS, *ConsumerSettings.__dataclass_fields__, *ProducerSettings.__dataclass_fields__}
    typed = {name: name.replace("_", ".") for name in names}
    typed |= {name.replace(".", "_"): name for name in as_given}

    def as_typed(found: re.Match[str]) -> str:
        return typed.get(found[0], found[0])

    before, semicolon, advice = str(error).rpartition(";")
    if isinstance(error, WrongSetting | NoOffset):
        said = str(error)
        for name in as_given:
            if "-" in name:  # as Spring's have, and none of ours
                said = said.replace(name.replace(".", "_"), name)
        return QUOTED_OR_NAME.sub(as_typed, said)
    return before + semicolon + (QUOTED_OR_NAME.sub(as_typed, advice) if semicolon else advice)


def clients_settings() -> dict[str, set[str]]:
    """Return the names, with dots, of the settings that every client has, consumers and producers."""
    from coterie.client.producer.settings import ProducerSettings
    from coterie.client.settings import ClientSettings, ConsumerSettings

    kinds = {"clients": ClientSettings, "consumers": ConsumerSettings, "producers": ProducerSettings}
    return {
        whose: {name.replace("_", ".") for name in kind.__dataclass_fields__} for whose, kind in kinds.items()
    }


def client_with(name: str) -> str | None:
    """Return the kind of client that has a setting, of every one `clients`; None if there is none."""
    return next((whose for whose, names in clients_settings().items() if name in names), None)


def about_other_setting(said: str, name: str) -> str | None:
    """Return the error about a setting that is most like one of the broker, of topics or of another client;
    None if the client's own is nearer, or `said` is about something else or has better advice.
    """
    from coterie.base.settings.topic import TOPIC
    from coterie.broker.config.settings import KNOWN

    unknown = f"there is no setting {name}"
    beaten = f"{unknown}; " if name in KNOWN else f"{unknown}; did you mean "  # the advice that is no better
    if said != unknown and not said.startswith(beaten):
        return None
    clients = clients_settings()
    every = clients.pop("clients")
    owners = {**clients, "topics": TOPIC, "the broker": KNOWN}
    near = nearest(name, chain(*owners.values()))
    if near is None or near in every or f" {near}?" in said:
        return None
    having = [owner for owner, names in owners.items() if near in names]
    whose = "topics" if "topics" in having else having[0]
    commands = {"topics": "configs alter --topic TOPIC --add-config", "the broker": "serve --set"}
    advice = f"`coterie {commands[whose]} {near}=...` takes it" if whose in commands else "leave it out here"
    what = f"{name} is" if near == name else f"there is no setting {name}; did you mean {near}? It is"
    others = [owner for owner in having if owner in clients and owner != whose]
    return f"{what} a setting of {' and of '.join([*others, whose])}, not of this client; {advice}"


# -- asking a cluster


class CommandResult(NamedTuple):
    """What a command has found out, in both forms of --output."""

    document: Any
    """For programs: one JSON value."""
    lines: Iterable[str]
    """For people."""
    wrong: str = ""
    """Why the command ends with exit code 1, having printed them."""


@dataclass(frozen=True, slots=True)
class AskCluster:
    """A cluster that can be asked: called with a function, it opens an Admin and returns what that function
    finds out with it. A broker that is not there is an error at once.
    """

    settings: Settings

    @property
    def all_settings(self) -> Settings:
        """The client's settings, with what commands have where nobody says otherwise."""
        ours = {
            "client_id": "coterie-cli",
            "request_timeout_ms": ANSWER_WITHIN_MS,
            "default_api_timeout_ms": TIMEOUT_MS,
        }
        return {**ours, **self.settings}

    def __call__(
        self,
        question: Callable[[Admin], Awaitable[Any]],
        *,
        groups: Iterable[str] = (),
        topics: Iterable[str] = (),
    ) -> Any:
        """Return the result of `question`. If one of the groups or topics is misspelt, the error names the
        nearest that there is.
        """
        from coterie.client.admin.admin import Admin

        async def run() -> Any:
            async with Admin(**self.all_settings) as admin:
                try:
                    return await question(admin)
                except CoterieError as error:
                    hint = ""
                    with suppress(CoterieError):  # whoever may not list them is told what went wrong first
                        hint = await nearest_name(admin, error, groups, topics)
                    if not hint:
                        raise
                    raise CoterieError(f"{error}{hint}") from error

        return run_async(run())


async def nearest_name(
    admin: Admin, error: CoterieError, groups: Iterable[str], topics: Iterable[str]
) -> str:
    """Return a hint to add to an error about a name that is not there: the nearest known one, or nothing."""
    from coterie.base.codes import Code
    from coterie.base.errors import RefusedBy
    from coterie.client.admin.groups import NoSuchGroup

    code = error.code if isinstance(error, RefusedBy) else None
    wrong: Iterable[str]
    if isinstance(error, NoSuchGroup) or code is Code.GROUP_ID_NOT_FOUND:
        wrong, known = groups, await groups_known(admin)
    elif code is Code.UNKNOWN_TOPIC_OR_PARTITION:
        wrong, known = (one.partition(":")[0] for one in topics), await topics_known(admin)
    else:
        return ""
    return next((did_you_mean(name, known) for name in wrong if name not in known), "")


def asks_cluster(function: Callable[..., CommandResult]) -> Callable[..., None]:
    """Give a command the options of a client and --output, and print the CommandResult that it returns.

    Instead of the options it gets `ask`, the cluster.
    """

    @broker_options
    @output_option
    @wraps(function)
    def print_result(*, broker: Settings, output: str, **words: Any) -> None:
        show(function(ask=AskCluster(broker), **words), output)

    return print_result


def show(result: CommandResult, output: str) -> None:
    """Print a result in the form of --output. Raises `CoterieError` where it has something wrong in it."""
    if output == "json":
        say_json(result.document)
    else:
        say(result.lines)
    if result.wrong:
        raise CoterieError(result.wrong)


# -- names


def names_in_cluster(question: Callable[[Admin], Awaitable[Iterable[str]]]) -> Callable[..., list[str]]:
    """Return a completion for a shell: the names that `question` finds in the cluster; none if it is not
    there.
    """

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        patience = dict.fromkeys(("request_timeout_ms", "default_api_timeout_ms"), COMPLETION_TIMEOUT_MS)
        broker = context.params.get("bootstrap") or bootstrap_of_environment()
        try:
            names = AskCluster({"bootstrap_servers": broker, **patience})(question)
        except CoterieError:
            return []
        return [name for name in names if name.startswith(begun)]

    return complete


def bootstrap_of_environment() -> str:
    return os.environ.get("COTERIE_BOOTSTRAP", BOOTSTRAP)


async def groups_known(admin: Admin) -> list[str]:
    return [one.group_id for one in await admin.list_groups()]


async def topics_known(admin: Admin) -> list[str]:
    return [one.name for one in await admin.list_topics()]


complete_group, complete_topic = names_in_cluster(groups_known), names_in_cluster(topics_known)


def group_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument GROUP, which may be written --group GROUP as for Kafka's tools."""

    @wraps(function)
    def with_group(*, group: str | None, named: str | None, **words: Any) -> Any:
        if group is not None and named is not None:
            raise click.UsageError(f"name the group once: {group} or --group {named}")
        if group is None and named is None:
            raise click.UsageError("Missing argument 'GROUP'.")
        return function(group=named if group is None else group, **words)

    return with_options(
        click.argument("group", required=False, metavar="GROUP", shell_complete=complete_group),
        click.option(
            "--group", "named", metavar="GROUP", help="The same as GROUP.", shell_complete=complete_group
        ),
    )(with_group)


topics_argument = click.argument(
    "topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic
)
topic_argument = click.argument("topic", shell_complete=complete_topic)


def one_of(known: Sequence[str]) -> Callable[..., tuple[str, ...]]:
    """Return the callback of an option that takes these words, in whatever case, and gives them as Kafka
    writes them; UsageError for any other.
    """
    by_lower = {one.lower(): one for one in known}

    def check(_: click.Context, option: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if word.lower() not in by_lower:
                hint = did_you_mean(word, known)
                raise click.UsageError(f"{option.opts[0]} {word}: it is one of {', '.join(known)}{hint}")
        return tuple(by_lower[word.lower()] for word in words)

    return check
