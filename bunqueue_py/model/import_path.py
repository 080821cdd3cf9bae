"""Functions of the application that are kept by where they can be imported from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..durations import shown
from ..errors import ValidationError


class ByPath:
    """A function known by its path, `module:qualified.name`; imported when it is first called.

    A path that leads nowhere any more raises `ImportError` or `AttributeError` then.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *arguments: Any) -> Any:
        return _found(self.path)(*arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByPath) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"<the function {self.path}>"


def import_path(fn: Callable[..., Any]) -> str | None:
    """The path by which a later process finds this very function; `None` if there is none, as for
    a lambda, a function inside a function or a method of an instance."""
    if isinstance(fn, ByPath):
        return fn.path
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    path = f"{module}:{name}"
    try:
        same = _found(path) is fn
    except Exception:  # importing runs code of the application's, and a path may be any text
        return None
    return path if same else None


def checked_importable(fn: Callable[..., Any], option: str) -> None:
    """Raises `ValidationError` for a function that cannot be kept by its path."""
    if import_path(fn) is None:
        raise ValidationError(
            f"{option} must be a function at the top of a module (or a static method), so that the "
            f"file can keep it by its name; {shown(fn)} cannot be found that way. A lambda or a "
            "function inside a function serves only where everything is kept in memory"
        )


def _found(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module) or import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
