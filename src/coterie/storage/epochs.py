"""The leader epochs of a partition: where each began, and so where the one before it ended."""

Epochs = list[tuple[int, int]]
"""Epoch and first offset, oldest first."""

UNDEFINED = (-1, -1)


def end_of(epochs: Epochs, epoch: int, *, end_offset: int) -> tuple[int, int]:
    """Return the largest epoch that is known up to `epoch`, and the offset where the next one begins.

    The latest ends where the log does. One beyond it is undefined; one before the first ends where the first
    begins.
    """
    if not epochs or epoch < 0 or epoch > epochs[-1][0]:
        return UNDEFINED
    if epoch == epochs[-1][0]:
        return epoch, end_offset
    following = next(place for place, (known, _) in enumerate(epochs) if known > epoch)
    return (epochs[following - 1][0] if following else epoch), epochs[following][1]


def begun(epochs: Epochs, epoch: int, at: int) -> Epochs:
    """Return the epochs once `epoch`, the latest, begins; those that began there too have no records."""
    return [*(entry for entry in epochs if entry[1] < at), (epoch, at)]


def until_end(epochs: Epochs, end_offset: int) -> Epochs:
    """Return the epochs of a log that was cut at its end.

    The latest stays, though nothing written in it is left: clients that saw it never go back to an older one.
    """
    if not epochs or epochs[-1][1] < end_offset:
        return epochs
    return begun(epochs, epochs[-1][0], end_offset)


def from_start(epochs: Epochs, start_offset: int) -> Epochs:
    """Return the epochs of what is left from `start_offset` on; the one at the start begins there."""
    older = [entry for entry in epochs if entry[1] <= start_offset]
    younger = [entry for entry in epochs if entry[1] > start_offset]
    return [(older[-1][0], start_offset), *younger] if older else younger
