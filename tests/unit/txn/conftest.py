"""Puts the rig of the transaction core, which lives with the property tests, within reach here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "property"))
