"""The settings of a manager, validated at construction."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .durations import MAX_DURATION_MS, shown, to_ms
from .errors import ValidationError
from .serializers import JsonSerializer, Serializer
from .types import Duration

MAX_SHARDS = 64
_MIB = 1024 * 1024
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_DURATIONS = {
    "stall_check_interval": (1_000, 60_000),
    "cleanup_interval": (1_000, _HOUR_MS),
    "dependency_fallback": (1_000, _HOUR_MS),
    "worker_stale_after": (1_000, _DAY_MS),
    "worker_removed_after": (1_000, 7 * _DAY_MS),
    "task_retry_delay": (100, _HOUR_MS),
    "circuit_retry_delay": (100, _DAY_MS),
    "check_interval": (1_000, _HOUR_MS),
    "queue_idle_after": (1_000, 365 * _DAY_MS),
    "worker_saturated_after": (1_000, 365 * _DAY_MS),
    "scheduler_late_after": (100, _DAY_MS),
    "handler_overdue_after": (0, _DAY_MS),
}
"""The least and the most of each duration, in ms."""


class Periods(NamedTuple):
    """The durations of a `ManagerConfig`, in ms, under their names there."""

    stall_check_interval: int
    cleanup_interval: int
    dependency_fallback: int
    worker_stale_after: int
    worker_removed_after: int
    task_retry_delay: int
    circuit_retry_delay: int
    check_interval: int
    queue_idle_after: int
    worker_saturated_after: int
    scheduler_late_after: int
    handler_overdue_after: int
    empty_queue_after: int | None


@dataclass(frozen=True)
class ManagerConfig:
    """How a `QueueManager` encodes, bounds and spreads what it holds.

    `serializer`: how data and results are encoded. `max_data_bytes`: the longest encoded payload
    or result, 1 to 1 GiB. `keep_completed`: how many completed jobs stay readable, 0 to
    100,000,000, `None` without bound: on a file it keeps all of them, and memory lets those beyond
    `max_completed_bytes` go to it. `max_completed_bytes`: how many bytes of payload and result
    they may hold in memory, and once more what results may hold. `keep_results`: how many results
    stay in memory (a file has those of all jobs that it has), 0 to 100,000,000.
    `keep_logs_jobs`: of how many jobs the log is kept, 0 to 1,000,000; those that wrote last.
    `completed_metrics_days`: for how many days completed and failed jobs are counted by the minute,
    0 to 366. `measure_times`: whether push, pull and ack, and the waits and runs of jobs, are
    timed, for `stats()` and `metrics`. `allow_private_webhooks`: whether webhooks may lead to
    addresses that are not public. `tracing`: whether OpenTelemetry spans are made for adding and
    processing jobs, by the global `TracerProvider` (`True`) or the one that is given.
    `max_timeline`: steps kept of a job's timeline, 1 to 1,000. `shards`: a power of two from 1 to
    64, `None` for the smallest that is no less than the CPU count.

    What happens in the background, in seconds or `timedelta`. `stall_check_interval` (1 to 60 s):
    so long a silent run without a lock may still speak up once it is suspected; a pass later than
    half of it judges nobody. `cleanup_interval` (1 s to 1 h): how soon after a need for it the
    clean-up comes; `stale_share` (0.05 to 0.9): the part of an index that may be stale before it
    sweeps; `empty_queue_after` (1 min to 36,500 days; `None`: never): when a queue that nothing
    is in, set for or waiting for is let go. `dependency_fallback` (1 s to 1 h): when what a
    finished job means for others is applied, should the thread that was at it have been broken off.
    `worker_stale_after` and `worker_removed_after` (1 s to 1 day, 7 days): for how long a worker
    may be silent. `task_retry_delay` (0.1 s to 1 h): the wait after the first failure of a
    background task, doubling; `circuit_failures` (1 to 1,000): after so many in a row its circuit
    opens, and it is tried every `circuit_retry_delay` (0.1 s to 1 day).

    When listeners hear `health` events: `check_interval` (1 s to 1 h): how soon the checks look;
    `queue_idle_after` (1 s to 365 days): jobs are ready, and none has started for that long;
    `queue_size_alarm` (1 to 100,000,000): more jobs than that are pending in one queue;
    `worker_saturated_after` (1 s to 365 days): a worker has had all hands full for that long,
    with more jobs waiting; `listener_backlog_alarm` (1 to 100,000): more events than that are
    buffered for one listener; `scheduler_late_after` (0.1 s to 1 day): the background thread comes
    so much later than it should; `handler_overdue_after` (0 to 1 day): a handler still runs that
    long after its run was ended.

    Raises `ValidationError` naming the field, `TypeError` for an unknown one.

    >>> ManagerConfig(keep_completed=100).keep_completed
    100
    """

    serializer: Serializer = field(default_factory=JsonSerializer)
    max_data_bytes: int = 10 * _MIB
    keep_completed: int | None = 50_000
    max_completed_bytes: int = 256 * _MIB
    keep_results: int = 10_000
    keep_logs_jobs: int = 10_000
    completed_metrics_days: int = 14
    measure_times: bool = False
    allow_private_webhooks: bool = False
    tracing: Any = False
    max_timeline: int = 20
    shards: int | None = None
    stall_check_interval: Duration = 5
    cleanup_interval: Duration = 10
    dependency_fallback: Duration = 30
    stale_share: float = 0.2
    empty_queue_after: Duration | None = 3_600
    worker_stale_after: Duration = 30
    worker_removed_after: Duration = 90
    task_retry_delay: Duration = 1
    circuit_failures: int = 5
    circuit_retry_delay: Duration = 60
    check_interval: Duration = 10
    queue_idle_after: Duration = 300
    queue_size_alarm: int = 100_000
    worker_saturated_after: Duration = 60
    listener_backlog_alarm: int = 10_000
    scheduler_late_after: Duration = 5
    handler_overdue_after: Duration = 5

    def __post_init__(self) -> None:
        if isinstance(self.serializer, type):
            raise ValidationError(
                f"serializer must be an object, not a class: {shown(self.serializer)}; "
                "make one with ()"
            )
        for part in ("dumps", "loads", "name"):
            if not hasattr(self.serializer, part):
                raise ValidationError(
                    f"serializer must have name, dumps and loads; {shown(self.serializer)} "
                    f"has no {part}"
                )
        name = self.serializer.name
        # a file remembers it, and by it refuses another one
        if not (isinstance(name, str) and 0 < len(name) <= 256 and name.isprintable()):
            raise ValidationError(
                "a serializer's name must be printable text of 1 to 256 characters, not "
                f"{shown(name)}"
            )
        _in_bounds("max_data_bytes", self.max_data_bytes, 1, 1024 * _MIB)
        if self.keep_completed is not None:
            _in_bounds("keep_completed", self.keep_completed, 0, 100_000_000)
        _in_bounds("max_completed_bytes", self.max_completed_bytes, 0, 1 << 50)
        _in_bounds("keep_results", self.keep_results, 0, 100_000_000)
        _in_bounds("keep_logs_jobs", self.keep_logs_jobs, 0, 1_000_000)
        _in_bounds("completed_metrics_days", self.completed_metrics_days, 0, 366)
        _flag("measure_times", self.measure_times)
        _flag("allow_private_webhooks", self.allow_private_webhooks)
        if type(self.tracing) is not bool and not hasattr(self.tracing, "get_tracer"):
            raise ValidationError(
                "tracing must be True, False or an OpenTelemetry TracerProvider, "
                f"not {shown(self.tracing)}"
            )
        _in_bounds("max_timeline", self.max_timeline, 1, 1_000)
        if self.shards is not None:
            _in_bounds("shards", self.shards, 1, MAX_SHARDS)
            if self.shards & (self.shards - 1):
                raise ValidationError(
                    f"shards must be a power of two from 1 to {MAX_SHARDS}, not {self.shards}"
                )
        _in_bounds("circuit_failures", self.circuit_failures, 1, 1_000)
        _in_bounds("queue_size_alarm", self.queue_size_alarm, 1, 100_000_000)
        _in_bounds("listener_backlog_alarm", self.listener_backlog_alarm, 1, 100_000)
        share = self.stale_share
        if type(share) not in (int, float) or not 0.05 <= share <= 0.9:
            raise ValidationError(
                f"stale_share must be a number from 0.05 to 0.9, not {shown(share)}"
            )
        periods = self.periods()
        if periods.worker_removed_after <= periods.worker_stale_after:
            raise ValidationError(
                "worker_removed_after must be more than worker_stale_after "
                f"({shown(self.worker_stale_after)}), not {shown(self.worker_removed_after)}"
            )

    def periods(self) -> Periods:
        """The durations in milliseconds."""
        found = {
            name: _duration(name, getattr(self, name), low, high)
            for name, (low, high) in _DURATIONS.items()
        }
        after = self.empty_queue_after
        empty = (
            None
            if after is None
            else _duration("empty_queue_after", after, 60_000, MAX_DURATION_MS)
        )
        return Periods(**found, empty_queue_after=empty)

    def shard_count(self) -> int:
        """The number of shards to make."""
        if self.shards is not None:
            return self.shards
        return min(MAX_SHARDS, 1 << ((os.cpu_count() or 1) - 1).bit_length())


def _flag(name: str, value: object) -> None:
    if type(value) is not bool:
        raise ValidationError(f"{name} must be True or False, not {shown(value)}")


def _in_bounds(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ValidationError(f"{name} must be an int from {low:,} to {high:,}, not {shown(value)}")


def _duration(name: str, value: Duration, low: int, high: int) -> int:
    ms = to_ms(value, name)
    if not low <= ms <= high:
        raise ValidationError(
            f"{name} must be from {low / 1000:,g} to {high / 1000:,g} seconds, not {shown(value)}"
        )
    return ms
