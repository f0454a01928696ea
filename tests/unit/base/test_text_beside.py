"""The tables that lie beside their modules are read from an archive as from a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import coterie
from coterie.base import reasons
from coterie.base.settings.topic import TOPIC

PACKAGE = Path(coterie.__file__).parent
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from coterie.base import reasons
from coterie.base.settings.topic import TOPIC
assert reasons.__file__.startswith(sys.argv[1]), reasons.__file__
print(len(TOPIC), *sorted(reasons.names(reasons.GROUP)))
"""


def test_reasons_and_settings_are_read_from_an_archive(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "coterie.zip", "w") as archive:
        for one in (PACKAGE / "__init__.py", *(PACKAGE / "base").rglob("*.*")):
            if one.is_file():
                archive.write(one, one.relative_to(PACKAGE.parent))

    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "coterie.zip")], capture_output=True, text=True
    )

    assert found.stderr == ""
    assert found.stdout.split() == [str(len(TOPIC)), *sorted(reasons.names(reasons.GROUP))]
