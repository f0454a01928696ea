"""The settings of topics: what Apache Kafka refuses, and in which words; where a default comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.base.settings import Setting, WrongValue, bounds_of, read
from coterie.base.settings.topic import SYNONYMS, TOPIC


def topic_defaults(broker_text: Callable[[str], str | None]) -> dict[str, str]:
    """Return the text of every topic setting that has a default, given the text of each broker setting."""
    defaults = {name: known.default for name, known in TOPIC.items() if known.default is not None}
    for name in SYNONYMS:
        text = synonym_text(name, broker_text)
        assert text is not None, f"{name} always has a default"
        defaults[name] = text
    return defaults


def synonym_text(name: str, broker_text: Callable[[str], str | None]) -> str | None:
    """Return the default that a broker's settings give a topic's setting, None if they have none for it."""
    for synonym, factor in SYNONYMS.get(name, ()):
        text = broker_text(synonym)
        if text is not None:
            return text if factor == 1 and name != "retention.ms" else _times(text, factor)
    return None


def _times(text: str, factor: int) -> str:
    """Return a time as milliseconds; a negative number is Kafka's "never" whatever its unit."""
    try:
        number = int(text)
        return "-1" if number < 0 else str(number * factor)
    except ValueError:  # whoever reads the setting says so
        return text


def refusal_of(configs: Mapping[str, str | None]) -> str | None:
    """Return the reason why a topic may not have these settings, in Apache Kafka's words; None if it may."""
    for name in configs:
        if name not in TOPIC:
            return f"Unknown topic config name: {name}"
    values: dict[str, Any] = {}
    for name, text in configs.items():
        assert text is not None, "nulls are refused before, with another code"
        try:
            values[name] = read(TOPIC[name], text)
        except WrongValue as wrong:
            return in_kafkas_words(wrong)
    return _conflict(values)


def _conflict(values: Mapping[str, Any]) -> str | None:
    least, most = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", 2**63 - 1)
    if least > most:
        return (
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if values.get("remote.storage.enable"):
        disabled = "Tiered Storage functionality is disabled in the broker."
        return f"{disabled} Topic cannot be configured with remote log storage."
    return None


def in_kafkas_words(wrong: WrongValue) -> str:
    """Return the sentence of Apache Kafka's brokers about a value that a setting does not take."""
    setting, (what, part, _) = wrong.setting, wrong.problem
    if what == "word" and part == "" and setting.kind == "list":
        return f"Configuration '{setting.name}' values must not be empty."
    value: object = wrong.given if what in ("kind", "bits") else part
    if isinstance(value, list):
        value = f"[{', '.join(value)}]"
    said = _problem_in_kafkas_words(setting, what)
    return f"Invalid value {value} for configuration {setting.name}: {said}"


def _problem_in_kafkas_words(setting: Setting, problem: str) -> str:
    least, most, beside = bounds_of(setting.rule)
    words = ", ".join(setting.words)
    if beside and problem in ("least", "most"):
        return f"Value must be between {least} and {most} or equal to {beside}"
    boolean = setting.kind == "boolean"
    pairs = "in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    number = f"Not a number of type {setting.kind.upper()}"
    return {
        "kind": "Expected value to be either true or false" if boolean else number,
        "bits": number,
        "least": f"Value must be at least {least}",
        "most": f"Value must be no more than {most}",
        "word": f"String must be one of{' (case insensitive)' if setting.folded else ':'} {words}",
        "replicas": f"{setting.name} must be the literal '*' or a list of replicas {pairs}",
    }[problem]
