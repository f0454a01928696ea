"""What every test goes by."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# These are hooks: pytest finds them by their names.
from row_marks import pytest_configure, pytest_runtest_call

__all__ = ["pytest_configure", "pytest_runtest_call"]

# The machines are shared and noisy: a slow example says nothing. `exhaustive` is for a night: pytest
# --hypothesis-profile.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("exhaustive", deadline=None, max_examples=2_000)
settings.load_profile("steady")
