"""How the commands that talk to a broker are told which one, and how to show who asks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.cli import cli, main
from coterie.cli.options import AskCluster, in_typed_names, named_settings
from coterie.client.admin.groups import NoSuchGroup
from coterie.client.errors import ClientTimeout
from coterie.client.producer.errors import RecordTooLarge

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
    assert complained == "coterie: there is no setting securty.protocol; did you mean security.protocol?\n"


def test_who_names_one_broker_that_is_not_up_is_asked_for_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = ended(capsys, "cluster", "-b", "127.0.0.1:1")
    two = ended(capsys, "cluster", "-b", "127.0.0.1:1,127.0.0.1:2")

    assert (one[0], two[0]) == (1, 1)
    assert one[2].endswith("up? Are there other brokers? -b HOST:PORT or COTERIE_BOOTSTRAP names them\n")
    assert two[2].endswith("the broker up?\n")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_file_says_them_too_and_words_overrule_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# who we are\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")

    from_file = ended(capsys, *words, "--command-config", str(file))
    overruled = ended(capsys, *words, "--command-config", str(file), "--set", "sasl.mechanism=SCRAM-SHA-256")

    assert from_file[2].startswith("coterie: PLAIN needs sasl.username and sasl.password")
    assert overruled[2].startswith("coterie: SCRAM-SHA-256 needs sasl.username and sasl.password")


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("sesion_timeout.ms=3", "there is no setting sesion_timeout.ms; did you mean session.timeout.ms?"),
        ("session_timeout_ms=x", "session_timeout_ms must be a whole number, not 'x'"),
        ("heartbeat.interval.ms=90000", "heartbeat.interval.ms (90000) must be less than session.timeout.ms"),
        ("auto.offset.reset=group_id", "auto.offset.reset must be one of .*, not 'group_id'"),
        ("group.instance.id=a", "group.instance.id is set without a group.id"),
    ],
)
def test_a_setting_is_spoken_of_as_it_was_typed_and_others_by_kafkas_names(
    assignment: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, complained = ended(capsys, "consume", "t", "--set", assignment)

    assert code == 1
    assert re.match(f"coterie: {re.escape(said).replace(re.escape('.*'), '.*')}", complained)


def test_a_topics_setting_is_not_taken_for_a_misspelt_one_of_the_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`serve` takes such things with --set; found by trying: request.timeout.ms was said to be meant."""
    code, _, complained = ended(capsys, "topics", "create", "t", "--set", "retention.ms=1000")

    assert code == 1
    assert complained == (
        "coterie: retention.ms is a setting of topics, and none of this client; give it as a config of the "
        "topic\n"
    )


def test_a_brokers_setting_is_not_taken_for_a_misspelt_one_of_the_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, complained = ended(capsys, "consume", "t", "--set", "num.partitions=3")

    assert code == 1
    assert complained == (
        "coterie: num.partitions is a setting of the broker, not of this client; "
        "`coterie serve --set num.partitions=...` takes it\n"
    )


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        (
            "num.partition=3",
            "there is no setting num.partition; did you mean num.partitions? It is a setting of the broker, "
            "not of this client; `coterie serve --set num.partitions=...` takes it",
        ),
        (
            "segment.byte=3",
            "there is no setting segment.byte; did you mean segment.bytes? It is a setting of topics, not of "
            "this client; `coterie configs alter --topic TOPIC --add-config segment.bytes=...` takes it",
        ),
        ("linger.ms=3", "linger.ms is a setting of producers, not of this client; leave it out here"),
        (
            "compression.type=gzip",
            "compression.type is a setting of producers and of topics, not of this client; give it to one of "
            "the producers, or as a config of the topic",
        ),
        (
            "compresion.type=gzip",
            "there is no setting compresion.type; did you mean compression.type? It is a setting of "
            "producers and of topics, not of this client; `coterie configs alter --topic TOPIC "
            "--add-config compression.type=...` takes it",
        ),
        ("max.pol.records=3", "there is no setting max.pol.records; did you mean max.poll.records?"),
        ("xyz=3", "there is no setting xyz"),
        ("fetch.max.bytes=lots", "fetch.max.bytes must be a whole number, not 'lots'"),
        (
            "spring.kafka.consumer.auto-offset-reset=earliest",
            "there is no setting spring.kafka.consumer.auto-offset-reset; write auto.offset.reset",
        ),
        (
            "key.serializer=x",
            "key.serializer is a setting of producers, not of this client; leave it out here",
        ),
        (
            "key.deserializer=org.apache.kafka.common.serialization.StringDeserializer",
            "key.deserializer cannot be 'org.apache.kafka.common.serialization.StringDeserializer' (str); it "
            "takes a function, as bytes.decode, or is left out",
        ),
        (
            "enable.auto.offset.store=false",
            "there is no setting enable.auto.offset.store; set enable.auto.commit=False, and call commit()",
        ),
        (
            "consumer.timeout.ms=1000",
            "there is no setting consumer.timeout.ms; give getone or getmany a timeout_ms",
        ),
    ],
)
def test_a_misspelt_setting_of_others_is_said_to_be_theirs(
    assignment: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, complained = ended(capsys, "consume", "t", "--set", assignment)

    assert (code, complained) == (1, f"coterie: {said}\n")


def test_a_setting_of_a_file_is_spoken_of_as_the_file_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("request.timeout = 3\n")

    code, _, complained = ended(capsys, "groups", "list", "--command-config", str(file))

    assert code == 1
    assert complained == "coterie: there is no setting request.timeout; did you mean request.timeout.ms?\n"


def test_advice_has_kafkas_names_and_what_a_topic_is_called_stays() -> None:
    error = RefusedBy(Code.INVALID_GROUP_ID, "topic group_id")

    assert in_typed_names(error, ()) == "INVALID_GROUP_ID: topic group_id; set a group.id that is not empty"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ClientTimeout(
                "topic max_block_ms is not known; it was looked for within max_block_ms=200: create it"
            ),
            "topic max_block_ms is not known; it was looked for within max.block.ms=200: create it",
        ),
        (
            RecordTooLarge("a record of about 9 bytes for t; max_request_size is 8"),
            "a record of about 9 bytes for t; max.request.size is 8",
        ),
    ],
)
def test_a_setting_with_its_value_has_kafkas_name_in_any_error(error: CoterieError, said: str) -> None:
    assert in_typed_names(error, ()) == said


