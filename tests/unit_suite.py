"""The tests of another module, for a suite to run under its own fixtures."""

from __future__ import annotations

import importlib
from typing import Any


def load(name: str, suite: str = "unit") -> dict[str, Any]:
    """Everything in that module."""
    module = importlib.import_module(f"tests.{suite}.{name}")
    return {key: value for key, value in vars(module).items() if not key.startswith("__")}
