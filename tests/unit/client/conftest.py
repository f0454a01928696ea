"""Fixtures of the client's tests."""

from __future__ import annotations

import sys
from pathlib import Path

# The group's rig lies with the properties, which use it more.
sys.path.insert(0, str(Path(__file__).parents[2] / "property"))
