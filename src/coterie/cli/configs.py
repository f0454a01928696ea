"""`coterie configs`: the settings of topics, brokers and groups, shown and changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from coterie.base.errors import CoterieError
from coterie.base.settings import nearest
from coterie.cli.hints import Family
from coterie.cli.options import (
    AskCluster,
    CommandResult,
    asks_cluster,
    assigned,
    complete_group,
    complete_topic,
    with_options,
)
from coterie.cli.tables import table

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.messages import Resource

LIKENESS = 0.8  # of two names, where one is the other misspelt

SEVERAL = re.compile(r",\s*[a-z]+(\.[a-z]+)+=")  # as Kafka's tool takes them: retention.ms=1,segment.ms=2


class ConfigCommands(Family):
    shown_by = "describe --topic"


@click.group("configs", cls=ConfigCommands)
def command() -> None:
    """Show and change settings of topics, brokers and groups."""


def resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --topic, --broker and --group, of which one says whose settings it is about."""

    @wraps(function)
    def with_resource(*, topic: str | None, broker_id: int | None, group: str | None, **words: Any) -> Any:
        from coterie.client.admin.messages import Resource, ResourceKind

        names = {ResourceKind.TOPIC: topic, ResourceKind.BROKER: broker_id, ResourceKind.GROUP: group}
        given = [(kind, str(name)) for kind, name in names.items() if name is not None]
        if len(given) != 1:
            raise click.UsageError("say whose settings: --topic TOPIC, --broker ID or --group GROUP")
        return function(resource=Resource(*given[0]), **words)

    return with_options(
        click.option("--topic", metavar="TOPIC", help="The topic's settings.", shell_complete=complete_topic),
        click.option("--broker", "broker_id", type=int, metavar="ID", help="The broker's settings."),
        click.option("--group", metavar="GROUP", help="The group's settings.", shell_complete=complete_group),
    )(with_resource)


@command.command("describe")
@resource_options
@click.option("--all", "everything", is_flag=True, help="Show the defaults, too.")
@asks_cluster
def describe_command(ask: AskCluster, resource: Resource, everything: bool) -> CommandResult:
    """Show the settings that differ from the defaults."""
    from coterie.client.admin.messages import ConfigSource

    configs = ask(lambda admin: admin.describe_configs(resource), topics=[resource.name])
    shown = {
        name: {
            "value": entry.value,
            "set_by": entry.source.name.lower().replace("_", " "),
            "read_only": entry.read_only,
            "sensitive": entry.sensitive,
        }
        for name, entry in sorted(configs.items())
        if everything or entry.source is not ConfigSource.DEFAULT
    }
    rows = [
        (name, "(secret)" if one["sensitive"] else one["value"], one["set_by"]) for name, one in shown.items()
    ]
    nothing = "Nothing is set; --all shows the defaults."
    return CommandResult(shown, table(("NAME", "VALUE", "SET BY"), rows, nothing))


@command.command("alter")
@resource_options
@click.option(
    "--add-config", "puts", metavar="NAME=VALUE", multiple=True, help="Set this one; may be repeated."
)
@click.option(
    "--delete-config", "deletes", metavar="NAME", multiple=True, help="Back to the default; may be repeated."
)
@asks_cluster
def alter_command(
    ask: AskCluster, resource: Resource, puts: tuple[str, ...], deletes: tuple[str, ...]
) -> CommandResult:
    """Change some settings; the others stay as they are."""
    if not puts and not deletes:
        raise click.UsageError("say what to change: --add-config NAME=VALUE or --delete-config NAME")
    put = assigned(puts, "--add-config")
    for name, value in put.items():
        if value.startswith("[") or SEVERAL.search(value):
            raise click.UsageError(
                f"--add-config {name}={value}: write it again for each setting, and lists without []"
            )

    async def alter(admin: Admin) -> None:
        if deletes:  # a broker takes any name here, and does nothing
            _check_spelt(deletes, await admin.describe_configs(resource), resource)
        await admin.alter_configs(resource, put=put, delete=deletes)

    ask(alter, topics=[resource.name])
    done = [
        *(f"{name}={value}" for name, value in put.items()),
        *(f"{name} back to default" for name in deletes),
    ]
    return CommandResult({"set": put, "deleted": list(deletes)}, [f"{resource}: {', '.join(done)}"])


def _check_spelt(names: Iterable[str], known: Collection[str], resource: Resource) -> None:
    """Raise CoterieError if one of the names is a misspelt one of a setting of `resource`.

    Others that are not known are left to the broker: it may keep settings of another version.
    """
    for name in names:
        if name not in known and (near := nearest(name, known, likeness=LIKENESS)):
            raise CoterieError(f"{resource} has no setting {name}; did you mean {near}?")
