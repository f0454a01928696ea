"""The consumer: records of a group's or of chosen partitions."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.client.consumer.consumer import Consumer

__all__ = ["Consumer"]


def __getattr__(name: str) -> Any:
    """Return a public name, loaded when it is first asked for: the parts of this package do not need it."""
    if name == "Consumer":
        from coterie.client.consumer.consumer import Consumer

        return Consumer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
