"""How the commands that talk to a broker are told which one, and how to show who asks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.cli import main

COMMANDS = [
    ["groups", "list"],
    ["topics", "list"],
    ["transactions", "list"],
    ["consume", "t"],
    ["produce", "t"],
]


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    """How a command ended, and what it said."""
    with pytest.raises(SystemExit) as exit_:
        main(list(words))
    return exit_.value.code, *capsys.readouterr()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_takes_the_settings_of_a_client(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka's names with their dots, from a file as for Kafka's tools or one by one."""
    code, _, complained = ended(capsys, *words, "--set", "securty.protocol=SSL")

    assert code == 1
    assert complained == "coterie: there is no setting securty_protocol; did you mean security_protocol?\n"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_file_says_them_too_and_words_overrule_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# who we are\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")

    from_file = ended(capsys, *words, "--command-config", str(file))
    overruled = ended(capsys, *words, "--command-config", str(file), "--set", "sasl.mechanism=SCRAM-SHA-256")

    assert from_file[2].startswith("coterie: PLAIN needs sasl_username and sasl_password")
    assert overruled[2].startswith("coterie: SCRAM-SHA-256 needs sasl_username and sasl_password")


def test_a_file_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, complained = ended(capsys, "groups", "list", "--command-config", "/nowhere")

    assert code == 1
    assert complained == "coterie: cannot read /nowhere: No such file or directory\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["groups", "list", "--state", "Emty"], "--state Emty: it is one of Empty, .*; did you mean empty?"),
        (["groups", "list", "--type", "clasic"], "--type clasic: it is one of classic, .*mean classic?"),
        (["consume", "t", "--set", "group.id=g", "--until-end"], "leave out group.id, in --set or"),
    ],
)
def test_what_nobody_can_mean_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, complained = ended(capsys, *words)

    assert code == 2
    assert re.search(why.replace("?", r"\?"), complained)


def test_lines_are_not_written_in_a_transaction(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody would know which of them count when it ends early."""
    code, _, complained = ended(capsys, "produce", "t", "--set", "transactional.id=mine")

    assert code == 1
    assert "in no transaction; leave out transactional.id" in complained


def test_a_setting_without_a_value_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, complained = ended(capsys, "groups", "list", "--set", "client.id")

    assert code == 2
    assert "--set client.id: write NAME=VALUE" in complained


@pytest.mark.parametrize("words", COMMANDS[:4], ids=" ".join)
def test_a_broker_that_is_not_there_is_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, complained = ended(capsys, *words, "--bootstrap", "127.0.0.1:1")

    assert (code, said, complained.count("\n")) == (1, "", 1)
    assert complained.startswith("coterie: no connection to 127.0.0.1:1")
