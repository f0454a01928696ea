"""A scenario's file: what it says, and what it is told where it is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenes import a_variant

from coterie.simulate.scenario import DEPLOY, KIND, TOP, TROUBLES, Kind, read_script
from coterie.simulate.timetable import timetable
from coterie.simulate.values import BadScript, flat, span

LEAST = "topics.orders = 6\n"


def test_what_is_not_said_is_as_kafka_and_kubernetes_have_it():
    variant = a_variant("deploy = [{ every = '10m' }]", base=LEAST)

    (kind,) = variant.kinds
    assert (kind.settings.session_timeout_ms, kind.settings.heartbeat_interval_ms) == (45_000, 3_000)
    assert kind.settings.max_poll_interval_ms == 300_000
    assert variant.deploys[0].batch(12) == 3


def test_kafkas_names_are_written_as_they_are():
    variant = a_variant(
        "[members]\nsession.timeout.ms = 20_000\nheartbeat.interval.ms = '1s'\n"
        "partition.assignment.strategy = 'org.apache.kafka.clients.consumer.RoundRobinAssignor, range'\n"
        "[broker]\ngroup.initial.rebalance.delay.ms = 0\nauto.create.topics.enable = false\n",
        base=LEAST,
    )

    assert variant.kinds[0].settings.session_timeout_ms == 20_000
    assert variant.kinds[0].settings.assignors == ("roundrobin", "range")
    assert variant.broker == {"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "false"}


def test_a_variant_has_what_the_file_has_but_for_its_own():
    script = read_script(
        LEAST + "members.count = 5\n[[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\nmembers.static = true",
        name="f",
    )

    assert [(one.name, one.members, one.kinds[0].static) for one in script.variants] == [
        ("a", 5, False),
        ("b", 5, True),
    ]


def test_another_seed_goes_for_all_variants():
    script = read_script(LEAST + "seed = 4\n[[variant]]\n[[variant]]\nseed = 5", name="f", seed=9)

    assert [one.seed for one in script.variants] == [9, 9]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("45s", 45_000), ("1h30m", 5_400_000), ("250ms", 250), ("1.5s", 1_500), (7, 7), ("2 d", 172_800_000)],
)
def test_spans_are_written_as_people_write_them(given: str | int, meant: int):
    assert span(given, "") == meant


@pytest.mark.parametrize("given", ["", "45", "s", "1x", "1h 2", -1, True, 1.5, [1]])
def test_a_span_that_is_none_is_refused(given: object):
    with pytest.raises(BadScript, match="it takes a span of time"):
        span(given, "lasts")


def test_tables_that_toml_took_apart_are_put_together():
    assert flat({"a": {"b": {"c": 1}, "d": 2}, "e": 3}) == {"a.b.c": 1, "a.d": 2, "e": 3}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("topics = ", "is no TOML"),
        ("", "there is no [topics]; name at least one"),
        (LEAST + "member.count = 3", "the file has no key member; did you mean members?"),
        (
            LEAST + "[members]\nsesion.timeout.ms = 1",
            "no key sesion.timeout.ms; did you mean session.timeout.ms?",
        ),
        (LEAST + "members.count = '3'", "members: count is '3'; it takes a whole number of at least 0"),
        (LEAST + "members.count = 0", "members: count is 0; it takes 1 to 5000 members in all"),
        (LEAST + "members.static = 1", "members: static is 1; it takes true or false"),
        (LEAST + "lasts = 'long'", "lasts is 'long'; it takes a span of time such as \"45s\""),
        (LEAST + "lasts = 0", "lasts is 0; it takes more than nothing"),
        ("topics.orders = 0", "topics: orders is 0; it takes a whole number of at least 1"),
        (
            LEAST + "members.partition.assignment.strategy = 'rnge'",
            "there is no assignor rnge; did you mean range?",
        ),
        (LEAST + "members.partition.assignment.strategy = ['range', 'range']", "names an assignor twice"),
        (
            LEAST + "members.heartbeat.interval.ms = '1m'",
            "heartbeat.interval.ms is 60000 and session.timeout.ms 45000",
        ),
        (LEAST + "members.session.timeout.ms = 3_001", "the broker takes 6000 to 1800000; change it, or"),
        (LEAST + "broker.group.max.sice = 3", "broker: group.max.sice is not a setting of a Kafka broker"),
        (LEAST + "[deploy]\nevery = '1h'", "deploy may come several times: write [[deploy]]"),
        (
            LEAST + "[[deploy]]\nat_once = 1",
            'deploy needs at = "10m" (or several in a list), or every = "1h"',
        ),
        (LEAST + "[[deploy]]\nevery = '1h'\nat = 1", "one of the two"),
        (LEAST + "[[deploy]]\nevery = 0", "deploy: every is 0; it takes a span that is longer than nothing"),
        (LEAST + "[[deploy]]\nat = 1\nfirst = 1", "deploy: first goes with every"),
        (
            LEAST + "[[deploy]]\nat = 1\nat_once = '0%'",
            "deploy: at_once is '0%'; it takes a number of members",
        ),
        (LEAST + "[[deploy]]\nat = 1\nrestart = ['9s', '3s']", "it takes the shortest span first"),
        (
            LEAST + "[[deploy]]\nevery = '1m'\nrestart = '30s'\nat_once = 1",
            "deploy: one takes up to 1.5 minutes",
        ),
        (LEAST + "[[deploy]]\nat = 1\nset.count = 3", "set may not have count"),
        (
            LEAST + "[[deploy]]\nat = 1\nset.statik = true",
            "deploy: set has no key statik; did you mean static?",
        ),
        (LEAST + "[[slow_poll]]\nat = 1", 'slow_poll needs takes, how long it lasts, as in takes = "20s"'),
        (
            LEAST + "[[gc_pause]]\nat = 1\ntakes = 1\nmember = 'x'",
            "gc_pause: member is 'x'; it takes a member",
        ),
        (LEAST + "[[crash]]\nat = '61m'", "crash comes when all is over: the scenario lasts 60 minutes"),
        (LEAST + "lasts = '30m'\n[[scale]]\nat = ['1m', '40m']\nto = 4", "scale comes when all is over"),
        (LEAST + "[[deploy]]\nevery = '1h'", "deploy comes when all is over"),
        (LEAST + "[[crash]]\nat = 1\nmember = 4", "crash: there is no member m4; the last one is m3"),
        (LEAST + "[[scale]]\nat = 1", "scale needs to = ..., the number of members afterwards"),
        (
            LEAST + "[[members]]\n[[members]]\n[[scale]]\nat = 1\nto = 3",
            "scale: there is more than one [[members]]",
        ),
        (LEAST + "network.delay = 0", "network: delay is 0; it takes at least 1 ms"),
        (LEAST + "[variant]\nname = 'a'", "write [[variant]], in double brackets"),
        (LEAST + "[[variant]]\nname = 'a'\n[[variant]]\nname = 'a'", "two variants have the same name"),
        (
            LEAST + "[[variant]]\nname = 'a'\nmembers.cuont = 1",
            "variant a: members has no key cuont; did you mean count?",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_to_do(text: str, sentence: str):
    with pytest.raises(BadScript, match=re.escape(sentence)) as refused:
        read_script(text, name="scene.toml")

    assert str(refused.value).startswith("scene.toml")


def test_a_rolling_deploy_goes_on_when_all_of_a_batch_are_back():
    variant = a_variant(
        "members.count = 4\ndeploy = [{ at = '1m', at_once = '50%', restart = '10s', pause = '5s' }]",
        base=LEAST,
    )

    acts = [(act.at_ms, act.what, act.member) for act in timetable(variant) if act.at_ms > 10_000]
    assert acts == [
        (60_000, "stop", 1),
        (60_000, "stop", 2),
        (70_000, "start", 1),
        (70_000, "start", 2),
        (75_000, "stop", 3),
        (75_000, "stop", 4),
        (85_000, "start", 3),
        (85_000, "start", 4),
    ]


PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"
NAMED = re.compile(r"`(\w[\w.]*)`")


def rows_of(head: str) -> dict[str, tuple[str, str]]:
    """Return the default and the sentence of each key in a table of the page."""
    body = PAGE.read_text(encoding="utf-8").partition(f"| {head} |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in body.splitlines()[2:]]
    return {
        name: (default.strip().strip("`"), does.strip())
        for names, _, default, does in rows
        for name in NAMED.findall(names.partition("(")[0])
    }


def test_the_page_says_of_every_key_what_it_does():
    top, members = rows_of("at the top"), rows_of("in `[members]`")
    happens = rows_of("in a table of what happens")
    keys = {*DEPLOY, "set", "to", "takes"}.union(*TROUBLES.values())

    assert top.keys() == {*TOP, "title", "broker", "variant"}
    assert members.keys() == KIND.keys()
    assert happens.keys() == keys
    assert all(does.endswith(".") for table in (top, members, happens) for _, does in table.values())


def test_the_page_has_the_defaults_of_members():
    told = {name: default for name, (default, _) in rows_of("in `[members]`").items()}
    kind = read_script(
        LEAST + "[members]\n" + "\n".join(f"{name} = {as_toml(text)}" for name, text in told.items()),
        name="scene.toml",
    )

    assert kind.variants[0].kinds == (Kind(),)


def as_toml(default: str) -> str:
    """Return a default as a file has it: spans are texts."""
    return f'"{default}"' if default[:1].isdigit() and not default.isdigit() else default
