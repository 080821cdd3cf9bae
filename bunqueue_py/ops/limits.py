"""The limits of queues and groups: set, cleared, looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..shard.group import Group
from ..shard.limiter import Limits
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .commit import keep_up
from .mark import mark_group, mark_queue
from .query import queue_of
from .recover import enter
from .tidy import ask_at


class LimitsView(NamedTuple):
    """What limits a queue, in milliseconds; the public form is `LimitStatus`."""

    concurrency: int | None
    active: int
    max: int | None
    per_ms: int
    ends_ms: int | None
    used: int
    cool_until_ms: int | None
    opens_ms: int | None


class GroupView(NamedTuple):
    """What a group has: waiting jobs by priority, running ones, whether it is paused."""

    pending: dict[int, int]
    active: int
    paused: bool


def set_concurrency(state: State, queue_name: str, group: str | None, bound: int | None) -> None:
    """At most `bound` jobs at once, of the queue or of its group; `None` ends the limit."""

    def change(limits: Limits, now: int) -> None:
        limits.concurrency = bound

    _change(state, queue_name, group, change)


def set_rate(
    state: State,
    queue_name: str,
    group: str | None,
    max_starts: int,
    per_ms: int,
    ttl_ms: int | None,
) -> None:
    """At most `max_starts` in any window of `per_ms`, for `ttl_ms` (`None`: until cleared)."""

    def change(limits: Limits, now: int) -> None:
        limits.set_window(max_starts, per_ms, None if ttl_ms is None else now + ttl_ms, now)

    _change(state, queue_name, group, change)


def clear_rate(state: State, queue_name: str, group: str | None) -> None:
    """Ends the rate limit of the queue or of its group."""
    _change(state, queue_name, group, lambda limits, now: limits.clear_window())


def cool_down(state: State, queue_name: str, group: str | None, duration_ms: int) -> None:
    """Nothing of the queue, or of its group, starts for that long; 0 ends it."""

    def change(limits: Limits, now: int) -> None:
        limits.cool_until_ms = now + duration_ms

    _change(state, queue_name, group, change)


def set_group_paused(state: State, queue_name: str, group: str, paused: bool) -> None:
    """Pauses or resumes one group."""

    def change(found: Group) -> None:
        found.paused = paused

    _change_group(state, queue_name, group, change)


def set_default(state: State, queue_name: str, worker: object, bound: int | None) -> None:
    """The concurrency that a running worker asks for every group without a limit of its own;
    `None` when it asks no longer."""
    queue = queue_of(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        groups = queue.need_groups()
        now = state.now()
        shard.gate = BROKEN
        if bound is None:
            groups.defaults.pop(worker, None)
        else:
            groups.defaults[worker] = bound
        groups.update_all(now)
        queue.wake(queue.ready_count, now)
        _mind_timer(state, queue, now)
        shard.gate = OPEN


def limits_of(state: State, queue_name: str) -> LimitsView:
    """What limits the queue now."""
    queue = queue_of(state, queue_name)
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        now, limits = state.now(), queue.limits or Limits()
        window = limits.live_window(now)
        return LimitsView(
            limits.concurrency,
            len(queue.active),
            None if window is None else window.max,
            0 if window is None else window.per_ms,
            limits.window_ends_ms,
            0 if window is None else window.max - window.room(now),
            limits.cool_until_ms if limits.cool_until_ms > now else None,
            limits.opens_ms(now),
        )


def group_of(state: State, queue_name: str, group: str) -> GroupView:
    """What the group has now; nothing, where there is no such group."""
    queue = queue_of(state, queue_name)
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        found = None if queue.groups is None else queue.groups.by_name.get(group)
        if found is None:
            return GroupView({}, 0, False)
        return GroupView(found.pending(), found.active, found.paused)


def group_names(state: State, queue_name: str) -> list[str]:
    """The names of the groups that have jobs or settings, sorted."""
    queue = queue_of(state, queue_name)
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        if queue.groups is None:
            return []
        now = state.now()
        return sorted(g.name for g in queue.groups.by_name.values() if not g.is_bare(now))


def _change(
    state: State, queue_name: str, group: str | None, change: Callable[[Limits, int], None]
) -> None:
    if group is not None:

        def change_group(found: Group) -> None:
            change(found.need_limits(), state.now())

        _change_group(state, queue_name, group, change_group)
        return
    queue = queue_of(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        limits = queue.limits or Limits()
        change(limits, now)
        queue.limits = None if limits.is_idle(now) else limits
        mark_queue(queue)
        queue.wake(queue.ready_count, now)
        _mind_timer(state, queue, now)
        shard.gate = OPEN
    ask_at(state, limits.ends_ms())
    keep_up(state)


def _change_group(
    state: State, queue_name: str, name: str, change: Callable[[Group], None]
) -> None:
    queue = queue_of(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        groups = queue.need_groups()
        group = groups.get(name)
        change(group)
        mark_group(queue, group)
        groups.settings_changed(group, now)
        queue.wake(len(group.ready), now)
        _mind_timer(state, queue, now)
        ends = None if group.limits is None else group.limits.ends_ms()
        shard.gate = OPEN
    ask_at(state, ends)
    keep_up(state)


def _mind_timer(state: State, queue: QueueState, now: int) -> None:
    """Has the head of the waiters set its timer anew, if there is something to wait for."""
    due = queue.next_due(now, state.wall())
    if due is not None:
        queue.waiters.due(due)
