"""A Delta Lake table as its own ledger: each record in it once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.spark.ledger.ledger import (
        Ledger,
    )
    from coterie.spark.ledger.outcome import (
        Outcome,
    )
    from coterie.spark.ledger.tables import (
        LedgerError,
    )

__all__ = ["Ledger", "LedgerError", "Outcome"]


HOMES = {"Ledger": "ledger", "LedgerError": "tables", "Outcome": "outcome"}


def __getattr__(name: str) -> Any:
    """Return a public name, loaded when it is first asked for: the parts of this package do not need it."""
    if name in HOMES:
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
