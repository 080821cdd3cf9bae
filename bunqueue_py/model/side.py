"""What most jobs never have: history, progress, tags, retired tokens."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .failure import Failure


class AttemptRow(NamedTuple):
    """One failed run, in milliseconds."""

    attempt: int
    started_ms: int | None
    failed_ms: int
    failure: Failure


class Side:
    """What most jobs never have. `retired` holds (token, by a sweep?) of earlier deliveries."""

    __slots__ = (
        "anchored",
        "attempts",
        "dlq_retries",
        "failure",
        "group",
        "last_retry_ms",
        "progress",
        "progress_event_ms",
        "progress_message",
        "retired",
        "stall_count",
        "tags",
        "timeline",
    )

    def __init__(self) -> None:
        self.anchored = False
        self.attempts: tuple[AttemptRow, ...] = ()
        self.dlq_retries = 0
        self.failure: Failure | None = None
        self.group: str | None = None
        self.last_retry_ms: int | None = None
        self.progress: int | float = 0
        self.progress_event_ms: int | None = None
        self.progress_message: str | None = None
        self.retired: tuple[tuple[str, bool], ...] = ()
        self.stall_count = 0
        self.tags: tuple[str, ...] = ()
        self.timeline: deque[tuple[str, int]] | None = None


class SideView(NamedTuple):
    """An unchanging copy of a `Side`."""

    attempts: tuple[AttemptRow, ...]
    dlq_retries: int
    failure: Failure | None
    group: str | None
    last_retry_ms: int | None
    progress: int | float
    progress_message: str | None
    stall_count: int
    tags: tuple[str, ...]
    timeline: tuple[tuple[str, int], ...] | None


def side_view(side: Side) -> SideView:
    """The copy that snapshots hold."""
    return SideView(
        side.attempts,
        side.dlq_retries,
        side.failure,
        side.group,
        side.last_retry_ms,
        side.progress,
        side.progress_message,
        side.stall_count,
        side.tags,
        None if side.timeline is None else tuple(side.timeline),
    )
