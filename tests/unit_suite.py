"""The tests of a module of `tests/unit`, for another suite to run under its own fixtures."""

from __future__ import annotations

import importlib
from typing import Any


def load(name: str) -> dict[str, Any]:
    """Everything in that module."""
    module = importlib.import_module(f"tests.unit.{name}")
    return {key: value for key, value in vars(module).items() if not key.startswith("__")}
