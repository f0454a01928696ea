"""Faults that there were, or nearly, put back one at a time; each with a seed in which it is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from coterie.broker.api import admin, offsets, produce
from coterie.broker.topics.manager import TopicManager
from coterie.broker.topics.registry import Topics

__all__ = ["FAULTS", "SEEDS"]


@contextmanager
def instead(owner: Any, name: str, other: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


def commits_stay() -> AbstractContextManager[None]:
    """A commit in parts does not look again whether its topics are there."""
    return instead(offsets, "still_there", lambda topics, ctx, found, take: (found, take))


def deleted_twice() -> AbstractContextManager[None]:
    """A deletion that comes second is told that it came first."""
    refuse = admin._refuse_deletion
    judged: dict[tuple[int, Any], Any] = {}

    def lenient(parts: Any, ctx: Any, named: Any, topic: Any, times: Any) -> Any:
        key = id(times), named
        if key not in judged:
            judged[key] = refuse(parts, ctx, named, topic, times), times
        return judged[key][0]

    return instead(admin, "_refuse_deletion", lenient)


def grown_though_gone() -> AbstractContextManager[None]:
    """A topic that is deleted while it grows goes on to grow."""

    def grow(self: Any, topic: Any, added: range) -> Any:
        config, _ = self._settings.stored_log_config(topic.configs)
        yield from self._open_logs(topic, added, config)

    return instead(TopicManager, "_grow", grow)


def topics_looked_up_once() -> AbstractContextManager[None]:
    """What a produce request names is looked up once, and written to whatever has the name by then."""
    look_up = produce.topic_named
    known: dict[int, Any] = {}

    def once(topics: Any, asked: Any) -> Any:
        if id(asked) not in known:
            known[id(asked)] = look_up(topics, asked), asked
        return known[id(asked)][0]

    return instead(produce, "topic_named", once)


def names_free_at_once() -> AbstractContextManager[None]:
    """A deleted topic's name is free before its logs and what is committed for it are gone."""
    delete = Topics.delete

    def hasty(self: Any, names: Any) -> Any:
        found = delete(self, names)
        for name in names:
            self.gone(name)
        return found

    return instead(Topics, "delete", hasty)


def claims_of_others_given_up() -> AbstractContextManager[None]:
    """Who has created a topic gives its name up at the end, which another creation has claimed by then."""

    def give_up(self: Any, topics: Any) -> None:
        for topic in topics:
            self._claimed.pop(topic.name, None)

    return instead(Topics, "give_up", give_up)


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    one.__name__: one
    for one in (
        commits_stay,
        deleted_twice,
        grown_though_gone,
        topics_looked_up_once,
        names_free_at_once,
        claims_of_others_given_up,
    )
}
SEEDS = {
    "commits_stay": 23,
    "deleted_twice": 2,
    "grown_though_gone": 66,
    "topics_looked_up_once": 75,
    "names_free_at_once": 77,
    "claims_of_others_given_up": 379,
}