@pytest.mark.parametrize(
    "said",
    ["record key=client_id=7 is refused", "no header group_id=x, says the filter; nothing is read"],
)
def test_data_that_look_like_a_setting_stay_as_they_are_in_an_error_about_none(said: str) -> None:
    assert in_typed_names(CoterieError(said), ()) == said


@pytest.mark.parametrize("family", ["configs", "groups", "topics", "transactions"])
def test_a_word_that_is_no_command_prints_no_error_while_the_line_is_typed(family: str) -> None:
    """The shell asks for what may follow, and shows the commands."""
    completion = ShellComplete(cli, {}, "coterie", "_COTERIE_COMPLETE")

    shown = [one.value for one in completion.get_completions([family, "readers"], "")]

    assert "list" in shown or "describe" in shown


def test_a_setting_of_the_command_line_overrides_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions = 3\nbroker.rack=a\n")

    given = named_settings(str(file), ["num.partitions=6", "x = y = z"])

    assert given == {"num.partitions": "6", "broker.rack": "a", "x": " y = z"}


@pytest.mark.parametrize("word", ["num.partitions", "=6", ""])
@pytest.mark.parametrize("command", [["serve"], ["groups", "list"]], ids=" ".join)
def test_a_setting_needs_a_name_and_a_value(
    capsys: pytest.CaptureFixture[str], command: list[str], word: str
) -> None:
    code, _, complained = ended(capsys, *command, "--set", word)

    assert code == 2
    assert complained.endswith(f"Error: --set {word}: write NAME=VALUE\n")


def test_a_file_is_utf_8_or_else_what_java_reads(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    for encoding in ("utf-8", "latin-1"):
        file.write_bytes("client.id=Jürgen\r\n".encode(encoding))
        assert named_settings(str(file), ()) == {"client.id": "Jürgen"}


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("a=b\nc=\\u12")

    with pytest.raises(CoterieError, match=r"cannot read .*: line 2"):
        named_settings(str(file), ())


def test_a_file_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, complained = ended(capsys, "groups", "list", "--command-config", "/nowhere")

    assert code == 1
    assert complained == "coterie: cannot read /nowhere: No such file or directory\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["groups", "list", "--state", "Emty"], "--state Emty: it is one of Empty, .*; did you mean Empty?"),
        (["transactions", "list", "--state", "Ongong"], "it is one of Empty, .*; did you mean Ongoing?"),
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


class MayNotList:
    """An Admin that finds no group, and may not list those that there are."""

    def __init__(self, **_: object) -> None: ...

    async def __aenter__(self) -> MayNotList:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def list_groups(self) -> None:
        raise RefusedBy(Code.CLUSTER_AUTHORIZATION_FAILED, "ListGroups")

    async def describe_group(self, group_id: str) -> None:
        raise NoSuchGroup(f"there is no classic group {group_id}")


def test_a_hint_that_cannot_be_looked_up_does_not_hide_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coterie.client.admin.admin.Admin", MayNotList)

    with pytest.raises(CoterieError, match=r"^there is no classic group biling$"):
        AskCluster({})(lambda admin: admin.describe_group("biling"), groups=["biling"])
