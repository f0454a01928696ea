"""The `coterie` command. One module a command family, imported only when its command runs."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

from coterie import __version__

__all__ = ["main"]

COMMANDS = (
    "assign",
    "consume",
    "groups",
    "history",
    "produce",
    "serve",
    "simulate",
    "topics",
    "transactions",
)


class Commands(click.Group):
    """Finds each command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"coterie.cli.{cmd_name}").command
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="coterie", message="%(prog)s %(version)s")
def cli() -> None:
    """Kafka's consumer-group coordination, in Python."""


def main(words: list[str] | None = None) -> NoReturn:
    """Run a command line (that of the process) and exit: 0, 1 with a sentence, or 2 if it made no sense."""
    if not __debug__:
        _fail("python -O would take out the checks that guard your data; run without it")
    from coterie.base.errors import CoterieError

    try:
        cli(words, prog_name="coterie")
    except CoterieError as error:
        _fail(str(error))
    sys.exit(0)


def _fail(sentence: str) -> NoReturn:
    from coterie.base.plain import plain

    lines = "\n".join(map(plain, sentence.split("\n")))
    sys.stderr.write(f"coterie: {lines}\n")
    sys.exit(1)
