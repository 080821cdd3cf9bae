"""The levels of a line in a job's log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from ..durations import shown
from ..errors import ValidationError
from .failure import bounded

LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_TEXT = 10_000
"""Characters of a line."""


class LogEntry(NamedTuple):
    """One line of a job's log: its level, when it was written, and its text."""

    level: str
    at: datetime
    text: str


class LogPage(NamedTuple):
    """Some lines of a job's log, oldest first. `total` is how many the job has ever written, of
    which the newest 100 are kept."""

    entries: Sequence[LogEntry]
    total: int


def checked_line(text: object, level: object) -> tuple[str, str]:
    """The text, bounded and with what is no valid text escaped, and the level."""
    if not isinstance(text, str):
        raise ValidationError(f"text must be text, not {shown(text)}")
    if level not in LEVELS or not isinstance(level, str):
        raise ValidationError(f"level must be among {', '.join(LEVELS)}, not {shown(level)}")
    return bounded(text, MAX_TEXT), level
