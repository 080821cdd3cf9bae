"""Push: a job comes in."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ..durations import shown
from ..errors import SerializationError, ValidationError
from ..model.job import ACTIVE, JobRecord, JobSnapshot
from ..model.options import MAX_BATCH, JobSpec, Own, checked_queue_name
from ..shard.deadlines import TTL
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import JobState
from .finish import emit, forget
from .recover import enter

_WAITING, _PRIORITIZED, _DELAYED = JobState.WAITING, JobState.PRIORITIZED, JobState.DELAYED


def find_queue(state: State, name: object) -> QueueState:
    """The queue of that name, made and checked if it is new."""
    checked = checked_queue_name(name)
    queue, made = state.shards.queue(state.queues, checked)
    if made and state.events.any:
        with queue.lock:
            emit(state, queue, "queue_created", None, state.now())
    return queue


def encode(state: State, data: Any, what: str) -> bytes:
    """The encoded value, within `max_data_bytes`."""
    encoded = state.dumps(data)
    if len(encoded) > state.config.max_data_bytes:
        raise SerializationError(
            f"{what} takes {len(encoded):,} bytes; the bound max_data_bytes is "
            f"{state.config.max_data_bytes:,}. Keep large data elsewhere and pass its name"
        )
    return encoded


def push(
    state: State, queue_name: str, data: Any, name: str, options: dict[str, Any]
) -> JobSnapshot:
    """Admits one job, or finds the live one of its custom id."""
    try:
        queue = state.queues[queue_name]
    except (KeyError, TypeError):
        queue = find_queue(state, queue_name)
    record, own = _draft(state, queue, name, data, options)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        admitted, job_state = _admit(state, queue, record, own, now)
        job = state.snapshot(admitted, job_state, admitted is not record)
        shard.gate = OPEN
    if not state.alarm.served and record.options.ttl_ms is not None:
        state.alarm.start()
    return job


def push_batch(
    state: State, queue_name: str, specs: Iterable[JobSpec | tuple[str, Any]]
) -> list[JobSnapshot]:
    """Admits all, in order, in one hold of the lock; what is invalid refuses the batch whole,
    naming `jobs[i]`."""
    try:
        queue = state.queues[queue_name]
    except (KeyError, TypeError):
        queue = find_queue(state, queue_name)
    drafts = []
    for i, spec in enumerate(islice(specs, MAX_BATCH + 1)):
        if i == MAX_BATCH:
            raise ValidationError(f"a batch takes at most {MAX_BATCH:,} jobs")
        drafts.append(_draft_spec(state, queue, spec, i))
    shard = queue.shard
    jobs, snapshot = [], state.snapshot
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        for record, own in drafts:
            admitted, job_state = _admit(state, queue, record, own, now)
            jobs.append(snapshot(admitted, job_state, admitted is not record))
        shard.gate = OPEN
    if not state.alarm.served:
        state.alarm.start()
    return jobs


def _draft_spec(
    state: State, queue: QueueState, spec: JobSpec | tuple[str, Any], i: int
) -> tuple[JobRecord, Own | None]:
    try:
        if isinstance(spec, JobSpec):
            return _draft(state, queue, spec.name, spec.data, dict(spec.options))
        if isinstance(spec, tuple) and len(spec) == 2:
            return _draft(state, queue, spec[0], spec[1], {})
    except ValidationError as error:
        raise ValidationError(f"jobs[{i}]: {error}") from error
    except SerializationError as error:
        raise SerializationError(f"jobs[{i}]: {error}", path=error.path) from error
    except TypeError as error:
        raise TypeError(f"jobs[{i}]: {error}") from error
    raise ValidationError(f"jobs[{i}] must be a JobSpec or a (name, data) pair, not {shown(spec)}")


def _draft(
    state: State, queue: QueueState, name: str, data: Any, options: dict[str, Any]
) -> tuple[JobRecord, Own | None]:
    """A record that nobody knows yet: everything that can be refused has been looked at."""
    cache = state.options
    if options:
        shared, priority, own = cache.resolve(options, state.wall())
    else:
        shared, priority, own = cache.default, 0, None
    encoded = state.dumps(data)
    if len(encoded) > state.config.max_data_bytes:
        encode(state, data, "data")
    record = JobRecord(state.new_id(), queue, cache.name(name), shared, priority, encoded)
    return record, own


def _admit(
    state: State, queue: QueueState, record: JobRecord, own: Own | None, now: int
) -> tuple[JobRecord, JobState]:
    """Publishes the record, or finds the live job that has its custom id."""
    record.created_ms = record.run_at_ms = record.entered_ms = now
    if own is not None:
        holder = _apply_own(state, queue, record, own, now)
        if holder is not None:
            if state.events.any:
                emit(state, queue, "duplicated", holder.id, now)
            return holder, queue.state_of(holder, now, state.wall())
    options = record.options
    queue.admitted += 1
    if record.priority == 0 and own is None and not options.lifo:
        job_state, ready = _WAITING, True
        queue.seq += 1
        state.index[record.id] = record
        queue.ready.append(record, queue.seq)
    else:
        state.index[record.id] = record
        if own is not None and record.custom_id is not None:
            queue.custom_ids[record.custom_id] = record
        ready = queue.place(record, now)
        job_state = queue.state_of(record, now, state.wall())
    if options.ttl_ms is not None:
        due = now + options.ttl_ms
        queue.shard.deadlines.push(due, TTL, record)
        if due < state.alarm.due_ms:
            state.alarm.set(due)
    if state.events.any:
        emit(state, queue, "pushed", record.id, now, {"state": str(job_state)})
    if queue.waiters.line and not queue.paused:
        if ready:
            queue.waiters.wake(1)
        else:
            due_ms = queue.next_due(now, state.wall())
            if due_ms is not None:
                queue.waiters.due(due_ms)
    return record, job_state


def _apply_own(
    state: State, queue: QueueState, record: JobRecord, own: Own, now: int
) -> JobRecord | None:
    """Gives the record what is its own; returns the live holder of its custom id instead, if
    there is one. A holder that is finished makes room."""
    if own.custom_id is not None:
        holder = queue.custom_ids.get(own.custom_id)
        if holder is not None:
            if holder.state <= ACTIVE:
                return holder
            forget(state, queue, holder, remember=True)
        record.custom_id = own.custom_id
    if own.tags:
        record.need_side().tags = own.tags
    if own.run_at_wall_ms is not None:
        record.run_at_ms = own.run_at_wall_ms
        record.need_side().anchored = True
        # what is due already goes where the timeline puts it
        wall = state.wall()
        if own.run_at_wall_ms <= wall:
            record.run_at_ms = now - (wall - own.run_at_wall_ms)
            record.need_side().anchored = False
    elif own.delay_ms:
        record.run_at_ms = now + own.delay_ms
    return None
