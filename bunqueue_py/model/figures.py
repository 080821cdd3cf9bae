"""The figures that `stats()` and `metrics()` tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ..durations import shown
from ..errors import ValidationError
from ..types import JobCounts

ENDINGS = ("completed", "failed")


def checked_ending(kind: object) -> int:
    """Which of `ENDINGS` that is. Raises `ValidationError`."""
    if kind not in ENDINGS:
        raise ValidationError(f"kind must be 'completed' or 'failed', not {shown(kind)}")
    return ENDINGS.index(str(kind))


class Totals(NamedTuple):
    """How many jobs were added, completed, and failed for good, since the manager was opened."""

    added: int = 0
    completed: int = 0
    failed: int = 0


class Throughput(NamedTuple):
    """Jobs a second: moving averages over ticks of a second, of which each weighs 0.3. What was
    added since a job of the queue last ended counts as spread evenly over that time."""

    added: float = 0.0
    completed: float = 0.0
    failed: float = 0.0


@dataclass(frozen=True)
class MinuteCount:
    """How many jobs ended within the minute that begins at `at`."""

    at: datetime
    count: int


@dataclass(frozen=True)
class Latency:
    """How long something took, in seconds. The quantiles come out of buckets that double, so each
    is right to within a factor of two."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float


class QueueStats(NamedTuple):
    """One queue: its jobs by state, whether it is paused, its totals and its throughput."""

    counts: JobCounts
    paused: bool
    totals: Totals
    throughput: Throughput


class StorageStats(NamedTuple):
    """How writing goes. `lag` is the age of the oldest change that is not on disk, in seconds;
    `error` is `None` while all is well; `commits` and `rows_written` count from the start."""

    lag: float
    rows_waiting: int
    commits: int
    rows_written: int
    log_bytes: int
    error: str | None


class ListenerBuffer(NamedTuple):
    """The buffer of one listener: its name, which is that of its thread if it has one, how many
    events wait in it, and how many it has lost."""

    name: str
    backlog: int
    lost: int


@dataclass(frozen=True)
class ListenerStats:
    """Those who hear events: how many there are, how many events wait to be delivered, how many
    were lost because a listener was too slow (those that have left too), and `each` of them: the
    subscriptions, the callbacks and the iterators of `QueueEvents`, the webhooks together."""

    count: int = 0
    backlog: int = 0
    lost: int = 0
    each: tuple[ListenerBuffer, ...] = ()


@dataclass(frozen=True)
class ManagerStats:
    """What a manager does and holds, read queue by queue, each in its own moment.

    `times` has a `Latency` of "push", "pull" (without the wait), "ack", and of the "wait" and
    "run" of jobs; it is empty unless `ManagerConfig(measure_times=True)` has them measured.
    `storage` is `None` in memory. `memory` says how many entries each collection has, and how many
    bytes where its name ends so.
    """

    at: datetime
    counts: JobCounts
    totals: Totals
    throughput: Throughput
    queues: dict[str, QueueStats] = field(default_factory=dict)
    times: dict[str, Latency] = field(default_factory=dict)
    storage: StorageStats | None = None
    memory: dict[str, int] = field(default_factory=dict)
    listeners: ListenerStats = field(default_factory=ListenerStats)
