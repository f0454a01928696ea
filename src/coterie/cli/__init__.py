"""The `coterie` command. One module a command family, imported only when its command runs."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from coterie import __version__
from coterie.base.settings import nearest

__all__ = ["main"]

COMMANDS = (
    "assign",
    "cluster",
    "configs",
    "consume",
    "groups",
    "history",
    "produce",
    "serve",
    "simulate",
    "store",
    "topics",
    "transactions",
)


ALIASES = {name.removesuffix("s"): name for name in COMMANDS if name.endswith("s")}
"""`coterie topic list` is as good as `coterie topics list`."""

SHOWN = 100
INTERRUPTED = 130  # as shells have it for a command that Ctrl-C ended


class Commands(click.Group):
    """Finds each command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing or cmd_name.startswith("-"):
                return None
            from coterie.cli.hints import commands_beneath

            near = nearest(cmd_name, COMMANDS) or next(commands_beneath(ctx, self, cmd_name), None)
            ctx.fail(f"No such command {cmd_name!r}.{f' Did you mean {near!r}?' if near else ''}")
        command: click.Command = importlib.import_module(f"coterie.cli.{cmd_name}").command
        return command

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*given, **more)
        except KeyboardInterrupt:  # which click calls "Aborted!", with exit code 1
            raise click.exceptions.Exit(INTERRUPTED) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        with _hinting_at_options(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with _hinting_at_options(ctx):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@contextlib.contextmanager
def _hinting_at_options(root: click.Context) -> Iterator[None]:
    """Add a hint to the error about an option that is not known, or a word too many."""
    try:
        yield
    except click.UsageError as error:
        from coterie.cli.hints import hint, hint_at_words  # only on the way to an error: start-up is short

        context = error.ctx or root
        if isinstance(error, click.NoSuchOption):
            meant = hint(context, error.option_name)
        else:
            meant = hint_at_words(context, error.message)
        if meant is None:
            raise
        raise click.UsageError(f"{error.message.removesuffix('.')}. {meant}", context) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="coterie", message="%(prog)s %(version)s")
def cli() -> None:
    """Kafka's consumer groups: a broker, and tools for any Kafka.

    `coterie help COMMAND` describes a command.
    """


def main(words: list[str] | None = None) -> NoReturn:
    """Run a command line (that of the process) and exit: 0; 1 with an error; 2 if the command line is wrong;
    130 if Ctrl-C ended it.
    """
    if not __debug__:
        _fail("python -O would take out the checks that guard your data; run without it")
    from coterie.base.errors import CoterieError

    _open_standard_files()
    _show_whatever()
    code: object = 0
    try:
        try:
            cli(words, prog_name="coterie")
        except SystemExit as end:
            code = end.code
        if sys.stdout is not None:
            sys.stdout.flush()
    except CoterieError as error:
        _fail(str(error))
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":
            raise
        _fail(f"{error.object[:SHOWN]!r} has bytes that are not UTF-8; only the name of a file may")
    except OSError as error:
        _drop_output()
        _fail(f"{error.filename or 'cannot write the output'}: {error.strerror or error}")
    sys.exit(code)  # type: ignore[arg-type]  # what SystemExit had


def _open_standard_files() -> None:
    """Open /dev/null for each standard file that the shell has closed (`>&-`): else a log's file or a socket
    would get its number, and the interpreter's last words would be written there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            if getattr(sys, name) is None:
                stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115  # for good
                setattr(sys, name, stream)


def _show_whatever() -> None:
    """Print characters that the terminal's encoding lacks as \\uXXXX, as JSON does."""
    codecs.register_error("coterie", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="coterie")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escapes = (f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    return "".join(escapes), error.end


def _drop_output() -> None:
    """Send output that could not be written to /dev/null: the process would fail at it again as it ends."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> NoReturn:
    from coterie.base.plain import plain

    lines = "\n".join(map(plain, sentence.split("\n")))
    sys.stderr.write(f"coterie: {lines}\n")
    sys.exit(1)
