"""`coterie groups reset` and `delete-offsets`: what a group has committed, set anew or dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from coterie.base.plain import plain
from coterie.base.settings import did_you_mean
from coterie.cli.asking import (
    Settings,
    broker_options,
    group_argument,
    output_option,
    say,
    say_json,
    text_of,
    with_admin,
)

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.resets import Move, Reset

FORMS = (
    click.option("--to-earliest", is_flag=True, help="To the first record that there is."),
    click.option("--to-latest", is_flag=True, help="To the end."),
    click.option("--to-current", is_flag=True, help="To where it is; to the end where nothing is committed."),
    click.option("--to-offset", type=int, metavar="N", help="To an offset, or the nearest that there is."),
    click.option("--shift-by", type=int, metavar="N", help="So many records forward; negative is back."),
    click.option("--to-datetime", metavar="TIME", help="To the first record since; UTC if it names no zone."),
    click.option("--by-duration", metavar="P1DT2H", help="To the first record no older than this."),
    click.option("--from-file", metavar="FILE", help="To what lines of topic,partition,offset say."),
)


def with_forms(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option for each form of a reset."""
    for option in reversed(FORMS):
        function = option(function)
    return function


@click.command("reset")
@group_argument
@with_forms
@click.option(
    "--topic", "topics", metavar="TOPIC[:0,2]", multiple=True, help="Whose offsets: all of it, or partitions."
)
@click.option("--all-topics", is_flag=True, help="All that the group has committed.")
@click.option("--execute", is_flag=True, help="Do it. Without, it is only shown.")
@click.option("--export", is_flag=True, help="Print lines that --from-file reads.")
@broker_options
@output_option
def reset_command(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    export: bool,
    broker: Settings,
    output: str,
    **forms: Any,
) -> None:
    """Set the offsets of a group without members.

    What would be is shown first; --execute does it.
    """
    to = reset_of(group, forms)
    if bool(topics) + all_topics + (forms["from_file"] is not None) != 1:
        raise click.UsageError("say whose offsets: --topic TOPIC (or several), --all-topics, or --from-file")

    async def reset(admin: Admin) -> tuple[list[Move], str]:
        partitions = await admin.partitions_named(topics) if topics else None
        new = await never_heard_of(admin, group, execute=execute)
        if execute:
            return await admin.reset_group_offsets(group, to, partitions), new
        return await admin.plan_reset(group, to, partitions), new

    moves, new = with_admin(broker, reset)
    click.echo(new, err=True, nl=False)
    if export:
        say(f"{move.partition.topic},{move.partition.partition},{move.after}" for move in moves)
    elif output == "json":
        say_json(reset_document(group, moves, executed=execute))
    else:
        say(reset_lines(group, moves, executed=execute))


async def never_heard_of(admin: Admin, group: str, *, execute: bool) -> str:
    """Return a line about a group that a reset makes: it may be misspelt. Nothing of one that is there."""
    known = [one.group_id for one in await admin.list_groups()]
    if group in known:
        return ""
    hint = plain(did_you_mean(group, known))
    fate = "was no group {}; it is made now" if execute else "is no group {} yet; --execute would make it"
    return f"coterie: there {fate.format(plain(group))}{hint}\n"


def reset_of(group: str, forms: Mapping[str, Any]) -> Reset:
    """Return the one form that was given."""
    from coterie.client.admin import resets

    given = {name: value for name, value in forms.items() if value is not None and value is not False}
    if len(given) != 1:
        words = ", ".join("--" + name.replace("_", "-") for name in forms)
        raise click.UsageError(f"say where to, in one way: {words}")
    makers: Mapping[str, Callable[[Any], Reset]] = {
        "to_earliest": lambda _: resets.ToEarliest(),
        "to_latest": lambda _: resets.ToLatest(),
        "to_current": lambda _: resets.ToCurrent(),
        "to_offset": resets.ToOffset,
        "shift_by": resets.ShiftBy,
        "to_datetime": lambda text: resets.ToTime(resets.time_ms(text)),
        "by_duration": lambda text: resets.ByDuration(resets.duration_ms(text)),
        "from_file": lambda name: resets.file_of(text_of(name).splitlines(), group),
    }
    ((name, value),) = given.items()
    return makers[name](value)


def reset_lines(group: str, moves: Sequence[Move], *, executed: bool) -> list[str]:
    """Return a table of the offsets before and after."""
    from coterie.cli.tables import table

    noted = any(move.note for move in moves)
    rows = [(*move.partition, move.before, move.after, *([move.note] * noted)) for move in moves]
    head = ("TOPIC", "PARTITION", "BEFORE", "AFTER", *(["NOTE"] * noted))
    done = f"group {group} is reset" if executed else "nothing is changed yet: --execute does it"
    return [*table(head, rows), "", done]


def reset_document(group: str, moves: Sequence[Move], *, executed: bool) -> dict[str, Any]:
    """Return the offsets before and after as JSON values."""
    partitions = [
        {**move.partition._asdict(), "before": move.before, "after": move.after, "note": move.note}
        for move in moves
    ]
    return {"group": group, "executed": executed, "partitions": partitions}


@click.command("delete-offsets")
@group_argument
@click.option(
    "--topic", "topics", metavar="TOPIC[:0,2]", multiple=True, required=True, help="All of it, or partitions."
)
@broker_options
@output_option
def delete_offsets_command(group: str, topics: tuple[str, ...], broker: Settings, output: str) -> None:
    """Drop what a group has committed for topics.

    None of its members may read them.
    """

    async def drop(admin: Admin) -> Any:
        partitions = await admin.partitions_named(topics)
        await admin.delete_group_offsets(group, partitions)
        return partitions

    dropped = with_admin(broker, drop)
    if output == "json":
        say_json({"group": group, "deleted": [one._asdict() for one in dropped]})
        return
    from coterie.cli.groups.texts import by_topic, partitions_text

    say([f"group {group} has no offsets any more for {partitions_text(by_topic(dropped))}"])
