"""What compiled code here has in common: numba with a cache that can be trusted, and varints.

Importing this module needs numba, which the extra `spark` brings: else it is an ImportError that says so.
Compiled code is cached beside its source, or in a temporary folder of ours where that is read-only: numba
takes no cache that it cannot write to, so what was compiled before is copied there.
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

try:
    import numba
    from numba.core import config
    from numba.core.caching import _CacheLocator
except ImportError as error:
    raise ImportError(f"columns need numba ({error}); pip install 'coterie[spark]'") from error

from coterie.arrow.folders import own_folder
from coterie.arrow.memory import get8, put8

PACKAGED = Path(__file__).parent / "__pycache__"
"""Where compiled code is kept if the package can be written to, as when an image is built."""


def choose_cache() -> None:
    """Send numba's cache to a temporary folder of ours where the package's folder is read-only."""
    if os.environ.get("NUMBA_CACHE_DIR") or os.access(PACKAGED.parent, os.W_OK):
        return
    folder = Path(tempfile.gettempdir()) / f"coterie-numba-{os.getuid()}"
    folder = folder if own_folder(folder) else Path(tempfile.mkdtemp(prefix="coterie-numba-"))
    config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    subfolder = _CacheLocator.get_suitable_cache_subpath(__file__)  # type: ignore[no-untyped-call]
    bring(PACKAGED, folder / subfolder)


def bring(packaged: Path, cache: Path) -> None:
    """Copy compiled code into a cache that lacks it. Others may do so, and read there, at the same time."""
    cache.mkdir(mode=0o700, exist_ok=True)
    # An index (nbi) names its code (nbc), which has to be there first.
    for kind in ("nbc", "nbi"):
        for code in packaged.glob(f"*.{kind}"):
            if not (cache / code.name).exists():
                copy = cache / f"{code.name}.{os.getpid()}"
                shutil.copyfile(code, copy)
                copy.replace(cache / code.name)


choose_cache()
compiled = numba.njit(cache=True, nogil=True)
inlined = numba.njit(cache=True, nogil=True, forceinline=True)
"""For what a kernel does with each record: a call would hand all addresses on, by the stack."""


@inlined
def varint(at, end):  # type: ignore[no-untyped-def]
    """Return the zig-zag number at `at` and where it ends, or 0 for that."""
    if at < end:
        byte = get8(at, 0)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
    value = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if at >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(0)
        byte = get8(at, 0)
        at += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += np.uint64(7)
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at


@compiled
def varint_size(number):  # type: ignore[no-untyped-def]
    """Return the number of bytes that the zig-zag number takes."""
    left = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while left > np.uint64(0x7F):
        left >>= np.uint64(7)
        size += 1
    return size


@compiled
def put_varint(at, number):  # type: ignore[no-untyped-def]
    """Write a zig-zag number; return where it ends."""
    left = np.uint64((number << 1) ^ (number >> 63))
    while left > np.uint64(0x7F):
        put8(at, 0, np.int64(left & np.uint64(0x7F)) | 0x80)
        left >>= np.uint64(7)
        at += 1
    put8(at, 0, np.int64(left))
    return at + 1
