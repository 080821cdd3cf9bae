"""The options of a `Worker`, checked before it is anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..durations import shown, to_ms
from ..errors import ValidationError
from ..model.options import checked_int, checked_name
from ..model.window import MAX_PER_WINDOW, RateWindow
from ..types import Duration, RateLimit

MAX_CONCURRENCY = 10_000
MAX_PREFETCH = 1_000
LISTENERS_S = 1.0
"""How long a coroutine that closes a worker waits for its listeners."""
ErrorClasses = type[BaseException] | Sequence[type[BaseException]]

EVENTS = (
    "ready",
    "active",
    "completed",
    "failed",
    "progress",
    "stalled",
    "cancelled",
    "drained",
    "error",
    "closed",
)


def checked_options(
    name: object,
    concurrency: int,
    executor: object,
    lock_duration: Duration,
    heartbeat_interval: Duration | None,
    prefetch: Any,
    rate_limit: RateLimit | None,
    group_concurrency: int | None,
) -> dict[str, Any]:
    """What a crew takes of them: `concurrency`, `lease_ms`, `beat_ms`, `prefetch` (`None`: auto)
    and `window`. Raises `ValidationError` naming the option."""
    checked_int(concurrency, "concurrency", 1, MAX_CONCURRENCY)
    if executor not in ("thread", "process"):
        raise ValidationError(f'executor must be "thread" or "process", not {shown(executor)}')
    lease_ms = to_ms(lock_duration, "lock_duration", zero=False)
    beat_ms = _beat_ms(heartbeat_interval, lease_ms)
    if prefetch != "auto":
        checked_int(prefetch, 'prefetch, unless it is "auto",', 1, MAX_PREFETCH)
    window = None if rate_limit is None else _window(rate_limit)
    if group_concurrency is not None:
        checked_int(group_concurrency, "group_concurrency", 1, MAX_PER_WINDOW)
    if name is not None:
        checked_name(name, "name")
    return {
        "concurrency": concurrency,
        "lease_ms": lease_ms,
        "beat_ms": beat_ms,
        "prefetch": None if prefetch == "auto" else prefetch,
        "window": window,
    }


def _window(limit: RateLimit) -> RateWindow:
    if not isinstance(limit, RateLimit):
        raise ValidationError(f"rate_limit must be a RateLimit, not {shown(limit)}")
    checked_int(limit.max, "rate_limit: max", 1, MAX_PER_WINDOW)
    return RateWindow(limit.max, to_ms(limit.per, "rate_limit: per", zero=False))


def _beat_ms(interval: Duration | None, lease_ms: int) -> int:
    if interval is None:
        if lease_ms < 3:
            raise ValidationError(
                f"lock_duration must be at least 0.003 seconds, not {lease_ms / 1000:g}: "
                "a lock needs room for a heartbeat"
            )
        return lease_ms // 3
    beat_ms = to_ms(interval, "heartbeat_interval", zero=False)
    if beat_ms * 2 >= lease_ms:
        raise ValidationError(
            f"heartbeat_interval must be under half of lock_duration ({lease_ms / 1000:g} s), "
            f"not {shown(interval)}"
        )
    return beat_ms
