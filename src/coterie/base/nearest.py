"""The name that somebody may have meant, for the sentence that says that theirs is not known."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name most like this one, or None if none is so much like it (0: any, 1: the same)."""
    import difflib  # only on the way to an error: start-up is short

    return next(iter(difflib.get_close_matches(name, [*known], n=1, cutoff=likeness)), None)
