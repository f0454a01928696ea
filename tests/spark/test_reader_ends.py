"""A reader's end: Spark closes its connection and sends it SIGTERM, at any moment of each other."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

# Forks a reader that has joined a group of its own for every line of `coterie.spark.source.stream` that its
# end runs through, and sends SIGTERM before that line. Prints how each ended, until an end has no such line.
ENDS = """
import os, signal, sys, threading
from coterie.spark.source import stream
from coterie.spark.source.options import parse

bootstrap, topic, group, how = sys.argv[1:]

def joined(group):
    options = {
        "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "group.id": group,
        "startingOffsets": "earliest", "kafka.session.timeout.ms": "300000",
    }
    reader = stream.MemberReader(parse(options, streaming=True))
    start = reader.initialOffset()
    while reader.latestOffset(start) == start:
        pass
    return reader

def end(line, told):
    reader = joined(f"{group}-{line}")
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != stream.__file__:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                os.write(told, b"sent")
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    sys.settrace(trace)
    if how == "closed":
        reader.stop()
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)

joined(group).stop()  # the readers that are forked find all modules loaded
assert threading.active_count() == 1
line = 0
while True:
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            end(line, told)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    os.close(told)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sent = os.read(heard, 4) == b"sent"
    os.close(heard)
    print(line, status, flush=True)
    if not sent:
        break
    line += 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "ended"])
def test_a_reader_leaves_its_group_whenever_sigterm_comes_while_it_ends(new_topic, bootstrap, group, how):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 4)

    command = [sys.executable, "-c", ENDS, bootstrap, topic.name, group, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    ends = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(ends) > 8, "so many lines has an end at the least"
    assert {status for _, status in ends} <= {0, -15}, done.stderr
    admin = AdminClient({"bootstrap.servers": bootstrap})
    groups = admin.describe_consumer_groups([f"{group}-{line}" for line, _ in ends])
    assert {name: len(told.result().members) for name, told in groups.items()} == dict.fromkeys(groups, 0)
