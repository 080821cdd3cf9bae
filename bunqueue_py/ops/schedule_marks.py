"""What of a scheduler is to be on disk, and when it is to be looked at. Its shard is held."""

from __future__ import annotations

from ..model.schedule import (
    PROGRESS_KIND,
    SCHEDULE_KIND,
    definition_body,
    progress_body,
    schedule_name,
)
from ..registry.schedules import Schedule
from ..shard.queue_state import QueueState
from ..state import State


def arm(state: State, schedule: Schedule, at_ms: int | None) -> None:
    """Has the scheduler looked at then, by the clock of its timing; `None`: not at all."""
    due = state.schedules.arm(schedule, at_ms)
    if due is not None and due < state.alarm.due_ms:
        state.alarm.set(max(due, state.now()))


def mark_schedule(state: State, queue: QueueState, schedule: Schedule) -> None:
    """The scheduler is new or another one."""
    dirty = queue.shard.dirty
    if dirty is not None:
        name = schedule_name(queue.name, schedule.id)
        dirty.keep(SCHEDULE_KIND, name, definition_body(schedule.definition))
        mark_progress(state, queue, schedule)


def mark_progress(state: State, queue: QueueState, schedule: Schedule) -> None:
    """The scheduler has come further."""
    dirty = queue.shard.dirty
    if dirty is not None:
        name = schedule_name(queue.name, schedule.id)
        dirty.keep(PROGRESS_KIND, name, progress_body(schedule.progress, state.now(), state.wall()))


def mark_gone(queue: QueueState, schedule: Schedule) -> None:
    """The scheduler is about to go."""
    dirty = queue.shard.dirty
    if dirty is not None:
        for kind in (SCHEDULE_KIND, PROGRESS_KIND):
            dirty.keep(kind, schedule_name(queue.name, schedule.id), None)


def set_anew(state: State, queue: QueueState) -> None:
    """An exception broke off a section of the queue's shard: its schedulers are where their
    progress says, in memory and on disk."""
    for schedule in state.schedules.of(queue.name):
        arm(state, schedule, schedule.progress.planned_ms)
        mark_schedule(state, queue, schedule)
