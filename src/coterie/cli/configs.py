"""`coterie configs`: the settings of topics, brokers and groups, shown and changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.asking import Settings, broker_options, output_option, say, say_json, with_admin
from coterie.cli.topics import settings_of

if TYPE_CHECKING:
    from coterie.client.admin.messages import ConfigEntry, Resource


@click.group("configs")
def command() -> None:
    """Show and change the settings of topics, brokers and groups."""


def resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --topic, --broker and --group, of which one says whose settings it is about."""

    @wraps(function)
    def with_resource(*, topic: str | None, broker_id: int | None, group: str | None, **words: Any) -> Any:
        from coterie.client.admin.messages import Resource, ResourceKind

        given = [
            (kind, str(name))
            for kind, name in (
                (ResourceKind.TOPIC, topic),
                (ResourceKind.BROKER, broker_id),
                (ResourceKind.GROUP, group),
            )
            if name is not None
        ]
        if len(given) != 1:
            raise click.UsageError("say whose settings: --topic TOPIC, --broker ID or --group GROUP")
        return function(resource=Resource(*given[0]), **words)

    for option in (
        click.option("--group", metavar="GROUP", help="The settings of a group."),
        click.option("--broker", "broker_id", type=int, metavar="ID", help="The settings of a broker."),
        click.option("--topic", metavar="TOPIC", help="The settings of a topic."),
    ):
        with_resource = option(with_resource)
    return with_resource


@command.command("describe")
@resource_options
@click.option("--all", "everything", is_flag=True, help="Defaults, too.")
@broker_options
@output_option
def describe_command(resource: Resource, everything: bool, broker: Settings, output: str) -> None:
    """Show what was set; with --all the defaults, too."""
    from coterie.cli.tables import table
    from coterie.client.admin.messages import ConfigSource

    configs = with_admin(broker, lambda admin: admin.describe_configs(resource))
    shown: Mapping[str, ConfigEntry] = {
        name: entry
        for name, entry in sorted(configs.items())
        if everything or entry.source is not ConfigSource.DEFAULT
    }
    if output == "json":
        say_json({name: document_of(entry) for name, entry in shown.items()})
        return
    rows = [(name, value_text(entry), words_of(entry)) for name, entry in shown.items()]
    say(table(("NAME", "VALUE", "SET BY"), rows) if rows else ["nothing is set; --all shows the defaults"])


@command.command("alter")
@resource_options
@click.option("--add-config", "puts", metavar="NAME=VALUE", multiple=True, help="Set this one.")
@click.option("--delete-config", "deletes", metavar="NAME", multiple=True, help="Back to the default.")
@broker_options
@output_option
def alter_command(
    resource: Resource, puts: tuple[str, ...], deletes: tuple[str, ...], broker: Settings, output: str
) -> None:
    """Set some settings, or take them back; the others stay."""
    if not puts and not deletes:
        raise click.UsageError("say what to change: --add-config NAME=VALUE or --delete-config NAME")
    put = settings_of(puts, option="--add-config")
    with_admin(broker, lambda admin: admin.alter_configs(resource, put=put, delete=deletes))
    if output == "json":
        say_json({"set": put, "deleted": list(deletes)})
        return
    done = [f"{name}={value}" for name, value in put.items()] + [
        f"{name} back to default" for name in deletes
    ]
    say([f"{resource}: {', '.join(done)}"])


def document_of(entry: ConfigEntry) -> dict[str, Any]:
    """Return a setting as JSON values."""
    return {
        "value": entry.value,
        "set_by": words_of(entry),
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
    }


def value_text(entry: ConfigEntry) -> str | None:
    return "(secret)" if entry.sensitive else entry.value


def words_of(entry: ConfigEntry) -> str:
    """Return who set a setting."""
    return entry.source.name.lower().replace("_", " ")
