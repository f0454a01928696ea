"""Puts the rig of the group core, which lives with the property tests, within reach of the unit tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "property"))
