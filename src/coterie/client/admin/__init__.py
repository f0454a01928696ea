"""The administrator: topics, settings, groups and their offsets, transactions, the cluster."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin

__all__ = ["Admin"]


def __getattr__(name: str) -> Any:
    """Return a public name, loaded when it is first asked for: the parts of this package do not need it."""
    if name == "Admin":
        from coterie.client.admin.admin import Admin

        return Admin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
