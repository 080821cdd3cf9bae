"""The settings of a queue as storage keeps them, and back. Guarded."""

from __future__ import annotations

from typing import Any

from ..model.settings import DlqSettings, StallSettings
from .group import Group
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
    """Gives the queue, which has no jobs yet, the settings of that body."""
    queue.paused = bool(body.get("paused", False))
    if "limits" in body:
        queue.limits = _limits(body["limits"])
    if "stalls" in body:
        queue.stalls = StallSettings(*body["stalls"])
    if "dlq" in body:
        queue.dead.settings = DlqSettings(*body["dlq"])


def restore_group(queue: QueueState, name: str, body: _Parts) -> None:
    """Gives that group of the queue, which has no jobs yet, the settings of that body."""
    paused, limits = bool(body["paused"]), _limits(body["limits"]) if body["limits"] else None
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
    limits.concurrency = parts.get("concurrency")
    limits.cool_until_ms = parts.get("cool_until", 0)
    if "max" in parts:
        limits.set_window(parts["max"], parts["per"], parts["ends"], 0)
    return limits
