"""Which names a topic may have, in Apache Kafka's words."""

from __future__ import annotations

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
STORY_TOPIC: Final = "__group_story"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, STORY_TOPIC})
RESERVED_TOPIC: Final = "__cluster_metadata"

LENGTH_MAX: Final = 249
SIGNS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def name_problem(name: str) -> str | None:
    """Return why this can be no topic's name, None if it can be."""
    problem = None
    if not name:
        problem = "the empty string is not allowed"
    elif name in {".", ".."}:
        problem = f"'{name}' is not allowed"
    elif len(name) > LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {LENGTH_MAX}"
    elif not SIGNS.issuperset(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return problem and f"Topic name is invalid: {problem}"


def metric_name(name: str) -> str:
    """Return the name that two topics must not share: in Kafka's metrics a dot is an underscore."""
    return name.replace(".", "_")
