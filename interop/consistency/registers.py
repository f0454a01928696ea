"""Committed offsets as registers, one a group and partition, that only grow: pure checks of a history.

Who commits only commits what is higher than anything it, or the owner before it, was answered. So whoever
reads is answered no less than was acknowledged or read before it asked, and nothing that nobody has tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from interop.consistency.history import Commit, History, OffsetRead, Outcome

__all__ = ["last_offsets", "problems"]

Register: TypeAlias = tuple[str, str, int]
"""(group, topic, partition)"""


class _Moment(NamedTuple):
    at: float
    order: int  # where times are equal: a try, what a read began with, an answer
    register: Register
    offset: int
    what: str


TRIED, ASKED, COMMITTED, READ = "tried", "asked", "committed", "read"


def problems(history: History) -> Iterator[tuple[str, str]]:
    """Yield (kind, sentence) of each read that may not be."""
    tried: dict[Register, set[int]] = defaultdict(set)
    committed: dict[Register, int] = defaultdict(lambda: -1)
    read: dict[Register, int] = defaultdict(lambda: -1)
    for moment in sorted(_moments(history)):
        register, offset = moment.register, moment.offset
        if moment.what == TRIED:
            tried[register].add(offset)
        elif moment.what == COMMITTED:
            committed[register] = max(committed[register], offset)
        elif moment.what == READ:
            if offset >= 0 and offset not in tried[register]:
                yield "commit invented", f"{_name(register)}: {offset} is committed, which nobody has tried"
            read[register] = max(read[register], offset)
        elif offset < committed[register]:
            yield "commit lost", f"{_name(register)}: {offset}, after {committed[register]} was acknowledged"
        elif offset < read[register]:
            yield "commit went back", f"{_name(register)}: {offset}, after {read[register]} was read"


def _moments(history: History) -> Iterator[_Moment]:
    for commit in history.of(Commit):
        register = (commit.group, commit.topic, commit.partition)
        yield _Moment(commit.began, 0, register, commit.offset, TRIED)
        if commit.outcome is Outcome.OK:
            yield _Moment(commit.ended, 2, register, commit.offset, COMMITTED)
    for one in history.of(OffsetRead):
        register = (one.group, one.topic, one.partition)
        yield _Moment(one.began, 1, register, one.offset, ASKED)
        yield _Moment(one.ended, 2, register, one.offset, READ)


def _name(register: Register) -> str:
    group, topic, partition = register
    return f"{group} of {topic}-{partition}"


def last_offsets(history: History, group: str) -> dict[tuple[str, int], int]:
    """Return what was read last of a group's offsets, by (topic, partition)."""
    reads = sorted((one for one in history.of(OffsetRead) if one.group == group), key=lambda one: one.ended)
    return {(one.topic, one.partition): one.offset for one in reads}
