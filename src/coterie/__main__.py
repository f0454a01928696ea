"""`coterie`, and `python -m coterie`: the command line."""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # as type checkers read it; `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. While it is read from disk, Ctrl-C ends the process without a word, as `cat`."""
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so beneath `nohup ... &`
    if waits:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from coterie.cli import main as run

    if waits:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
