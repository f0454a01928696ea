"""Fills the tables of settings in docs/, between `<!-- settings NAME … -->` and `<!-- end of settings -->`.

Names, values, defaults and sentences are those of the tables and classes that read the settings. `--write`
writes the pages; a test says when that is due.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from options import sentences

from coterie.base.settings import Setting, what_it_takes
from coterie.base.settings.topic import SYNONYMS, TOPIC
from coterie.broker.config.known_settings import INTERNAL
from coterie.broker.config.settings import AMONG_OTHERS, KNOWN, OF_TOPICS, WITH_EFFECT
from coterie.client.producer.settings import ProducerSettings
from coterie.client.settings import KINDS, ClientSettings, ConsumerSettings, setting_of, types_of
from coterie.spark.options import OptionTable
from coterie.spark.sink.options import SINK_OPTIONS
from coterie.spark.source.option_names import SOURCE_OPTIONS
from coterie.storage.config import NO_EFFECT

DOCS = Path(__file__).resolve().parents[1] / "docs"
PLACES = re.compile(r"(<!-- settings ([a-z]+)\b[^>]*-->\n).*?(<!-- end of settings -->)", re.DOTALL)


def broker() -> Iterator[str]:
    """Yield the settings of the broker alone; those that topics have by default are in their table."""
    rows = [KNOWN[name] for name in sorted(WITH_EFFECT) if KNOWN[name].about]
    yield from table(rows, "what it does")
    idle = sorted(KNOWN.keys() - WITH_EFFECT - OF_TOPICS - INTERNAL.keys())
    yield from without_effect(
        f"{len(idle)} more of Kafka's are known and checked, so that a whole `server.properties` can be"
        " taken. They have no effect on a broker alone, which says so for each that is set. Of several over"
        f" [a database](cluster.md) {', '.join(f'`{name}`' for name in sorted(AMONG_OTHERS))} have theirs.",
        idle,
    )


def topic() -> Iterator[str]:
    """Yield the settings of a topic, and which of the broker's are their defaults."""
    given = {name: " or ".join(f"`{each}`" for each, _ in SYNONYMS.get(name, ())) for name in TOPIC}
    rows = [one for one in TOPIC.values() if one.about]
    yield from table(rows, "what it does", ("default from the broker's", given))
    yield from without_effect(
        "Topics may have these of Kafka's as well; they have no effect here:",
        sorted(NO_EFFECT),
    )


def client() -> Iterator[str]:
    """Yield the settings that every client has."""
    yield from of_class(ClientSettings, ())


def consumer() -> Iterator[str]:
    """Yield the settings that only a consumer has."""
    yield from of_class(ConsumerSettings, [one.name for one in fields(ClientSettings)])


def producer() -> Iterator[str]:
    """Yield the settings that only a producer has."""
    yield from of_class(ProducerSettings, [one.name for one in fields(ClientSettings)])


def of_class(settings: type[ClientSettings], others: Iterable[str]) -> Iterator[str]:
    """Yield the table of a class of settings, without the `others`."""
    said = sentences(settings)
    yield from head("setting", "takes", "default", "what it does")
    for one in fields(settings):
        if one.name in others:
            continue
        kind = types_of(one)[0]
        named = kind in KINDS and (kind is not str or "rule" in one.metadata)
        takes = values(setting_of(one, kind)) if named else ""
        default = "" if one.default is MISSING else shown(one.default)
        yield row(f"`{one.name}`", takes, default, said[one.name])


def source() -> Iterator[str]:
    """Yield the options of the Spark source."""
    yield from of_spark(SOURCE_OPTIONS)


def sink() -> Iterator[str]:
    """Yield the options of the Spark sink beside a producer's settings."""
    yield from of_spark(SINK_OPTIONS)


def of_spark(options: OptionTable) -> Iterator[str]:
    """Yield what the options of a source or sink do, those without effect, and those that are refused."""
    yield from table([one for one in options.known.values() if one.about], "what it does", word="option")
    idle = options.named("idle", "misleading")
    yield from without_effect("Taken without effect, so that a working query need not be edited:", idle)
    for title, what in (("no effect, and a warning if it is set", "misleading"), ("refused", "refused")):
        rows = [(name, fate.why) for name, fate in options.fates.items() if fate.what == what]
        if rows:
            yield ""
            yield from head(title, "why")
            yield from (row(f"`{name}`", why) for name, why in rows)


# -- tables


def table(
    settings: Iterable[Setting],
    title: str,
    more: tuple[str, Mapping[str, str]] | None = None,
    *,
    word: str = "setting",
) -> Iterator[str]:
    """Yield a table of settings, with one column `more` by name."""
    yield from head(word, "takes", "default", *([more[0]] if more else []), title)
    for one in settings:
        takes = "" if one.kind in ("text", "string", "class") and one.rule == "-" else values(one)
        yield row(
            f"`{one.name}`", takes, shown(one.default), *([more[1][one.name]] if more else []), one.about
        )


def values(setting: Setting) -> str:
    """Return the values of a setting, for a cell: `number of at least 1`."""
    return re.sub("^an? (whole )?", "", what_it_takes(setting))


def head(*titles: str) -> Iterator[str]:
    """Yield the head of a table."""
    yield row(*titles)
    yield "|---" * len(titles) + "|"


def row(*cells: str) -> str:
    """Return the line of a table."""
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def shown(default: object) -> str:
    """Return a default as a cell has it: a list as a file of properties does; nothing if there is none."""
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    if isinstance(default, bool):
        default = str(default).lower()
    return "" if default is None or default == "" else f"`{default}`"


def without_effect(sentence: str, names: Iterable[str]) -> Iterator[str]:
    """Yield names that are long to read, to be opened."""
    yield from ("", sentence, "", "<details><summary>their names</summary>", "")
    yield ", ".join(f"`{name}`" for name in names)
    yield from ("", "</details>")


TABLES = {one.__name__: one for one in (broker, topic, client, consumer, producer, source, sink)}


def filled(page: str) -> str:
    """Return a page with its tables as the settings are now."""
    return PLACES.sub(lambda place: place[1] + "\n".join(("", *TABLES[place[2]](), "", place[3])), page)


def pages() -> dict[Path, str]:
    """Return the text of each page that has a table of settings."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    return {path: text for path, text in texts.items() if PLACES.search(text)}


if __name__ == "__main__":
    for path, text in pages().items():
        if sys.argv[1:] == ["--write"]:
            path.write_text(filled(text), encoding="utf-8")
        elif filled(text) != text:
            print(f"{path}: run scripts/settings.py --write")
