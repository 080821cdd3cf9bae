"""What most jobs never have: history, progress, tags, retired tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

from .failure import Failure
from .links import Links, LinksView


class AttemptRow(NamedTuple):
    """One failed run, in milliseconds."""

    attempt: int
    started_ms: int | None
    failed_ms: int
    failure: Failure


class Letter:
    """What the dead letters know of a job, from its first entry on, over automatic retries.

    `since_ms`: when it entered; `expires_ms` and `next_retry_ms`: its moments in the shard's
    deadlines, `None` where it has none or is not among the dead letters now; `auto_retries`: how
    often it has been retried by itself since.
    """

    __slots__ = ("auto_retries", "expires_ms", "next_retry_ms", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.auto_retries = 0
        self.expires_ms: int | None = None
        self.next_retry_ms: int | None = None


class LetterView(NamedTuple):
    """An unchanging copy of the moments of a `Letter`."""

    since_ms: int
    expires_ms: int | None
    next_retry_ms: int | None


class Side:
    """What most jobs never have. `retired` holds (token, by a sweep?) of earlier deliveries.

    `view` is the copy of one that has nothing but a group yet, the same for all jobs of that group,
    or nothing but a parent: it holds while there is no timeline, with which all history begins, and
    no progress. `timeline` are the steps of a job of which there is more to tell than its moments
    do; an integer says that it came in to wait for others, and when it was let go (`WAITS_YET`: it
    was not). `common` is the row of one that the children of a parent have in common: who gives
    a job something of its own gives it a twin of that first (`JobRecord.need_side`).
    """

    __slots__ = (
        "anchored",
        "attempts",
        "common",
        "dlq_retries",
        "failure",
        "group",
        "last_retry_ms",
        "letter",
        "links",
        "progress",
        "progress_event_ms",
        "progress_message",
        "retired",
        "stall_count",
        "tags",
        "timeline",
        "trace",
        "view",
    )

    def __init__(self) -> None:
        self.anchored = False
        self.attempts: tuple[AttemptRow, ...] = ()
        self.common: tuple[Any, ...] | None = None
        self.dlq_retries = 0
        self.failure: Failure | None = None
        self.group: str | None = None
        self.last_retry_ms: int | None = None
        self.letter: Letter | None = None
        self.links: Links | None = None
        self.progress: int | float = 0
        self.progress_event_ms: int | None = None
        self.progress_message: str | None = None
        self.retired: tuple[tuple[str, bool], ...] = ()
        self.stall_count = 0
        self.tags: tuple[str, ...] = ()
        #: never changed in place: snapshots and rows have it too
        self.timeline: tuple[tuple[str, int], ...] | int | None = None
        #: the context of the trace in which it was added, where that is traced
        self.trace: str | None = None
        self.view: SideView | None = None

    def twin(self) -> Side:
        """Another that has nothing but its ties, as this one, and is one job's own."""
        made = Side()
        made.links = self.links
        return made


class SideView(NamedTuple):
    """An unchanging copy of a `Side`."""

    attempts: tuple[AttemptRow, ...]
    dlq_retries: int
    failure: Failure | None
    group: str | None
    last_retry_ms: int | None
    letter: LetterView | None
    progress: int | float
    progress_message: str | None
    stall_count: int
    tags: tuple[str, ...]
    timeline: tuple[tuple[str, int], ...] | int | None
    trace: str | None
    links: LinksView | None


_new = tuple.__new__
"""What the constructor of a named tuple calls in the end, at two thirds of its cost."""


def side_view(side: Side) -> SideView:
    """The copy that snapshots hold."""
    if side.view is not None and side.timeline is None:
        return side.view
    return _new(
        SideView,
        (
            side.attempts,
            side.dlq_retries,
            side.failure,
            side.group,
            side.last_retry_ms,
            None if side.letter is None else _letter_view(side.letter),
            side.progress,
            side.progress_message,
            side.stall_count,
            side.tags,
            side.timeline,
            side.trace,
            None if side.links is None else side.links.view(),
        ),
    )


def _letter_view(letter: Letter) -> LetterView:
    return LetterView(letter.since_ms, letter.expires_ms, letter.next_retry_ms)
