"""Peers that misbehave in time, drawn from a seed: each does one thing to the broker, many at once.

`live_through` has them all act, three kinds at a time, beside an honest client, and holds the broker to what
it promises: everybody honest is answered, memory stays within its bound, descriptors come back.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

from stage import Honest, Line, Stage, a_fetch, a_join, a_look

from coterie.broker.net.peers import BEGUN_BYTES_MAX, UNSENT_BYTES_MAX
from coterie.wire.api.codec import encode_request

__all__ = ["ACTS", "live_through"]

AT_ONCE = 3
MIB = 1 << 20
OTHERWISE = 128 * MIB  # one request and one answer, and what the allocator keeps
SLACK = 1.15  # a buffer that grows has an eighth to spare
HELD_S = 0.5

Act = Callable[[Stage, Random], list[Line]]
"""Does something and returns the connections that stay."""


def reset_at_once(stage: Stage, chance: Random) -> list[Line]:
    for _ in range(chance.randint(100, 400)):
        Line(stage.port).reset()
    return []


def reset_within_a_request(stage: Stage, chance: Random) -> list[Line]:
    frame = encode_request(1, "peer", a_look("large"))
    for _ in range(chance.randint(20, 100)):
        line = Line(stage.port)
        line.socket.sendall(frame[: chance.randrange(1, len(frame))])
        line.reset()
    return []


def reset_within_an_answer(stage: Stage, chance: Random) -> list[Line]:
    for _ in range(chance.randint(2, 6)):
        line = Line(stage.port, receive_buffer=4_096)
        line.send(a_fetch())
        line.read(chance.randrange(4, 100_000))
        line.reset()
    return []


def do_not_read(stage: Stage, chance: Random) -> list[Line]:
    lines = [Line(stage.port, receive_buffer=4_096) for _ in range(chance.randint(14, 18))]
    for line in lines:
        line.send(a_fetch())
    return lines


def read_slowly(stage: Stage, chance: Random) -> list[Line]:
    lines = [Line(stage.port, receive_buffer=4_096) for _ in range(chance.randint(2, 6))]
    for line in lines:
        line.send(a_fetch())
    for line in lines * chance.randint(2, 10):
        line.read(chance.randrange(1, 5_000))
    return lines


def begin_and_stop(stage: Stage, chance: Random) -> list[Line]:
    lines = [Line(stage.port) for _ in range(chance.randint(8, 12))]
    some = bytes(MIB)
    for line in lines:
        line.socket.sendall(struct.pack(">ihh", 100 * MIB, 0, 9))
        for _ in range(chance.randint(30, 60)):
            line.socket.sendall(some)
    return lines


def begin_a_little(stage: Stage, chance: Random) -> list[Line]:
    frame = encode_request(1, "peer", a_look("large"))
    lines = [Line(stage.port) for _ in range(chance.randint(10, 60))]
    for line in lines:
        for byte in frame[: chance.randrange(1, len(frame))]:
            line.socket.sendall(bytes((byte,)))
    return lines


def be_silent(stage: Stage, chance: Random) -> list[Line]:
    return [Line(stage.port) for _ in range(chance.randint(250, 350))]


def speak_once(stage: Stage, chance: Random) -> list[Line]:
    lines = [Line(stage.port) for _ in range(chance.randint(20, 100))]
    for line in lines:
        line.ask(a_look())
    return lines


def half_close(stage: Stage, chance: Random) -> list[Line]:
    lines = [Line(stage.port) for _ in range(chance.randint(20, 80))]
    for line in lines:
        line.send(chance.choice((a_look("large"), a_fetch("honest"), a_fetch("honest", wait_ms=60_000))))
        line.half_close()
    return lines


def pipeline_without_reading(stage: Stage, chance: Random) -> list[Line]:
    frames = encode_request(1, "peer", a_look(*("large", "honest") * 5)) * 200
    lines = [Line(stage.port, receive_buffer=4_096) for _ in range(chance.randint(2, 6))]
    for line in lines:
        line.socket.settimeout(0.2)
        try:
            while True:
                line.socket.sendall(frames)
        except TimeoutError:  # nobody takes any more of it
            continue
    return lines


def park_and_go(stage: Stage, chance: Random) -> list[Line]:
    for _ in range(chance.randint(20, 80)):
        line = Line(stage.port)
        line.send(a_fetch("large", offset=56, wait_ms=600_000))
        chance.choice((line.reset, line.close))()
    return []


def join_and_go(stage: Stage, chance: Random) -> list[Line]:
    group = f"group-{chance.random()}"
    for _ in range(chance.randint(5, 15)):
        line = Line(stage.port)
        member_id = line.ask(a_join(group)).member_id
        line.send(a_join(group, member_id))
        chance.choice((line.reset, line.close))()
    return []


ACTS: tuple[Act, ...] = (
    reset_at_once,
    reset_within_a_request,
    reset_within_an_answer,
    do_not_read,
    read_slowly,
    begin_and_stop,
    begin_a_little,
    be_silent,
    speak_once,
    half_close,
    pipeline_without_reading,
    park_and_go,
    join_and_go,
)


HELD_BY = {
    begin_and_stop: "requests",
    do_not_read: "answers",
    half_close: "answers",  # what the honest client wrote grows from life to life
    read_slowly: "answers",
    reset_within_an_answer: "answers",
}
BOUNDS = {"requests": BEGUN_BYTES_MAX, "answers": UNSENT_BYTES_MAX}


def live_through(stage: Stage, seed: int, *, tell: Callable[[str], None] = lambda line: None) -> None:
    """Have all kinds of peers misbehave, in an order and to an extent that the seed says."""
    chance = Random(seed)
    deck = list(ACTS)
    chance.shuffle(deck)
    for at in range(0, len(deck), AT_ONCE):
        kinds = deck[at : at + AT_ONCE]
        names = ", ".join(act.__name__ for act in kinds)
        tell(f"seed {seed}: {names}")
        try:
            live_beside(stage, kinds, chance)
        except (AssertionError, OSError) as failure:
            raise AssertionError(f"seed {seed}, {names}: {failure!r}") from failure


def live_beside(stage: Stage, kinds: list[Act], chance: Random) -> None:
    """Have some kinds of peers act at once, and hold the broker to its promises."""
    stage.forget_peak()
    at_rest = stage.memory("VmRSS")
    honest = Honest(stage)
    stay: list[Line] = []
    with ThreadPoolExecutor(len(kinds)) as acting:
        for acted in [acting.submit(act_out, act, stage, Random(chance.random()), stay) for act in kinds]:
            acted.result()
    stage.new_topic()
    time.sleep(HELD_S)
    for line in stay:
        chance.choice((line.reset, line.close))()
    honest.stop()
    stage.wait_for_sockets()
    grown = stage.memory("VmHWM") - at_rest
    held = {HELD_BY[act] for act in kinds if act in HELD_BY}
    most = OTHERWISE + int(SLACK * sum(BOUNDS[what] for what in held))
    assert grown <= most, f"the broker took {grown // MIB} MiB more, {most // MIB} are promised"
    stage.check_log()


def act_out(act: Act, stage: Stage, chance: Random, stay: list[Line]) -> None:
    """Act; that the broker may hang up on who misbehaves is its right."""
    try:
        stay += act(stage, chance)
    except (ConnectionError, TimeoutError):
        return
