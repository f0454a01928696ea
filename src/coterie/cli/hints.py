"""Hints for an option or a command that is not there: some of Kafka's tools spell it otherwise."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator

import click

from coterie.base.settings import nearest

ENTITIES = "Write --topic TOPIC, --broker ID or --group GROUP."
A_SETTING = "Did you mean '--set NAME=VALUE'?"
PRINTED = "Key, partition, offset and time are printed without it; '--output json' has the headers, too."
COMMITTED = "Did you mean '--set isolation.level=read_committed'?"
TOTAL = "Did you mean '--total N', the number of partitions that it has afterwards?"
READ = "'--key-separator TEXT' does what parse.key and key.separator do, '--null TEXT' what null.marker does."
KAFKAS = {
    "add-partitions --partitions": TOTAL,
    "alter --entity-type": ENTITIES,
    "cluster cluster-id": "'coterie cluster' shows it.",
    "cluster list-endpoints": "'coterie cluster' shows them.",
    "cluster unregister": "Did you mean 'coterie cluster remove BROKER'?",
    "configs --entity-type": ENTITIES,
    "consume -c": "Did you mean '--max'?",
    "consume -e": "Did you mean '--until-end'?",
    "consume --command-property": A_SETTING,
    "consume --consumer-property": A_SETTING,
    "consume --formatter": "'--output json' prints a JSON document a record.",
    "consume --formatter-property": PRINTED,
    "consume --include": "Write the topics without it: 'coterie consume TOPIC...'.",
    "consume --isolation-level": COMMITTED,
    "consume --max-messages": "Did you mean '--max'?",
    "consume --property": PRINTED,
    "describe --all-groups": "'coterie groups' shows all groups.",
    "describe --entity-type": ENTITIES,
    "describe --state": "The state is shown without it.",
    "groups --all-groups": "'coterie groups' shows all groups.",
    "groups --reset-offsets": "Did you mean 'coterie groups reset'?",
    "drain --broker": "Write it without --broker: 'coterie cluster drain BROKER ...'.",
    "drain --id": "Write it without --id: 'coterie cluster drain BROKER ...'.",
    "produce --acks": "Did you mean '--set acks=1'?",
    "produce --broker-list": "Did you mean '--bootstrap-server'?",
    "produce --command-property": A_SETTING,
    "produce --compression-codec": "Did you mean '--set compression.type=gzip'?",
    "produce --compression-type": "Did you mean '--set compression.type=gzip'?",
    "produce --producer-property": A_SETTING,
    "produce --property": READ,
    "produce --reader-property": READ,
    "produce --request-required-acks": "Did you mean '--set acks=1'?",
    "remove --broker": "Write it without --broker: 'coterie cluster remove BROKER'.",
    "remove --id": "Write it without --id: 'coterie cluster remove BROKER'.",
    "reset --dry-run": "Nothing is changed without --execute.",
    "serve --port": "Did you mean '--listen HOST:PORT'?",
    "transactions find-hanging": "'coterie transactions list --state Ongoing' shows those that are open.",
    "topics --alter": "Did you mean 'coterie topics add-partitions'?",
}
"""What to type for options of Kafka's tools that are like none of the command here."""
OPTIONS_OF_WORDS = {
    "configs alter": "--topic",
    "configs describe": "--topic",
}
"""The option that a word belongs to, for commands without arguments."""
TOO_MANY = re.compile(r"Got unexpected extra argument(s?) \((.*)\)")


class Family(click.Group):
    """Commands about things of one kind; a word that is none of them may be a name: `groups readers`.

    That is said when such a command runs, not to the shell, which completes commands that are half typed.
    """

    shown_by: str | None = "describe"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name)):
            if kafkas := KAFKAS.get(f"{self.name} {name}"):
                ctx.fail(f"No such command {name!r}. {kafkas}")
            near = nearest(name, self.commands)
            shown = self.shown_by and f"'{ctx.command_path} {self.shown_by} {name}'"
            meant = ", or ".join(filter(None, (near and repr(near), shown)))
            there = f"There are {', '.join(self.list_commands(ctx))}."
            ctx.fail(f"No such command {name!r}. {f'Did you mean {meant}?' if meant else there}")
        return super().resolve_command(ctx, args)


class FamilyWithDefault(Family):
    """Commands of which one is meant where none is named."""

    default: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {text for one in self.commands[self.default].params for text in one.opts}
        known = {*self.commands, *ctx.help_option_names}
        alone = not args or args[0].partition("=")[0] in options
        if alone and not known & {*args} and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def hint(context: click.Context, option: str) -> str | None:
    """Return the sentence that says what to type instead, or None if nothing is known.

    Kafka's tools have options where we have commands and arguments: `--list`, `--topic t`.
    """
    command, path = context.command, context.command_path
    name = option.lstrip("-")
    if kafkas := KAFKAS.get(f"{command.name} {option}"):
        return kafkas
    if isinstance(command, click.Group):
        if name in command.list_commands(context):
            return f"Did you mean '{path} {name}'?"
        near = nearest(option, options_beneath(context, command), likeness=0.7)
        return near and f"Options stand behind the command: '{path} COMMAND {near} ...'."
    for one in command.params:
        if isinstance(one, click.Argument) and one.name in (name, f"{name}s"):
            return f"Write it without {option}: '{path} {one.human_readable_name}'."
        if isinstance(one, click.Option) and isinstance(one.type, click.Choice):
            for spelling, choice in ((text, which) for text in one.opts for which in one.type.choices):
                if option == f"{spelling}-{choice}":
                    return f"Did you mean '{spelling} {choice}'?"
    return None


def hint_at_words(context: click.Context, message: str) -> str | None:
    """Return the sentence about a word that a command does not take, or None if nothing is known of it."""
    found = TOO_MANY.fullmatch(message)
    family = context.parent.command.name if context.parent else None
    command = f"{family} {context.command.name}"
    if found is None:
        return None
    words = found[2].split() if found[1] else [found[2]]
    if command == "cli serve":
        meant = [option_to_serve(words[0]), words[0]] if len(words) == 1 else []
    else:
        meant = [f"{option} {word}" for word in words if (option := option_of_word(command, word))]
    return f"Did you mean '{' '.join(meant)}'?" if meant else None


def option_of_word(command: str, word: str) -> str | None:
    """Return the option that a word belongs to, for commands without arguments; None for others."""
    return "--add-config" if command == "configs alter" and "=" in word else OPTIONS_OF_WORDS.get(command)


def option_to_serve(word: str) -> str:
    """Return the option of `coterie serve` that a word belongs to: a file's, as in `kafka-server-start.sh
    FILE`, a directory's or a database's.
    """
    if "://" in word:
        return "--store"
    return "--config" if word.endswith(".properties") or os.path.isfile(word) else "--data"


def options_beneath(context: click.Context, group: click.Group) -> Iterator[str]:
    """Yield the options of all commands of a group."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from options_beneath(context, command)
        elif command is not None:
            yield from (text for one in command.params if isinstance(one, click.Option) for text in one.opts)


def commands_beneath(context: click.Context, group: click.Group, name: str) -> Iterator[str]:
    """Yield the commands of this name in the groups of a group, as `groups evict`."""
    for family in group.list_commands(context):
        command = group.get_command(context, family)
        if isinstance(command, click.Group) and name in command.commands:
            yield f"{family} {name}"
