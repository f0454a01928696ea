"""A Delta Lake table as its own ledger: each record in it once."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.spark.ledger.ledger import Ledger, LedgerError, Outcome

__all__ = ["Ledger", "LedgerError", "Outcome"]


def __getattr__(name: str) -> Any:
    """Return a public name, loaded when it is first asked for: the parts of this package do not need it."""
    if name == "Ledger":
        from coterie.spark.ledger.ledger import Ledger

        return Ledger
    if name == "LedgerError":
        from coterie.spark.ledger.ledger import LedgerError

        return LedgerError
    if name == "Outcome":
        from coterie.spark.ledger.ledger import Outcome

        return Outcome
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
