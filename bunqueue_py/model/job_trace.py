"""The context of a trace, as a job carries it."""

from __future__ import annotations

from typing import Any

TRACE = "trace context"
"""What hands the context on among a job's options; no keyword argument can be called so."""
MAX_TRACE = 4_096


def checked_trace(value: Any) -> str | None:
    """The context if it is a short text, as tracing makes it."""
    if value is None or (isinstance(value, str) and len(value) <= MAX_TRACE):
        return value
    raise TypeError(f"unknown job option {TRACE!r}")
