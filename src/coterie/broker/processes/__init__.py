"""Several brokers on one machine: a process each, started by a parent, with their metadata in one file."""

import os

METADATA = "coterie.cluster.sqlite"
"""The file of the metadata, beside the directories of the brokers."""


def directory_of_all(directory: str) -> str | None:
    """Return the directory of several brokers in which this is that of one, or a link to that; else None."""
    for place in (os.path.abspath(directory), os.path.realpath(directory)):
        above = os.path.dirname(place)
        if os.path.exists(f"{above}/{METADATA}"):
            return above
    return None
