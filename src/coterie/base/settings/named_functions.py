"""Functions that users name in their settings, as `package.module:function`."""

import importlib
from collections.abc import Callable
from typing import Any


def function_named(text: str) -> Callable[..., Any]:
    """Return the function of a name; raises LookupError, whose words say what is wrong with it."""
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise LookupError(f"{text!r} names no function: write package.module:function")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"{text!r} is not there: {error}; is it on the path of this Python?") from error
    if not callable(found):
        raise LookupError(f"{text!r} is no function, but {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # callable() says so
