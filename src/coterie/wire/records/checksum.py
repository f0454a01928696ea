"""CRC-32C, the checksum of record batches, by the native code of the crc32c package."""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview
# From data, and the checksum of what came before it, to the checksum of both.
Crc32c: TypeAlias = Callable[..., int]


def _load() -> Crc32c:
    """Return the native function without importing its package.

    The package reads its own version and brings a command line along: 25 ms of a broker's start.
    """
    package = find_spec("crc32c")
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("crc32c._crc32c", places) if places else None
    if spec is None or spec.loader is None:
        from crc32c import crc32c as slowly_imported

        return slowly_imported
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    native: Crc32c = module.crc32c
    return native


crc32c = _load()
