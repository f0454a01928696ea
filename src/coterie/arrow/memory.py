"""Loads, stores and copies at addresses, for the compiled kernel.

Arrays would be counted each time that one is passed on, with atomic instructions: that costs six times what
reading a record does. Nothing here checks anything; `compiled` does, before it comes here.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

BYTE = ir.IntType(8)
WORD = ir.IntType(64)


def getter(width: int) -> Any:
    """Return `get(base, index)`: the unsigned number of that width, as 64 bits."""

    def get(typing: Any, base: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base, index = arguments
            place = builder.gep(builder.inttoptr(base, ir.IntType(width).as_pointer()), [index])
            value = builder.load(place)
            return value if width == WORD.width else builder.zext(value, WORD)

        return types.int64(types.int64, types.int64), generate

    return intrinsic(get)


def putter(width: int) -> Any:
    """Return `put(base, index, value)`: stores the low bits of the value."""

    def put(typing: Any, base: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base, index, value = arguments
            kind = ir.IntType(width)
            place = builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])
            builder.store(value if width == WORD.width else builder.trunc(value, kind), place)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return intrinsic(put)


def memcpy(typing: Any, to: Any, source: Any, size: Any) -> Any:
    """memcpy(to, source, size): libc's, five times faster than a loop of bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, source, size = arguments
        there, here = (builder.inttoptr(each, BYTE.as_pointer()) for each in (to, source))
        cgutils.raw_memcpy(builder, there, here, size, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


get8, get32, get64 = getter(8), getter(32), getter(64)
put8, put32, put64 = putter(8), putter(32), putter(64)
move: Any = intrinsic(memcpy)
