"""Spark finds the source by its module's name; where extras are missing, its use says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name in {blocked!r} or name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"no module named {{name}}", name=name)
sys.meta_path.insert(0, Block())
"""


def python(code, *, blocked=(), **environment):
    """What a fresh interpreter prints that can not import some modules."""
    made = subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=tuple(blocked)) + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environment},
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "numba"])
def test_without_an_extra_the_module_is_there_and_says_what_to_install(missing):
    said = python(
        "import pyspark_coterie as p\n"
        "print(p.DefaultSource.name())\n"
        "try: p.DefaultSource({})\n"
        "except ImportError as error: print(error)\n",
        blocked=[missing],
    )

    assert said.splitlines()[0] == "coterie"
    assert "pip install 'coterie[spark]'" in said


@pytest.mark.slow
def test_the_module_offers_a_source_as_spark_s_lookup_wants_it():
    said = python(
        "import pyspark_coterie as p\n"
        "from pyspark.sql.datasource import DataSource\n"
        "print(issubclass(p.DefaultSource, DataSource), p.DefaultSource.name())\n"
    )

    assert said == "True coterie"


@pytest.mark.slow
@pytest.mark.parametrize("takes", ["records.decoder", "outgoing.packer"])
def test_columns_without_numba_say_what_to_install(takes):
    module, name = takes.split(".")
    said = python(
        f"from coterie.arrow.{module} import {name}\n"
        f"try: {name}()\n"
        "except ImportError as error: print(error)\n",
        blocked=["numba"],
    )

    assert "pip install 'coterie[spark]'" in said


@pytest.mark.slow
def test_numba_s_cache_goes_to_a_folder_of_ours_where_the_package_is_read_only(tmp_path):
    """As root every folder is writable; so `os.access` is asked, and here it says no."""
    said = python(
        "import os; real = os.access\n"
        "os.access = lambda path, mode: 'coterie/arrow' not in str(path) and real(path, mode)\n"
        "from coterie.arrow import compiled\n"
        "from numba.core import config\n"
        "print(config.CACHE_DIR)",
        TMPDIR=str(tmp_path),
    )

    assert Path(said).parent == tmp_path
    assert Path(said).stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_what_was_compiled_before_the_package_became_read_only_is_not_compiled_again(tmp_path):
    """numba leaves a cache alone that it cannot write to; an image's or archive's is copied from."""
    kept = python("from coterie.arrow.precompile import main; main()")
    said = python(
        "import os; real = os.access\n"
        "os.access = lambda path, mode: 'coterie/arrow' not in str(path) and real(path, mode)\n"
        "from coterie.arrow.precompile import precompile\n"
        "from coterie.arrow import compiled, outgoing_compiled\n"
        "precompile()\n"
        "for kernel in (compiled.read, outgoing_compiled.write):\n"
        "    print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))",
        TMPDIR=str(tmp_path),
    )

    assert kept.startswith("compiled: ")
    assert said.splitlines() == ["1 0", "1 0"]
