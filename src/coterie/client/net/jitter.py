"""The little chance that a client needs: pauses that differ, so that clients that failed together part."""

import random


def jitter() -> float:
    """Return a factor for a pause: a fifth longer or shorter at most (KIP-580)."""
    return random.uniform(0.8, 1.2)
