"""The loop: bend valid bytes, feed them, and see that the reader takes or refuses them, soon and cheaply.

An input that is answered in a way not seen before is worth keeping: later ones are bent from it.
"""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

from mutator import mutated
from targets import Target

__all__ = ["CORPUS", "Found", "corpus_of", "fuzz", "judge"]

CORPUS = Path(__file__).with_name("corpus")
LONGEST_S = 2.0  # of the processor, for one input of at most 64 KiB
ROOM_BYTES = 4 << 20
WEIGHED_EVERY = 16  # tracemalloc makes everything four times slower
KEPT_BYTES = 600
NUMBERS = re.compile(r"-?\d+|'[^']*'|b\"[^\"]*\"")


class Found(AssertionError):
    """An input that a reader did not take as it should; `str()` says what happened, and how to see it."""


def corpus_of(target: Target) -> list[bytes]:
    """Return the inputs that are kept for a target."""
    return [path.read_bytes() for path in sorted((CORPUS / target.name).glob("*.bin"))]


def judge(target: Target, data: bytes, *, weighed: bool, again: bool = False) -> str:
    """Feed one input; return how it was answered. Raises `Found` for what must not happen."""
    begun = time.process_time()
    if weighed:
        tracemalloc.start()
    try:
        target.feed(data)
        answer = "read"
    except target.documented as refusal:
        answer = NUMBERS.sub("#", str(refusal))
    except MemoryError as failure:
        raise found(target, data, f"it ran out of memory: {failure}") from failure
    except Exception as failure:  # this is what the fuzzer is for
        raise found(target, data, f"it raised {type(failure).__name__}: {failure}") from failure
    finally:
        peak = tracemalloc.get_traced_memory()[1] if weighed else 0
        tracemalloc.stop()
    spent_s = time.process_time() - begun
    slow, heavy = spent_s > LONGEST_S, peak > ROOM_BYTES + target.times * len(data)
    if (slow or heavy) and not again:  # a first time compiles, imports and fills caches
        return judge(target, data, weighed=weighed, again=True)
    if slow:
        raise found(target, data, f"it took {spent_s:.1f} s")
    if heavy:
        raise found(target, data, f"it took {peak} bytes of memory for {len(data)}")
    return answer


def found(target: Target, data: bytes, what: str) -> Found:
    """Return the failure, with the line that feeds the input once more."""
    name = f"fuzz-{target.name}-{sha256(data).hexdigest()[:12]}"
    path = Path("/tmp") / f"{name}-{os.getuid()}.bin"  # another user may have found the same
    path.write_bytes(data)
    return Found(f"{target.name}: {what}; again: python tests/fuzz/run.py --target {target.name} {path}")


def fuzz(
    target: Target, *, seed: int, go_on: Callable[[int], bool], before: Callable[[bytes], object] = len
) -> Iterator[bytes]:
    """Feed bent inputs as long as `go_on(number)`; yield those that were answered in a new way.

    `before` gets each input before the reader does, so that one which kills the process is not lost.
    """
    random = Random(f"{target.name} {seed}")
    pool = [*corpus_of(target), *target.valid(random)]
    seen = {judge(target, data, weighed=False) for data in pool}
    number = 0
    while go_on(number):
        data = mutated(random.choice(pool), random, pool)
        before(data)
        answer = judge(target, data, weighed=number % WEIGHED_EVERY == 0)
        number += 1
        if answer not in seen:
            seen.add(answer)
            pool.append(data)
            if len(data) <= KEPT_BYTES:
                yield data
