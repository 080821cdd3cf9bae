"""Schedulers: put in place, changed, removed, looked at. What they do is in `ops/fire.py`."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from ..durations import shown
from ..errors import CronError, SerializationError, ValidationError
from ..model.claim import AnyClaim
from ..model.options import JobSpec, Options
from ..model.own import Own
from ..model.schedule import (
    Definition,
    Progress,
    Scheduler,
    definition_from,
    option_parts,
    options_of,
    planned_moments,
    progress_from,
    scheduler_view,
)
from ..model.timing import CORRECTION_MS, Timing
from ..registry.schedules import Schedule, Template
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .commit import keep_up, refuse
from .draft import encode
from .push import find_queue
from .recover import check_open, enter
from .schedule_marks import arm, mark_gone, mark_progress, mark_schedule

_log = logging.getLogger("bunqueue_py.schedules")


def define(
    state: State,
    timing: Timing,
    limit: int | None,
    flags: tuple[bool, bool, bool, bool],
    job: JobSpec,
) -> tuple[Definition, Template]:
    """The checked definition, and what its jobs are made of. `flags` as in `Definition`. Raises
    `ValidationError` or `SerializationError`."""
    if not isinstance(job, JobSpec):
        raise ValidationError(f"job must be a JobSpec, not {shown(job)}")
    try:
        name = state.options.name(job.name)
        given = _resolved(state, job.options)
        parts = option_parts(job.options)
        data = encode(state, job.data, "data")
    except ValidationError as error:
        raise ValidationError(f"job: {error}") from error
    except SerializationError as error:
        raise SerializationError(f"job: {error}", path=error.path) from error
    return Definition(timing, limit, *flags, name, data, parts), Template(name, data, *given)


def _resolved(
    state: State, options: dict[str, Any]
) -> tuple[Options, int, Own | None, str | None, str | None, AnyClaim]:
    return state.options.resolve(dict(options), state.wall)


def upsert(
    state: State, queue_name: str, schedule_id: str, definition: Definition, template: Template
) -> Scheduler:
    """The queue has that scheduler. One of the same definition stays as it is; one of another goes
    on with this one from its next run, and keeps its count."""
    if state.storage is not None and state.storage.troubled:
        refuse(state, durable=False)
    queue = find_queue(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        schedule = state.schedules.find(queue_name, schedule_id)
        known = schedule is not None and schedule.definition == definition
        if schedule is None or not known:
            # first, since it may raise
            progress = _planned(state, schedule, definition)
            shard.gate = BROKEN
            if schedule is None:
                schedule = Schedule(queue, schedule_id, definition, template)
                state.schedules.add(schedule)
            schedule.definition, schedule.template = definition, template
            schedule.progress = progress
            mark_schedule(state, queue, schedule)
            arm(state, schedule, progress.planned_ms)
            shard.gate = OPEN
        view = _view(state, schedule)
    if not state.alarm.served:
        state.alarm.start()
    keep_up(state)
    return view


def _planned(state: State, schedule: Schedule | None, definition: Definition) -> Progress:
    """Where a scheduler that is new, or of another definition now, has its next run."""
    timing = definition.timing
    now = state.wall() if timing.by_wall else state.now()
    if schedule is None:
        return _first(definition, now)
    progress = schedule.progress
    if timing != schedule.definition.timing:
        first = _first(definition, now)
        last, before = progress.last_ms, schedule.definition.timing
        planned = first.planned_ms
        if last is not None and not (definition.immediately or timing.by_wall or before.by_wall):
            # of the same phase as before
            planned = timing.following(last, now)
        progress = progress._replace(planned_ms=planned, resume_ms=first.resume_ms)
    elif progress.planned_ms is None:
        progress = progress._replace(planned_ms=timing.next_ms(now))
    if definition.limit is not None and progress.runs >= definition.limit:
        progress = progress._replace(planned_ms=None, resume_ms=None)
    return progress


def _first(definition: Definition, now: int) -> Progress:
    timing = definition.timing
    first = timing.next_ms(now)
    if not definition.immediately:
        return Progress(first)
    second = None if first is None or not timing.by_wall else timing.next_ms(first)
    if first is not None and second is not None and (first - now) * 2 < second - first:
        # so near that the run of now is that one
        return Progress(now, first)
    return Progress(now, now)


def remove(state: State, queue_name: str, schedule_id: str) -> bool:
    """The queue has no such scheduler; jobs that it has added stay. Says whether it had one."""
    check_open(state)
    queue = state.queues.get(queue_name)
    if queue is None:
        return False
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        schedule = state.schedules.find(queue_name, schedule_id)
        if schedule is None:
            return False
        shard.gate = BROKEN
        mark_gone(queue, schedule)
        state.schedules.remove(schedule)
        shard.gate = OPEN
    keep_up(state)
    return True


def get(state: State, queue_name: str, schedule_id: str) -> Scheduler | None:
    """The scheduler as it is now; `None` if there is none."""
    check_open(state)
    schedule = state.schedules.find(queue_name, schedule_id)
    return None if schedule is None else _view(state, schedule)


def all_of(state: State, queue_name: str | None) -> list[Scheduler]:
    """Those of the queue (`None`: of all queues), by queue and id. One whose job's data cannot be
    decoded is left out, and logged; asked for by its id, it raises `SerializationError`."""
    check_open(state)
    found = []
    for schedule in state.schedules.of(queue_name):
        try:
            found.append(_view(state, schedule))
        except SerializationError as error:
            name = f"{schedule.queue.name}/{schedule.id}"
            _log.warning("scheduler %s is left out: %s", name, error)
    return found


def preview(state: State, queue_name: str, schedule_id: str, n: int) -> list[datetime] | None:
    """The next `n` moments, fewer where there are no more; `None` if there is no such scheduler."""
    check_open(state)
    schedule = state.schedules.find(queue_name, schedule_id)
    if schedule is None:
        return None
    return planned_moments(schedule.definition, schedule.progress, n)


def _view(state: State, schedule: Schedule) -> Scheduler:
    # both are replaced whole, so a reader needs no lock
    definition, progress = schedule.definition, schedule.progress
    return scheduler_view(schedule.queue.name, schedule.id, definition, progress, state.loads)


def stamps(bodies: dict[str, Any]) -> list[int]:
    """The moments of the timeline at which those bodies of progress were written."""
    return [b[0] for b in bodies.values() if isinstance(b, list) and b and type(b[0]) is int]


def restore_one(
    state: State, queue: QueueState, schedule_id: str, body: Any, come: Any, shift: int
) -> None:
    """Takes in a scheduler as the storage has it: its definition and how far it has come. `shift`
    is by how much all moments of the timeline move back. Raises `ValueError` and the like."""
    definition = definition_from(body)
    given = _resolved(state, options_of(definition.options))
    template = Template(state.options.name(definition.name), definition.data, *given)
    schedule = Schedule(queue, schedule_id, definition, template)
    timing, changed = definition.timing, come is None or bool(shift)
    if come is None:
        progress = _first(definition, state.wall() if timing.by_wall else state.now())
    else:
        progress, _, wall = progress_from(come)
        if progress.fired_ms is not None:
            progress = progress._replace(fired_ms=progress.fired_ms - shift)
        planned = progress.planned_ms
        if planned is None:
            pass
        elif not timing.by_wall:
            resume, last = progress.resume_ms, progress.last_ms
            planned = timing.folded(planned - shift, state.now())
            progress = progress._replace(
                planned_ms=planned,
                resume_ms=None if resume is None else planned,
                last_ms=None if last is None else last - shift,
            )
        elif state.wall() < wall - CORRECTION_MS:
            progress = progress._replace(planned_ms=timing.next_ms(state.wall()))
            changed = True
    try:
        if timing.by_wall:
            timing.next_ms(0)
    except (CronError, ValidationError) as error:
        # kept, and idle until it is put in place again where it can be read
        raise ValueError(str(error)) from error
    schedule.progress = progress
    state.schedules.add(schedule)
    if changed:
        mark_progress(state, queue, schedule)
    arm(state, schedule, progress.planned_ms)
