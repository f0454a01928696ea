"""What a connection writes to: a socket, or a pretended network."""

from __future__ import annotations

from typing import Any, Protocol


class Writer(Protocol):
    """Takes what is to be sent, in order: whole, or in parts that are not joined first."""

    def write(self, data: bytes, /) -> None: ...
    def writelines(self, parts: list[bytes], /) -> None: ...


class GatheringWriter(Writer, Protocol):
    """A writer that can hold what is written, to send it together: each call of the system costs."""

    def hold(self) -> None:
        """Hold what is written from now on."""
        ...

    def flush(self) -> None:
        """Send what was held, and hold nothing any more."""
        ...


def do_nothing() -> None:
    """Do nothing, where what is written goes out at once."""


class Transport(Writer, Protocol):
    """The other side of a connection; asyncio's transports have these methods."""

    def get_extra_info(self, name: str, /) -> Any: ...
    def get_write_buffer_size(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
