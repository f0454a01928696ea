"""The `coterie` command: what it prints, where, and with which exit code it ends."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import coterie
from coterie.cli import cli, main
from coterie.cli.options import BOOTSTRAP
from coterie.spark.source.near_replicas import RACK_VARIABLE

NO_CONTEXT = click.Context(cli)
API_VERSIONS = 18
HEAVY = {"rich", "numpy", "pyarrow", "pyspark", "numba", "pandas", "difflib", "hypothesis", "pytest"}


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        self.code = ended.value.code
        self.said, self.complained = capsys.readouterr()


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]):
    ended = Ended(capsys, "--version")

    assert (ended.code, ended.said) == (0, f"coterie {coterie.__version__}\n")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]):
    ended = Ended(capsys, "--help")

    assert ended.code == 0
    assert "serve" in ended.said


def test_help_describes_a_command_as_its_option_does(capsys: pytest.CaptureFixture[str]):
    for words in ([], ["serve"], ["groups"], ["groups", "reset"]):
        asked, ended = Ended(capsys, "help", *words), Ended(capsys, *words, "--help")

        assert (asked.code, asked.said, asked.complained) == (0, ended.said, "")


def test_no_description_of_a_command_is_cut_in_a_list_80_characters_wide():
    for group in (cli, *map(top_level, cli.list_commands(NO_CONTEXT))):
        if isinstance(group, click.Group):
            context = click.Context(group)
            names = group.list_commands(context)
            room = 80 - len("  " * 2) - max(map(len, names)) - 2
            for name in names:
                one = group.get_command(context, name)
                assert one is not None
                assert len(one.get_short_help_str(200)) <= room, name


def top_level(name: str) -> click.Command | None:
    return cli.get_command(NO_CONTEXT, name)


def test_ctrl_c_before_an_answer_ends_with_130_and_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ["groups", "list", "--bootstrap", f"127.0.0.1:{silent.getsockname()[1]}"]
        running = subprocess.Popen(
            [sys.executable, "-m", "coterie", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        connection, _ = silent.accept()
        with connection:  # it waits for an answer
            running.send_signal(signal.SIGINT)
            said = running.communicate(timeout=60)

    assert (running.returncode, *said) == (130, b"", b"")


def test_a_command_line_that_makes_no_sense_ends_with_2(capsys: pytest.CaptureFixture[str]):
    assert Ended(capsys, "serve", "--colour", "red").code == 2
    assert "Did you mean 'groups evict'?" in Ended(capsys, "evict").complained
    mistyped = Ended(capsys, "sreve")
    assert (mistyped.code, "No such command 'sreve'. Did you mean 'serve'?" in mistyped.complained) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("consume --topic lines", "Write it without --topic: 'coterie consume TOPIC...'."),
        ("produce --topic lines", "Write it without --topic: 'coterie produce TOPIC'."),
        ("topics describe --topics lines", "Write it without --topics: 'coterie topics describe TOPIC...'."),
        ("topics --list", "Did you mean 'coterie topics list'?"),
        ("topics --create --topic lines", "Did you mean 'coterie topics create'?"),
        (
            "topics --bootstrap-server kafka:9092 --list",
            "Options stand behind the command: 'coterie topics COMMAND --bootstrap-server ...'.",
        ),
        (
            "--bootstrap kafka:9092 groups list",
            "Options stand behind the command: 'coterie COMMAND --bootstrap ...'.",
        ),
        ("groups --all-groups", "'coterie groups' shows all groups."),
        ("group --reset-offsets --group readers", "Did you mean 'coterie groups reset'?"),
        ("groups reset readers --dry-run", "Nothing is changed without --execute."),
        ("groups describe readers --state", "The state is shown without it."),
        ("topics --alter --topic lines", "Did you mean 'coterie topics add-partitions'?"),
        ("consume lines --max-messages 1", "Did you mean '--max'?"),
        ("consume lines -e", "Did you mean '--until-end'?"),
        ("consume lines -c 5", "Did you mean '--max'?"),
        (
            "configs describe --entity-type topics",
            "Write --topic TOPIC, --broker ID or --group GROUP.",
        ),
        ("serve --port 9092", "Did you mean '--listen HOST:PORT'?"),
        ("serve server.properties", "Did you mean '--config server.properties'?"),
        ("serve ./kafka", "Did you mean '--data ./kafka'?"),
        ("serve postgresql://h/d", "Did you mean '--store postgresql://h/d'?"),
        ("cluster status", "There are balance, describe, drain, remove, upgrade."),
        ("store statu", "There are describe, dump, load, migrate, restored."),
        ("store describ postgresql://h/d", "Did you mean 'describe'?"),
        ("config describe lines", "Did you mean '--topic lines'?"),
        ("configs alter lines --add-config retention.ms=1", "Did you mean '--topic lines'?"),
        (
            "configs alter lines retention.ms=1",
            "Did you mean '--topic lines --add-config retention.ms=1'?",
        ),
        ("produce lines --acks 1", "Did you mean '--set acks=1'?"),
        (
            "topics add-partitions lines --partitions 6",
            "Did you mean '--total N', the number of partitions that it has afterwards?",
        ),
        (
            "consume lines --isolation-level read_committed",
            "Did you mean '--set isolation.level=read_committed'?",
        ),
        ("consume lines --command-property check.crcs=false", "Did you mean '--set NAME=VALUE'?"),
        ("produce lines --compression-codec gzip", "Did you mean '--set compression.type=gzip'?"),
        ("groups describe --all-groups", "'coterie groups' shows all groups."),
        (
            "transactions find-hanging",
            "'coterie transactions list --state Ongoing' shows those that are open.",
        ),
        ("groups readers", "Did you mean 'coterie groups describe readers'?"),
        ("topics lines", "Did you mean 'list', or 'coterie topics describe lines'?"),
        ("transactions billing-1", "Did you mean 'coterie transactions describe billing-1'?"),
        ("configs lines", "Did you mean 'coterie configs describe --topic lines'?"),
        ("groups descibe", "Did you mean 'describe', or 'coterie groups describe descibe'?"),
        (
            "consume lines --property print.key=true",
            "Key, partition, offset and time are printed without it; '--output json' has the headers, too.",
        ),
        (
            "produce lines --property parse.key=true",
            "'--key-separator TEXT' does what parse.key and key.separator do, '--null TEXT' what null.marker"
            " does.",
        ),
        ("consume lines --consumer-property check.crcs=false", "Did you mean '--set NAME=VALUE'?"),
    ],
)
def test_who_spells_it_as_kafkas_tools_do_is_told_how_it_is_spelt_here(
    capsys: pytest.CaptureFixture[str], line: str, sentence: str
):
    ended = Ended(capsys, *line.split())

    assert (ended.code, ended.said) == (2, "")
    assert ended.complained.splitlines()[-1].endswith(f". {sentence}")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("cluster drain second", "'second' is not a valid whole number."),
        ("history --stuck-after long", "'long' is not a valid number."),
    ],
)
def test_a_word_that_is_no_number_is_said_to_be_none(
    capsys: pytest.CaptureFixture[str], line: str, sentence: str
):
    ended = Ended(capsys, *line.split())

    assert (ended.code, ended.said) == (2, "")
    assert ended.complained.splitlines()[-1].endswith(f": {sentence}")


def test_reset_offsets_is_reset(capsys: pytest.CaptureFixture[str]):
    kafkas, ours = (
        Ended(capsys, "groups", word, "readers", "--to-earliest") for word in ("reset-offsets", "reset")
    )

    assert kafkas.code == ours.code == 2
    assert kafkas.complained.splitlines()[-1] == ours.complained.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--set", "num_partitions=6"],
            "num_partitions is not a setting of a Kafka broker; did you mean num.partitions?",
        ),
        (
            ["--set", "num.partitions=6", "--set", "zookeeper.connect=localhost:2181", "--set", "foo=1"],
            "zookeeper.connect is a setting of Kafka before 4.0; leave it out",
        ),
        (
            ["--listen", "PLAINTEXT://a:1"],
            "listeners: PLAINTEXT://a:1 is not HOST:PORT: leave out PLAINTEXT://",
        ),
        (
            ["--set", "NUM.PARTITIONS=6"],
            "NUM.PARTITIONS is not a setting of a Kafka broker; did you mean num.partitions?",
        ),
        (
            ["--set", "max.poll.records=6"],
            "max.poll.records is a setting of consumers, not of a broker; leave it out here",
        ),
        (
            ["--set", "bootstrap.servers=kafka:9092"],
            "bootstrap.servers is a setting of clients, not of a broker; leave it out here",
        ),
        (["--listen", "9092"], "listeners: 9092 is not HOST:PORT with a port from 0 to 65535"),
        (["--config", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
    ],
)
def test_a_wrong_setting_is_one_sentence_on_standard_error(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
):
    ended = Ended(capsys, "serve", *words)

    assert (ended.code, ended.said, ended.complained) == (1, "", f"coterie: {sentence}\n")


def run(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-m", "coterie", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_python_without_asserts_is_refused():
    ended = run("serve", options=("-O",))

    assert ended.returncode == 1
    assert ended.stderr == (
        "coterie: python -O would take out the checks that guard your data; run without it\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_a_port_that_is_taken_is_one_sentence(kept: bool, tmp_path: Path):
    data = ("--data", str(tmp_path / "data")) if kept else ()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("serve", "--listen", f"127.0.0.1:{port}", *data)

    assert (ended.returncode, ended.stdout) == (1, "")
    sentence = (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; another broker, perhaps: end it, or "
        "choose another port with --listen"
    )
    assert ended.stderr.splitlines()[-1] == f"coterie: {sentence}"
    assert len(ended.stderr.splitlines()) == (1 if kept else 2)  # two: where topics would have been kept
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_a_database_that_only_the_variable_names_is_said_not_to_be_used_where_no_place_is_given(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A newcomer's topics went into a directory that was deleted at the end."""
    monkeypatch.setenv("COTERIE_STORE", "postgresql://localhost/coterie")
    data = ("--data", str(tmp_path / "data")) if kept else ()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", *data)

    note = (
        'coterie: note: COTERIE_STORE is read by coterie store alone; --store "$COTERIE_STORE" has this'
        " broker serve from that database\n"
    )
    assert ended.stderr.startswith(note) == (not kept)


