"""The syntax trees of our own sources, for the tests that read them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's tree, which nobody changes: it is parsed once.

    The garbage collector is off meanwhile: what it calls in between (Hypothesis measures it) is an error to
    CPython 3.11's parser now and then ("AST constructor recursion depth mismatch").
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if enabled:
            gc.enable()
