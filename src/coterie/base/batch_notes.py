"""Groups in which a Spark sink notes the batches it has written: what they commit are batches' numbers. Pure.

`exactly-once` keeps one for each query and one for each of its tasks (docs/spark.md). A batch's number under
the name of a topic's partition is no offset there: there is no lag, and nobody is stuck.
"""

import re

NOTES = "coterie-sink"
"""What the names of such groups begin with."""
NOTES_NAMED = NOTES + "-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-[0-9]+)?"
"""The whole of it, with Spark's id of the query and a task's number: for Python's and Java's expressions."""


def notes_batches(group_id: str) -> bool:
    """Return whether what a group by this name commits are numbers of batches."""
    return group_id.startswith(NOTES) and re.fullmatch(NOTES_NAMED, group_id) is not None
