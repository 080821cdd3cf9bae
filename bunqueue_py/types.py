"""The small public values: states, reasons, counts, outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal

Duration = int | float | timedelta
"""Seconds (`int` or `float`) or a `timedelta`; rounded up to a millisecond."""


class AnyGroup(Enum):
    """The type of `ANY`."""

    ANY = "any group or none"


ANY = AnyGroup.ANY
"""Where a group is asked for: ungrouped jobs and those of every group."""

GroupChoice = str | AnyGroup | None


class JobState(str, Enum):
    """Where a job is. Members are strings: `JobState.WAITING == "waiting"`."""

    WAITING = "waiting"
    PRIORITIZED = "prioritized"
    DELAYED = "delayed"
    WAITING_CHILDREN = "waiting-children"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    PAUSED = "paused"
    UNKNOWN = "unknown"

    __str__ = str.__str__


class FailureReason(str, Enum):
    """Why a job failed for good. Members are strings."""

    MAX_ATTEMPTS_EXCEEDED = "max_attempts_exceeded"
    UNRECOVERABLE = "unrecoverable"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    WORKER_LOST = "worker_lost"
    TTL_EXPIRED = "ttl_expired"
    DEPENDENCY_FAILED = "dependency_failed"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    UNDECODABLE = "undecodable"
    UNKNOWN = "unknown"

    __str__ = str.__str__


@dataclass(frozen=True)
class JobCounts:
    """How many jobs are in each state; `paused` are the ready jobs of paused queues.

    >>> JobCounts(waiting=2, active=1).total
    3
    """

    waiting: int = 0
    prioritized: int = 0
    delayed: int = 0
    waiting_children: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    paused: int = 0

    @property
    def total(self) -> int:
        """The sum over all states."""
        return (
            self.waiting
            + self.prioritized
            + self.delayed
            + self.waiting_children
            + self.active
            + self.completed
            + self.failed
            + self.paused
        )


@dataclass(frozen=True)
class Outcome:
    """What an `ack` or `fail` did. `reason` is `None` when it was applied, else
    `lock_lost`, `already_finalized` or `gone`; `unserializable` where the result could not be
    encoded and the job has failed for that; in batches `not_issued` for what would have been a
    `LockError`."""

    applied: bool
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class KeepJobs:
    """Retention of one finished job. `count`: the queue keeps its newest `count` finished jobs
    that carry a count (0 to 1,000,000); `age`: this job is removed that long after it finished.

    >>> KeepJobs(count=100, age=3600)
    KeepJobs(count=100, age=3600)
    """

    count: int | None = None
    age: Duration | None = None

    def _exactly(self) -> tuple[object, ...]:
        # with the types: settings are shared by equality, and True == 1 is not equally welcome
        return type(self.count), self.count, type(self.age), self.age

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeepJobs) and self._exactly() == other._exactly()

    def __hash__(self) -> int:
        return hash(self._exactly())


@dataclass(frozen=True, eq=False)
class Repeat:
    """Has each success of a job plan its next run, as a new job: `every` so long, from run to run
    along the timeline, or when `cron` says in the zone `tz`. What is past is passed over.

    The first run is like that of any job: at once, after its `delay`, at its `run_at`, but not
    before `start`. `limit`: runs in all, 1 or more (`None`: no bound). `end`: nothing is planned
    after it. A run that fails for good ends it; a retry of that goes on with it.

    >>> Repeat(every=3600, limit=24).every
    3600
    """

    every: Duration | None = None
    cron: str | None = None
    tz: str = "UTC"
    limit: int | None = None
    start: datetime | None = None
    end: datetime | None = None

    def _exactly(self) -> tuple[object, ...]:
        # with the types: settings are shared by equality, and True == 1 is not equally welcome
        values = (self.every, self.cron, self.tz, self.limit, self.start, self.end)
        return (*values, *map(type, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repeat) and self._exactly() == other._exactly()

    def __hash__(self) -> int:
        return hash(self._exactly())


DEFAULT_MODE: Literal["skip"] = "skip"
DEFAULT_HOLD: Literal["live"] = "live"


class Deduplication:
    """A key that one job of a queue owns at a time; checked where it is used.

    `ttl`: the key is free that long after it was taken, at the latest. `mode`: what an add does
    while the key is taken: "skip" returns its owner, "extend" also counts its ttl anew, "replace"
    puts the new job in the place of a pending owner. `hold`: "live" frees the key when its owner
    ends, "ttl" only when the ttl has passed.

    >>> Deduplication("report-7", ttl=60).mode
    'skip'
    """

    # neither a dataclass nor a named tuple: nearly every job with a key brings one of its own,
    # and their constructors cost half as much again
    __slots__ = ("_terms",)
    __match_args__ = ("key", "ttl", "mode", "hold")

    def __init__(
        self,
        key: str,
        ttl: Duration | None = None,
        mode: Literal["skip", "extend", "replace"] = DEFAULT_MODE,
        hold: Literal["live", "ttl"] = DEFAULT_HOLD,
    ) -> None:
        self._terms = (key, ttl, mode, hold)

    @property
    def key(self) -> str:
        """The key."""
        return self._terms[0]

    @property
    def ttl(self) -> Duration | None:
        """How long the key stays taken at most; `None` for no bound."""
        return self._terms[1]

    @property
    def mode(self) -> Literal["skip", "extend", "replace"]:
        """What an add does while the key is taken."""
        return self._terms[2]

    @property
    def hold(self) -> Literal["live", "ttl"]:
        """What frees the key."""
        return self._terms[3]

    def __repr__(self) -> str:
        key, ttl, mode, hold = self._terms
        return f"Deduplication(key={key!r}, ttl={ttl!r}, mode={mode!r}, hold={hold!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deduplication) and self._terms == other._terms

    def __hash__(self) -> int:
        return hash(self._terms)

    def __reduce__(self) -> tuple[object, ...]:
        return Deduplication, self._terms


@dataclass(frozen=True)
class RateLimit:
    """At most `max` starts (1 to 100,000) in any window of `per`."""

    max: int
    per: Duration = 1


@dataclass(frozen=True)
class BatchOptions:
    """A worker's handler is called with up to `size` jobs (2 to 10,000) at once; it waits up to
    `max_wait` for a batch to fill once it has the first."""

    size: int
    max_wait: Duration = 0


@dataclass(frozen=True)
class Recycle:
    """When a worker's process is replaced by a fresh one: after `jobs` runs (1 to 10**9), or once
    it takes more than `memory_mib` (1 to 10**6), looked at after each run; `None`: never."""

    jobs: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True)
class LimitStatus:
    """What limits a queue now. `used` are the starts in the window that ends now; `opens_at` is
    when time alone makes room, `None` where it is not time that is waited for."""

    concurrency: int | None
    active: int
    rate_limit: RateLimit | None
    rate_limit_ends_at: datetime | None
    used: int
    cooling_until: datetime | None
    opens_at: datetime | None


@dataclass(frozen=True)
class Attempt:
    """One run of a job that did not succeed. `duration` in seconds."""

    attempt: int
    started_at: datetime | None
    failed_at: datetime
    reason: str
    error: str
    duration: float | None


@dataclass(frozen=True)
class TimelineEntry:
    """One step of a job's life: what it entered, and when."""

    state: str
    at: datetime


