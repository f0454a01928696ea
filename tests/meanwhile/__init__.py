"""Two administrators and their clients at one broker: what one does in pieces meets everybody else's."""

import sys
from pathlib import Path

# Run as a module from the folder `tests`, it needs what lies beside it: `swarm`. Pytest is told so.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
