"""Folders of the user's below the temporary folder."""

import os
import stat
from pathlib import Path


def own_folder(path: Path) -> bool:
    """Return whether `path` is (now) a folder that only we may write: what is found there is believed."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
