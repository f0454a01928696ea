"""Two sources of one query in one group are refused; two queries that share a group are left alone."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from coterie.spark.source.group.shared_group import SharedGroup, SharedGroupCheck, starter_of
from coterie.spark.source.options import parse

ONE_QUERY, ANOTHER = "1/task/7 since 100", "1/task/8 since 100"


@pytest.fixture
def reader(tmp_path):
    """A function that makes readers of one application, which see each other."""
    with ExitStack() as made:

        def make(starter=ONE_QUERY, *, topics="t", group="g", brokers="h:1", application=1, **options):
            chosen = options or {"subscribe": topics}
            given = {"kafka.bootstrap.servers": brokers, "group.id": group, **chosen}
            one = SharedGroupCheck(
                parse(given, streaming=True),
                starter=starter,
                application=application,
                folder=tmp_path / "readers",
            )
            return made.enter_context(closing(one))

        yield make


def test_the_second_source_of_a_query_in_one_group_is_refused_with_both_loads_and_the_ways_out(reader):
    reader(topics="t,u").check()

    with pytest.raises(SharedGroup) as refused:
        reader(topics="u,v").check()

    said = str(refused.value)
    assert "two loads of u (subscribe=t,u, and subscribe=u,v)" in said
    assert "Leave group.id and kafka.group.id out" in said
    assert "call load() for each, with a group.id of its own" in said


@pytest.mark.parametrize(
    "other",
    [
        {"starter": ANOTHER},
        {"topics": "u"},
        {"group": "h"},
        {"brokers": "elsewhere:1"},
        {"subscribePattern": "u.*"},
    ],
    ids=str,
)
def test_another_query_other_topics_groups_and_clusters_are_left_alone(reader, other):
    reader().check(topics=frozenset("t"), cluster="")

    reader(**other).check()


@pytest.mark.parametrize(
    ("first", "second"),
    [("t.*", "t.*"), ("t.*", None), (None, "t.*")],
)
def test_a_pattern_is_found_to_match_what_the_other_load_names(reader, first, second):
    def load(pattern):
        return reader(subscribePattern=pattern) if pattern else reader(topics="t1")

    load(first).check()

    with pytest.raises(SharedGroup, match=r"t1|matches"):
        load(second).check()


def test_two_patterns_are_found_to_match_one_topic_once_that_is_known(reader):
    one, other = reader(subscribePattern="t.*"), reader(subscribePattern="..?")
    one.check()
    other.check()
    other.check(topics=frozenset({"u1"}))

    with pytest.raises(SharedGroup, match="two loads of t1 "):
        other.check(topics=frozenset({"t1", "u1"}))


def test_one_cluster_by_two_names_is_found_once_it_is_known(reader):
    one, other = reader(brokers="broker-1:1"), reader(brokers="broker-2:1")
    one.check()
    other.check()
    one.check(cluster="the same")

    with pytest.raises(SharedGroup):
        other.check(cluster="the same")


def test_a_reader_that_has_ended_is_forgotten(reader, tmp_path):
    one = reader()
    one.check()
    one.close()

    reader().check()


KILLED = f"""
import os, sys
from pathlib import Path
from coterie.spark.source.options import parse
from coterie.spark.source.group.shared_group import SharedGroupCheck
options = parse({{"kafka.bootstrap.servers": "h:1", "group.id": "g", "subscribe": "t"}}, streaming=True)
folder = Path(sys.argv[1])
SharedGroupCheck(options, starter={ONE_QUERY!r}, application=1, name="theirs", folder=folder).check()
(folder / "theirs.sock").touch()
os._exit(9)
"""


def test_what_a_killed_process_has_left_is_taken_away(reader, tmp_path):
    folder = tmp_path / "readers"
    assert subprocess.run([sys.executable, "-c", KILLED, folder], check=False).returncode == 9
    assert {one.name for one in folder.iterdir()} == {"theirs.json", "theirs.sock"}

    reader().check()

    [own] = folder.iterdir()
    assert own.stem != "theirs"


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"group": "g"}', '{"addresses": null, "topics": 7}'])
def test_the_word_of_another_version_that_lives_is_passed_over(reader, tmp_path, said):
    reader(group="another").check()
    theirs = tmp_path / "readers" / "theirs.json"
    theirs.write_text(said)
    with theirs.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        reader().check()


@pytest.mark.parametrize("kind", ["file", "open to all"])
def test_where_no_word_can_be_left_a_query_runs_all_the_same(reader, tmp_path, kind):
    folder = tmp_path / "readers"
    if kind == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777)

    reader().check()
    reader().check()


def test_where_the_system_does_not_tell_who_started_a_reader_it_is_warned_of_once(reader, caplog):
    reader(None).check()
    other = reader(None)
    other.check()
    other.check(cluster="c")
    reader(None, application=2).check()

    assert [one.getMessage()[:36] for one in caplog.records] == ["if it is one query that reads both: "]


@pytest.fixture
def sleeper():
    """A function that starts a process, by the thread that calls it."""
    with ExitStack() as started:

        def start(*command):
            made = subprocess.Popen(command or ["sleep", "100"], stdout=subprocess.PIPE)
            started.callback(lambda: (made.kill(), made.wait(), made.stdout.close()))
            return made

        yield start


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_processes_that_one_thread_has_started_are_told_from_those_of_another(sleeper):
    met = threading.Barrier(2)

    def two():
        met.wait()  # or one thread may do the work of both
        found = [starter_of(sleeper().pid), starter_of(sleeper().pid)]
        met.wait()  # a thread that ends hands its children to another
        return found

    with ThreadPoolExecutor(2) as threads:
        (a, b), (c, d) = (one.result() for one in [threads.submit(two), threads.submit(two)])

    assert a == b != c == d
    assert a.startswith(f"{os.getpid()}/task/")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_a_script_between_does_not_hide_who_started_python(sleeper):
    with ThreadPoolExecutor(1) as thread:
        shell = thread.submit(sleeper, "sh", "-c", "sleep 100 & echo $!; wait").result()
        python = int(shell.stdout.readline())

        assert starter_of(python) == starter_of(shell.pid) is not None
        os.kill(python, signal.SIGTERM)


def test_who_started_a_process_that_is_gone_is_not_known():
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert starter_of(ended.pid) is None