@dataclass(frozen=True)
class StallConfig:
    """How a queue finds runs that were lost; durations in seconds, `max_stalls` 0 means no bound.

    >>> StallConfig().interval
    30.0
    """

    enabled: bool = True
    interval: float = 30.0
    max_stalls: int = 3
    grace: float = 5.0


@dataclass(frozen=True)
class DlqConfig:
    """How a queue keeps its dead letters; durations in seconds, `max_age=None` means for good.

    >>> DlqConfig().max_age == 7 * 86_400
    True
    """

    auto_retry: bool = False
    retry_interval: float = 3600.0
    max_retries: int = 3
    max_age: float | None = 604_800.0
    max_entries: int = 10_000


@dataclass(frozen=True)
class DlqStats:
    """The dead letters of a queue in numbers. `by_reason` maps a `FailureReason` to how many have
    it, the most frequent first; `retriable` counts those that have an automatic retry ahead,
    `retried` those that have been retried before; `oldest` and `newest` are when the first and
    the last of them entered."""

    total: int
    by_reason: dict[str, int]
    retriable: int
    retried: int
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True)
class Report:
    """What `verify` found in a file. `ok` is whether there are no `problems`; `jobs` is `None`
    where they cannot be counted, `schema_version` where it cannot be read. `file_bytes` is the
    size of the file, `log_bytes` that of the log beside it, which belongs to it."""

    ok: bool
    problems: tuple[str, ...]
    jobs: JobCounts | None
    file_bytes: int
    log_bytes: int
    schema_version: int | None
