"""Checks of arguments that several calls share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..durations import shown
from ..errors import ValidationError


def checked_iterable(value: Any, option: str) -> Iterable[Any]:
    """The value if it can be iterated over and is no text."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise ValidationError(f"{option} must be an iterable, not {shown(value)}")
    return value  # type: ignore[no-any-return]
