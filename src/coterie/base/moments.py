"""Moments as people read them, of milliseconds that anybody may have written into a log. Pure."""

from datetime import UTC, datetime


def moment(at_ms: int) -> datetime | None:
    """Return the time in UTC, None where no calendar has it."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def moment_text(at_ms: int, timespec: str = "milliseconds") -> str:
    """Return the time in UTC, as 2026-11-22T12:11:29.932Z; the bare number where no calendar has it."""
    at = moment(at_ms)
    return f"{at_ms} ms" if at is None else at.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