@pytest.mark.slow
def test_where_the_port_is_taken_a_directory_of_logs_is_not_touched(tmp_path: Path):
    log = tmp_path / "data" / "t-0" / f"{0:020}.log"
    log.parent.mkdir(parents=True)
    log.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))

    assert ended.returncode == 1
    assert "Address already in use" in ended.stderr
    assert [*tmp_path.rglob("*")] == [tmp_path / "data", log.parent, log]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_broker_that_is_ended_as_it_starts_leaves_no_temporary_directory(
    how: signal.Signals, tmp_path: Path
):
    said, _ = _ended_as_it_starts(how, {**os.environ, "TMPDIR": str(tmp_path)})

    assert str(tmp_path) in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_broker_that_is_ended_while_it_waits_for_its_database_says_so_in_a_sentence(how: signal.Signals):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"postgresql://me@127.0.0.1:{bound.getsockname()[1]}/c"
        said, rest = _ended_as_it_starts(how, {**os.environ}, "--store", url, "--set", "node.id=1")

    assert "waiting for the database" in said
    assert rest == "coterie: stopped before it was ready\n"


def _ended_as_it_starts(how: signal.Signals, environment: dict[str, str], *words: str) -> tuple[str, str]:
    """Return the first line that a broker writes to standard error, at which it is sent a signal, and what
    comes behind it.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "coterie", "serve", "--listen", "127.0.0.1:0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as starting:
        assert starting.stderr is not None
        said = starting.stderr.readline()
        starting.send_signal(how)
        _, rest = starting.communicate(timeout=60)
    assert starting.returncode == 0
    return said, rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "why"), [("file/data", "Not a directory"), ("file", "it is a file, not a directory")]
)
def test_a_directory_that_cannot_be_written_is_one_sentence(tmp_path: Path, data: str, why: str):
    (tmp_path / "file").write_text("")

    ended = run("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / data))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"coterie: cannot use {tmp_path / data}: {why}\n"


@pytest.mark.slow
def test_a_directory_without_a_name_is_no_wish_for_one_that_is_deleted():
    """`--data "$UNSET"`."""
    ended = run("serve", "--listen", "127.0.0.1:0", "--data", "")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--data names no directory" in ended.stderr


@pytest.mark.slow
def test_a_directory_of_other_things_is_refused_and_left_as_it_was(tmp_path: Path):
    """`--data /`, a home directory: a broker's files among others' would be hard to find again."""
    for name in (".profile", "mail", "orders-1", "src"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes").write_text("")

    ended = run("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"coterie: cannot use {tmp_path}: it holds other things (.profile, mail, orders-1, ...) and nothing "
        "of a broker's; name a directory that is new or empty, or that Coterie or Kafka has kept its topics "
        "in\n"
    )
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no shell that limits how long files may be")
def test_a_start_that_the_disk_refuses_says_why_and_not_how_it_was_closed(tmp_path: Path):
    """Found with a disk that was full: it "was not closed cleanly"."""
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
    serve = [sys.executable, "-m", "coterie", "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *serve]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"coterie: cannot use {tmp_path}: File too large\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["meta.properties", "t-0/partition.metadata"])
@pytest.mark.slow
def test_what_cannot_be_read_in_a_data_directory_is_named(tmp_path: Path, name: str):
    place = tmp_path / name
    place.mkdir(parents=True)
    (place.parent / "00000000000000000000.log").touch()

    ended = run("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith(f"coterie: cannot use {tmp_path}: {place}: Is a directory\n")


@pytest.mark.slow
def test_a_listener_without_a_host_listens_at_every_address(tmp_path: Path):
    """The server.properties that Kafka comes with has such ones."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"listeners=PLAINTEXT://:{port},CONTROLLER://:9193\n"
        f"advertised.listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:9193\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={tmp_path / 'logs'}\n"
    )
    words = [sys.executable, "-m", "coterie", "serve", "--config", str(properties)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"ready 0.0.0.0:{port}\n"
            socket.create_connection(("127.0.0.1", port)).close()
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
def test_a_broker_whose_standard_files_are_closed_serves(tmp_path: Path):
    """Else a log's file or a socket gets their numbers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    given = ["--listen", f"127.0.0.1:{port}", "--data", str(tmp_path)]
    words = f"exec {shlex.join([sys.executable, '-m', 'coterie', 'serve', *given])} <&- >&- 2>&-"
    with subprocess.Popen(["sh", "-c", words]) as process:
        try:
            while process.poll() is None:
                with (
                    contextlib.suppress(ConnectionRefusedError),
                    socket.create_connection(("127.0.0.1", port)) as asking,
                ):  # who is answered knows that the broker handles signals by now
                    asking.sendall(struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1))
                    assert asking.recv(1)
                    break
                time.sleep(0.02)
            assert process.poll() is None
            assert {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)} == {"/dev/null"}
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Windows has no signals")
def test_ctrl_c_while_the_command_line_is_read_from_disk_leaves_no_traceback(tmp_path: Path):
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")

    ended = subprocess.run(
        [sys.executable, "-m", "coterie", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=60,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, b"", b"")


def test_serving_imports_nothing_heavy():
    script = (
        "import sys, coterie.cli, coterie.cli.serve, coterie.broker.main, coterie.broker.config.settings\n"
        f"print(*sorted({HEAVY!r} & sys.modules.keys()))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )

    assert ended.stdout.split() == []


@pytest.mark.slow
def test_a_command_starts_and_ends_without_a_look_for_garbage():
    script = (
        "import atexit, gc, sys\n"
        "def tell(): print(gc.get_stats()[2]['collections'], gc.get_freeze_count() > 10_000)\n"
        "atexit.register(tell)\n"
        "from coterie.__main__ import main\n"
        "main()"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script, "topics", "--help"], capture_output=True, text=True, check=True
    )

    assert ended.stdout.splitlines()[-1] == "0 True"


def commands_beneath(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands and groups of commands with the words that call them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            beneath = command.get_command(context, name)
            assert beneath is not None
            yield from commands_beneath(beneath, f"{path} {name}")


def test_no_help_text_of_a_command_is_cut():
    for path, command in commands_beneath(cli, "coterie"):
        page = command.get_help(click.Context(command, info_name=path, terminal_width=80))
        assert "..." not in page.partition("Commands:")[2], path


def test_every_command_is_on_the_page_of_the_command_line():
    page = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")

    missing = [path for path, command in commands_beneath(cli, "coterie") if path not in page]

    assert missing == []


ROOT = Path(__file__).resolve().parents[3]
READ = re.compile(r"""environ(?:\.get\(|\.setdefault\(|\[)"(\w+)"|"(\w+)" in os\.environ""")


def test_every_environment_variable_is_in_the_table_of_the_page_with_the_commands_that_read_it():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("## Environment variables\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    table = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    sources = (ROOT / "src" / "coterie").rglob("*.py")
    read = {one or other for path in sources for one, other in READ.findall(path.read_text(encoding="utf-8"))}
    families: dict[str, set[str]] = {}
    for path, command in commands_beneath(cli, "coterie"):
        for parameter in command.params:
            if parameter.envvar is not None:
                families.setdefault(str(parameter.envvar), set()).add(path.split()[1])

    assert read | families.keys() <= table.keys()
    assert {name for name in table if name.startswith("COTERIE_")} == families.keys() | {RACK_VARIABLE}
    for name, reading in families.items():
        assert {*re.findall(r"`coterie (\w+)`", table[name][1])} == reading
    assert BOOTSTRAP in table["COTERIE_BOOTSTRAP"][2]


def test_a_command_family_is_found_in_the_singular_as_well(capsys: pytest.CaptureFixture[str]):
    for one, many in (("topic", "topics"), ("group", "groups"), ("config", "configs")):
        singular, plural = (
            Ended(capsys, word, "--help").said.partition("Options")[2] for word in (one, many)
        )
        assert singular == plural != ""
