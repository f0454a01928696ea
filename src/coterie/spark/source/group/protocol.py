"""The protocol between a query and its group: what is planned, committed and replayed. Pure.

1. Plan: from the group's committed offset (`plannable`); a partition without one gets its starting offset
   committed first, so that there always is one. Beside the committed offset of what it owns the query puts a
   note (`note_of`): whose the partition is, and since which plan. Whoever takes it over writes another.
2. Commit: `due` when the batch is done, and of it only what is known to have been read: what this session
   gave to tasks (`covered`), or what every process was bound to give that ran it (`kept`, `same_place`).
3. Revocation: the member gives a partition up after the batch under way is done and committed.
4. Replay: `replayed` after a crash: what the query has kept since the batch was planned, be it owned or not.

That a logged batch is done does not say that all of it was read: a replay leaves out what is others' by then,
and nobody writes down what. The note does: it is there as long as nothing was left out. Once gone it does not
come back for that batch, so a later run of it never gives more than an earlier one, of which a sink that goes
by batch numbers may hold the rows.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

from coterie.base.ids import TopicPartition
from coterie.base.whole import whole_number
from coterie.spark.source.offsets import DataLoss, GroupDocument, Range

NOTED = "coterie"

Committed = Mapping[TopicPartition, int | None]


def due(
    ranges: Sequence[Range], *, owned: Set[TopicPartition], committed: Committed
) -> dict[TopicPartition, int]:
    """Return the offsets that a finished batch commits for the ranges that were read: none of a partition
    that is not owned, none that lowers an offset, none over a gap.

    A coordinator takes a member's commit for partitions that it does not own: the care is ours.
    """
    commits = {}
    for one in ranges:
        held = committed.get(one.at)
        if one.at in owned and (held is None or one.first <= held < one.until):
            commits[one.at] = one.until
    return commits


def covered(planned: Iterable[Range], left: Iterable[Range | None]) -> tuple[Range, ...]:
    """Return the part of each planned range that tasks were given without a gap up to its end.

    A range that is split is read by several tasks. Its end may be committed where all of them together reach
    it, from the first offset on that none of them lacks.
    """
    pieces: dict[TopicPartition, list[Range]] = {}
    for one in left:
        if one is not None:
            pieces.setdefault(one.at, []).append(one)
    whole = []
    for one in planned:
        first = one.until
        for piece in sorted(pieces.get(one.at, ()), key=lambda piece: piece.until, reverse=True):
            if piece.until >= first:
                first = min(first, piece.first)
        if first < one.until:
            whole.append(one._replace(first=first))
    return tuple(whole)


def note_of(query: str, plan: int) -> str:
    """Return the note beside a committed offset: the query keeps the partition from this plan on."""
    return f"{NOTED} {query} {plan}"


def kept(note: str, *, query: str, plan: int) -> bool:
    """Return whether a note says that the query has kept the partition since this plan, or before."""
    match note.split(" "):
        case [word, noted, since] if word == NOTED and noted == query:
            number = whole_number(since)
            return number is not None and 0 <= number <= plan
    return False


def same_place(document: GroupDocument, *, member_id: str, instance_id: str | None, generation: int) -> bool:
    """Return whether a batch was planned by who asks: as this member, in the generation that still is.

    Within one generation nothing moves: whichever process of the member ran the batch, it owned, and gave to
    tasks, all of it. A dynamic member has another id in each process, a static one is known by its name.
    """
    same = member_id == document.member or (instance_id is not None and instance_id == document.instance)
    return same and generation >= 0 and generation == document.generation


def replayed(
    pieces: Sequence[Range],
    *,
    planned: Sequence[Range],
    owned: Set[TopicPartition],
    mine: Set[TopicPartition],
    committed: Committed,
    fail_on_data_loss: bool,
) -> list[Range | None]:
    """Return the part left to read of each piece of a batch that was planned before a crash; None: nothing.

    `mine` is what the query has kept since then, or where there are no notes what it owns. The rest is
    others', or will be planned anew. What is committed is not read again. An offset below the planned
    range was set back by somebody: replaying would hide that.
    """
    began = {one.at: one.first for one in planned}
    left: list[Range | None] = []
    for piece in pieces:
        held = committed.get(piece.at)
        lowered = held is not None and held < began[piece.at]
        if lowered and piece.at in owned and fail_on_data_loss:
            raise DataLoss(set_back(piece, began[piece.at], held or 0))
        if piece.at not in mine or (held is not None and held >= piece.until):
            left.append(None)
        elif held is None or not lowered:
            left.append(piece._replace(first=max(piece.first, held or 0)))
        else:
            left.append(piece._replace(first=held) if piece.first == began[piece.at] else piece)
    return left


def set_back(piece: Range, began: int, held: int) -> str:
    """Return the explanation of an offset that was set back."""
    return (
        f"the unfinished batch reads {piece.at} from offset {began} on, but the group's committed offset"
        f" is {held}: somebody set it back. To read again from {held}, start with a new checkpoint;"
        " with failOnDataLoss=false the batch is replayed from there"
    )


def plannable(
    at: TopicPartition, *, committed: int, earliest: int, end: int, past_end: bool, fail_on_data_loss: bool
) -> Range | None:
    """Return all there is to read of a partition from its committed offset to `end`; None: nothing now."""
    if past_end and fail_on_data_loss:
        raise DataLoss(
            f"{at}: the group's committed offset {committed} is past the partition's end; was the topic made"
            " anew? With failOnDataLoss=false such a topic is read from where the group stands in it, or from"
            " its beginning; if it is the same topic, the query waits until the end has come up to the offset"
        )
    if committed < earliest and fail_on_data_loss:
        raise DataLoss(
            f"{at}: offsets {committed} to {earliest - 1} were deleted before they were read;"
            " with failOnDataLoss=false the query goes on without them"
        )
    first = max(committed, earliest)
    return Range(at.topic, at.partition, first, end) if first < end else None
