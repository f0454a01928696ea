"""How many examples hypothesis draws of a property whose own number is not the profile's."""

from hypothesis import settings

__all__ = ["drawn"]


def drawn(count: int) -> int:
    """Return how many examples are drawn of a property that asks for `count`: half of them in make test, all
    in make interop, which has another profile (tests/conftest.py).
    """
    return count // 2 if settings.get_current_profile_name() == "steady" else count
