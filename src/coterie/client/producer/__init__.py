"""The producer: records in, deliveries out, transactions around them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.client.producer.producer import Producer

__all__ = ["Producer"]


def __getattr__(name: str) -> Any:
    """Return a public name, loaded when it is first asked for: the parts of this package do not need it."""
    if name == "Producer":
        from coterie.client.producer.producer import Producer

        return Producer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
