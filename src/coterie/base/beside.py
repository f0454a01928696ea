"""Data that lies beside a module of the same name, in a folder or an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import ResourceLoader
    from importlib.machinery import ModuleSpec


def text_beside(spec: ModuleSpec | None, ending: str) -> str:
    """Return the text of the file that has a module's name, with this ending instead of `.py`."""
    assert spec is not None
    assert spec.origin is not None
    loader = cast("ResourceLoader", spec.loader)
    return loader.get_data(spec.origin.removesuffix(".py") + ending).decode()
