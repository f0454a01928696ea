"""Files that a process holds for as long as it lives, however it ends: others see by them that it does."""

import os
from pathlib import Path
from typing import IO, Any

try:
    import fcntl as _fcntl

    fcntl: Any = _fcntl
except ImportError:  # Windows: nothing can be held
    fcntl = None

CAN_HOLD = fcntl is not None


def hold(path: Path) -> int:
    """Return the descriptor of a new file at the path, which is held until it is closed. Raises `OSError`."""
    new = path.with_suffix(".new")
    held = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    new.rename(path)  # found from now on, and by nobody before it was held
    return held


def is_held(file: IO[str]) -> bool:
    """Return whether somebody holds an open file. If not, it is held by whoever asks, until it is closed."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
