"""The settings of a manager, validated at construction."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from .durations import shown
from .errors import ValidationError
from .serializers import JsonSerializer, Serializer

MAX_SHARDS = 64
_MIB = 1024 * 1024


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
