"""`python -m bench.kafka libs` fetches the jars; `... serve DIR PORT` runs one Kafka node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.kafka import SetupError, broker_command, classpath, format_storage

USAGE = "usage: python -m bench.kafka libs | serve DIRECTORY PORT [setting=value ...]"


def main(arguments: list[str]) -> int:
    """Do what the command line says; returns the exit code."""
    match arguments:
        case ["libs"]:
            print(classpath())
            return 0
        case ["serve", directory, port, *pairs]:
            settings = dict(pair.split("=", 1) for pair in pairs)
            serve(Path(directory).absolute(), port=int(port), settings=settings)
    print(USAGE, file=sys.stderr)
    return 2


def serve(directory: Path, *, port: int, settings: dict[str, str]) -> None:
    """Become a Kafka node on `port` (its controller listens on the next one). Does not return."""
    properties = directory / "server.properties"
    if not properties.exists():
        properties = format_storage(directory, port=port, controller_port=port + 1, settings=settings)
    command = broker_command(properties)
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as failure:
        sys.exit(str(failure))
