"""Crash points: a broker is stopped between any two effects on its disk, and must owe nobody anything then.

disk     disks that can be stopped anywhere, and one that loses power
model    what is owed, from what was acknowledged alone
checks   what is there, held against what is owed
life     the grammar of what happens to a broker, and a seed's lives one after the other
planted  faults put back into the code, each of which must be found
"""

import sys
from pathlib import Path

# Run as a module from the folder `tests`, it needs what lies beside it: `swarm`. Pytest is told so.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
