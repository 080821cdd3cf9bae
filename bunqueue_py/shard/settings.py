"""The settings of a queue as storage keeps them, and back. Guarded."""

from __future__ import annotations

from typing import Any

from ..durations import MAX_DURATION_MS
from ..model.checks import checked_bool, checked_int, checked_name
from ..model.settings import (
    MAX_AUTO_RETRIES,
    MAX_LETTERS,
    MAX_STALLS,
    DlqSettings,
    StallSettings,
)
from ..model.window import MAX_PER_WINDOW
from .group import Group
from .keys import LIMIT
from .limiter import Limits
from .queue_state import QueueState

_Parts = dict[str, Any]


def settings_body(queue: QueueState) -> _Parts | None:
    """What is set for the queue, but for its groups, as something that JSON can hold; moments in
    timeline ms. `None` where nothing is."""
    body: _Parts = {}
    if queue.paused:
        body["paused"] = True
    if queue.limits is not None:
        body["limits"] = _limits_parts(queue.limits)
    if queue.stalls != StallSettings():
        body["stalls"] = list(queue.stalls)
    if queue.dead.settings != DlqSettings():
        body["dlq"] = list(queue.dead.settings)
    return body or None


def group_body(group: Group) -> _Parts | None:
    """The same of a group."""
    limits = {} if group.limits is None else _limits_parts(group.limits)
    return {"paused": group.paused, "limits": limits} if group.paused or limits else None


def restore_settings(queue: QueueState, body: _Parts) -> None:
    """Gives the queue, which has no jobs yet, the settings of that body. Raises `ValueError` and
    the like, with nothing changed, for one that no queue can have had: a file may be damaged, and
    what is out of its bounds would break the engine somewhere else."""
    paused = checked_bool(body.get("paused", False), "paused")
    limits = _limits(body["limits"]) if "limits" in body else None
    stalls = _stalls(*body["stalls"]) if "stalls" in body else queue.stalls
    dlq = _dlq(*body["dlq"]) if "dlq" in body else queue.dead.settings
    queue.paused, queue.limits = paused, limits
    queue.stalls, queue.dead.settings = stalls, dlq


def restore_group(queue: QueueState, name: str, body: _Parts) -> None:
    """Gives that group of the queue, which has no jobs yet, the settings of that body. Raises as
    `restore_settings` does."""
    checked_name(name, "group")
    paused = checked_bool(body["paused"], "paused")
    limits = _limits(body["limits"]) if body["limits"] else None
    groups = queue.need_groups()
    group = groups.get(name)
    group.paused, group.limits, group.stored = paused, limits, True
    if limits is not None and limits.is_bound:
        groups.bounded.add(name)


def _limits_parts(limits: Limits) -> _Parts:
    parts: _Parts = {}
    if limits.concurrency is not None:
        parts["concurrency"] = limits.concurrency
    if limits.cool_until_ms:
        parts["cool_until"] = limits.cool_until_ms
    if limits.window is not None:
        parts["max"], parts["per"] = limits.window.max, limits.window.per_ms
        parts["ends"] = limits.window_ends_ms
    return parts


def _limits(parts: _Parts) -> Limits:
    limits = Limits()
    concurrency = parts.get("concurrency")
    if concurrency is not None:
        limits.concurrency = checked_int(concurrency, "concurrency", 1, MAX_PER_WINDOW)
    limits.cool_until_ms = _moment(parts.get("cool_until", 0), "cool_until")
    if "max" in parts:
        limits.set_window(
            checked_int(parts["max"], "max", 1, MAX_PER_WINDOW),
            checked_int(parts["per"], "per", 1, MAX_DURATION_MS),
            None if parts["ends"] is None else _moment(parts["ends"], "ends"),
            0,
        )
    return limits


def _moment(value: object, option: str) -> int:
    return checked_int(value, option, 0, LIMIT - 1)


def _stalls(enabled: object, interval: object, max_stalls: object, grace: object) -> StallSettings:
    return StallSettings(
        checked_bool(enabled, "enabled"),
        checked_int(interval, "interval", 1, MAX_DURATION_MS),
        checked_int(max_stalls, "max_stalls", 0, MAX_STALLS),
        checked_int(grace, "grace", 0, MAX_DURATION_MS),
    )


def _dlq(
    auto_retry: object, interval: object, max_retries: object, max_age: object, max_entries: object
) -> DlqSettings:
    return DlqSettings(
        checked_bool(auto_retry, "auto_retry"),
        checked_int(interval, "retry_interval", 1, MAX_DURATION_MS),
        checked_int(max_retries, "max_retries", 0, MAX_AUTO_RETRIES),
        None if max_age is None else checked_int(max_age, "max_age", 1, MAX_DURATION_MS),
        checked_int(max_entries, "max_entries", 1, MAX_LETTERS),
    )
