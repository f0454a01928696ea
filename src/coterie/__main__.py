"""`coterie`, and `python -m coterie`: the command line."""

from __future__ import annotations

import atexit
import gc
import signal

TYPE_CHECKING = False  # as type checkers read it; `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from typing import NoReturn

GC_THRESHOLDS = (100_000, 20, 20)
"""Beyond what a command's modules are made of: none of that is garbage."""


def main() -> NoReturn:
    """Run the command line. While it is read from disk, Ctrl-C ends the process without a word, as `cat`."""
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so beneath `nohup ... &`
    if waits:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(*GC_THRESHOLDS)
    atexit.register(gc.freeze)  # nor does Python look through it three times as it ends
    from coterie.cli import main as run

    if waits:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
