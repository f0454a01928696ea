"""`coterie groups reset` and `delete-offsets`: what a group has committed, set anew or dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from coterie.base.plain import plain
from coterie.base.settings import did_you_mean
from coterie.cli.options import (
    AskCluster,
    CommandResult,
    asks_cluster,
    group_argument,
    groups_known,
    with_options,
)
from coterie.cli.output import text_of
from coterie.cli.tables import by_topic, partitions_text, table

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.resets import Move, Reset

form_options = with_options(
    click.option("--to-earliest", is_flag=True, help="To the first record of each partition."),
    click.option("--to-latest", is_flag=True, help="To the end of each partition."),
    click.option(
        "--to-current", is_flag=True, help="To the committed offset; to the end where there is none."
    ),
    click.option("--to-offset", type=int, metavar="N", help="To this offset, or the nearest that exists."),
    click.option("--shift-by", type=int, metavar="N", help="N records forward; back if N is negative."),
    click.option(
        "--to-datetime", metavar="TIME", help="To the first record since TIME; UTC unless it names a zone."
    ),
    click.option("--by-duration", metavar="P1DT2H", help="To the first record that is no older than this."),
    click.option("--from-file", metavar="FILE", help="To the offsets in lines of topic,partition,offset."),
)
topics_option = partial(
    click.option,
    "--topic",
    "topics",
    metavar="TOPIC[:0,2]",
    multiple=True,
    help="A topic, or some partitions of it; may be repeated.",
)


@click.command("reset")
@group_argument
@form_options
@topics_option()
@click.option("--all-topics", is_flag=True, help="All partitions for which the group has committed offsets.")
@click.option("--execute", is_flag=True, help="Change the offsets. Without it, they are only shown.")
@click.option("--export", is_flag=True, help="Print lines for --from-file instead of a table.")
@asks_cluster
def reset_command(
    ask: AskCluster,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    export: bool,
    **forms: Any,
) -> CommandResult:
    """Change the committed offsets of a group without members.

    Shows the offsets before and after. Nothing is changed without --execute.
    """
    to = reset_of(group, forms)
    if bool(topics) + all_topics + (forms["from_file"] is not None) != 1:
        raise click.UsageError("say whose offsets: --topic TOPIC (or several), --all-topics, or --from-file")

    async def reset(admin: Admin) -> tuple[list[Move], str]:
        partitions = await admin.partitions_named(topics) if topics else None
        new = await note_on_new_group(admin, group, execute=execute)
        if execute:
            return await admin.reset_group_offsets(group, to, partitions), new
        return await admin.plan_reset(group, to, partitions), new

    moves, new = ask(reset, topics=topics)
    click.echo(new, err=True, nl=False)
    document = reset_document(group, moves, executed=execute)
    if not export:
        return CommandResult(document, reset_lines(document))
    return CommandResult(
        document, (f"{one.partition.topic},{one.partition.partition},{one.after}" for one in moves)
    )


async def note_on_new_group(admin: Admin, group: str, *, execute: bool) -> str:
    """Return a line about a group that a reset creates: it may be misspelt. It is empty for one that is
    there.
    """
    known = await groups_known(admin)
    if group in known:
        return ""
    fate = "was no group {}; it is created" if execute else "is no group {} yet; --execute would create it"
    return plain(f"coterie: there {fate.format(group)}{did_you_mean(group, known)}") + "\n"


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


def reset_document(group: str, moves: Sequence[Move], *, executed: bool) -> dict[str, Any]:
    """Return the offsets before and after as JSON values."""
    partitions = [
        {**move.partition._asdict(), "before": move.before, "after": move.after, "note": move.note}
        for move in moves
    ]
    return {"group": group, "executed": executed, "partitions": partitions}


def reset_lines(document: Mapping[str, Any]) -> list[str]:
    """Return a table of the offsets before and after, with notes if there are any."""
    columns = 5 if any(one["note"] for one in document["partitions"]) else 4
    rows = [[*one.values()][:columns] for one in document["partitions"]]
    done = (
        f"group {document['group']} is reset"
        if document["executed"]
        else "nothing is changed yet; add --execute"
    )
    return [*table(("TOPIC", "PARTITION", "BEFORE", "AFTER", "NOTE")[:columns], rows), "", done]


@click.command("delete-offsets")
@group_argument
@topics_option(required=True)
@asks_cluster
def delete_offsets_command(ask: AskCluster, group: str, topics: tuple[str, ...]) -> CommandResult:
    """Delete a group's committed offsets for topics.

    No member of the group may be subscribed to them.
    """

    async def delete(admin: Admin) -> Any:
        partitions = await admin.partitions_named(topics)
        await admin.delete_group_offsets(group, partitions)
        return partitions

    deleted = ask(delete, groups=[group], topics=topics)
    return CommandResult(
        {"group": group, "deleted": [one._asdict() for one in deleted]},
        [f"group {group} has no offsets any more for {partitions_text(by_topic(deleted))}"],
    )
