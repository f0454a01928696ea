"""Operations that are cut off at a counted resume, by cancellation or because their time is over."""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from coterie.base.errors import CoterieError
from coterie.client import Admin, Consumer, Producer

__all__ = ["CUT", "HANGS_S", "RECORDS", "STEPS", "cut", "fill", "soon", "values_in", "waits"]

# Nothing may take so long, on however busy a machine; what waits for a time-out of 30 s is found.
HANGS_S = 25.0
RECORDS = 60
STEPS = 25
CUT = object()


async def counted(work: Coroutine[Any, Any, Any], at: int, trigger: Callable[[], object]) -> Any:
    """Return what the work returns; pull a trigger when it has waited for the n-th time."""
    return await resumes(work, at, trigger)


@types.coroutine
def resumes(work: Coroutine[Any, Any, Any], at: int, trigger: Callable[[], object]) -> Any:
    error: BaseException | None = None
    while True:
        try:
            waits_for = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value
        at -= 1
        if at == 0:
            trigger()
        error = None
        try:
            yield waits_for
        except BaseException as thrown:  # noqa: BLE001  # the work has it
            error = thrown


def cancel_this() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def timed_out(work: Coroutine[Any, Any, Any], at: int) -> Any:
    """Have the work's time run out when it has waited for the n-th time."""
    async with asyncio.timeout(None) as limit:
        return await counted(work, at, lambda: limit.reschedule(0))


async def cut(rng: Random, work: Coroutine[Any, Any, Any], *, whole: float = 0.3) -> Any:
    """Return what comes of it: its result, CUT, or the error that a client may raise. Fail if it hangs."""
    name, at = getattr(work, "__qualname__", "?"), 1 + min(int(rng.expovariate(0.25)), 40)
    if rng.random() < whole:
        task = asyncio.create_task(work)
    elif rng.random() < 0.3:
        task = asyncio.create_task(timed_out(work, at))
    else:
        task = asyncio.create_task(counted(work, at, cancel_this))
    done, _ = await asyncio.wait([task], timeout=HANGS_S)
    assert done, f"{name}, cut at {at}, hangs"
    if task.cancelled():
        return CUT
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, TimeoutError | CoterieError):
        return CUT if isinstance(error, TimeoutError) else error
    raise error


def waits(work: Coroutine[Any, Any, Any]) -> bool:
    """Begin some work; return whether it has to wait, and end it then."""
    try:
        work.send(None)
    except StopIteration:
        return False
    work.close()
    return True


async def soon(work: Coroutine[Any, Any, Any]) -> Any:
    """Wait for it, but not when there is nothing any more."""
    async with asyncio.timeout(0.1):
        return await work


# -- topics


async def fill(bootstrap: str, topic: str, partitions: int) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=partitions)
    async with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number, partition=number % partitions)


async def values_in(bootstrap: str, topic: str, **settings: Any) -> Counter[bytes]:
    """Return how often each value is in a topic, up to its end."""
    found: Counter[bytes] = Counter()
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        places = await consumer.partitions_for(topic)
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        for place in places:
            while await consumer.position(place) < ends[place]:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    found.update(one.value for one in records)
    return found
