"""The tables of settings in docs/ as they are printed, and a sentence for each that has an effect."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from coterie.base.settings.topic import TOPIC
from coterie.broker.config.settings import KNOWN, OF_TOPICS, WITH_EFFECT
from coterie.client.producer.settings import ProducerSettings
from coterie.client.settings import AdminSettings, ClientSettings, ConsumerSettings
from coterie.spark.options import OptionTable
from coterie.spark.sink.options import SINK_OPTIONS
from coterie.spark.source.option_names import SOURCE_OPTIONS
from coterie.storage.config import NO_EFFECT

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "settings.py"))
PAGES = SCRIPT["pages"]()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_the_settings_as_they_are(path: Path):
    assert SCRIPT["filled"](PAGES[path]) == PAGES[path], "run scripts/settings.py --write"


def test_each_table_is_on_one_page():
    on_pages = [place[1] for page in PAGES.values() for place in SCRIPT["PLACES"].findall(page)]

    assert sorted(on_pages) == sorted(SCRIPT["TABLES"])


def test_a_setting_of_the_broker_has_a_sentence_just_when_it_has_an_effect():
    said = {name for name, one in KNOWN.items() if one.about}

    assert said <= WITH_EFFECT
    assert WITH_EFFECT - said <= OF_TOPICS, "what gives a topic's setting its default is explained there"


def test_a_setting_of_topics_has_a_sentence_just_when_it_has_an_effect():
    assert {name for name, one in TOPIC.items() if one.about} == TOPIC.keys() - NO_EFFECT


@pytest.mark.parametrize("settings", [AdminSettings, ConsumerSettings, ProducerSettings])
def test_each_setting_of_a_client_has_a_sentence(settings: type[ClientSettings]):
    assert SCRIPT["sentences"](settings).keys() == {one.name for one in fields(settings)}


@pytest.mark.parametrize("options", [SOURCE_OPTIONS, SINK_OPTIONS], ids=["source", "sink"])
def test_an_option_of_spark_has_a_sentence_just_when_it_has_an_effect(options: OptionTable):
    of_the_table = {name: one for name, one in options.known.items() if name in options.fates}

    assert {name for name, one in of_the_table.items() if one.about} == {
        name for name in of_the_table if options.fate(name).what in ("", "stream", "client")
    }


def test_sentences_are_sentences():
    tables = KNOWN, TOPIC, SOURCE_OPTIONS.known, SINK_OPTIONS.known
    every = [one.about for table in tables for one in table.values() if one.about]

    assert [one for one in every if not one.endswith(".") or "|" in one] == []
