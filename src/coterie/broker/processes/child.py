"""One of several brokers on a machine, in a process that its parent has started: `python -m` this module.

Standard input brings its settings, in one line of JSON, and then a line whenever another broker has changed
the metadata; when it ends the parent has, and this process ends at once. Standard output says `ready
HOST:PORT`, `changed` for others to be told, and `alive` again and again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from io import FileIO

from coterie.base.errors import CoterieError
from coterie.base.logs import to_standard_error
from coterie.base.plain import plain
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.main import serve
from coterie.broker.processes.role import OneOfSeveral
from coterie.broker.runtime.background import end_with_the_parent
from coterie.broker.shell.listening import CannotServe

FORM = "%(asctime)s broker {} %(levelname)s %(message)s"


def main() -> int:
    """Serve with the settings that come; return the exit code."""
    end_with_the_parent()
    os.set_blocking(sys.stdout.fileno(), False)  # a parent that is stopped for a while stops no broker
    # Without a buffer: the thread that reads on would hold its lock when the interpreter ends.
    lines = FileIO(sys.stdin.fileno(), closefd=False)
    line = lines.readline()
    if not line.endswith(b"\n"):  # the parent has ended before the kernel was asked to tell
        return 1
    asked = json.loads(line)
    broker_id = asked["settings"]["node.id"]
    to_standard_error(asked["log_level"], FORM.format(broker_id))
    try:
        settings = BrokerSettings.of(asked["settings"])
        role = OneOfSeveral(settings)
        threading.Thread(target=read_on, args=(lines, role.look), name="parent", daemon=True).start()
        return serve(settings, role)
    except (CannotServe, CoterieError) as error:
        sys.stderr.write(f"coterie: broker {broker_id}: {plain(str(error))}\n")
        return 1


def read_on(lines: FileIO, news: Callable[[], object]) -> None:
    """Call `news` for each line, and end the process when there are no more.

    Whatever it is about: what is half written is mended at the next start, and that may be soon.
    """
    while lines.readline():
        news()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
