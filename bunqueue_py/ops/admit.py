"""Admission: a drafted job takes its place, or finds the one that is already here. Called under
the shard's lock."""

from __future__ import annotations

from ..errors import BunqueueError, GroupFullError
from ..model.job import ACTIVE, REMOVED, JobRecord
from ..model.own import Own
from ..model.side import side_view
from ..model.snapshot import JobSnapshot
from ..shard.deadlines import TTL
from ..shard.queue_state import QueueState
from ..state import State
from ..types import JobState
from .deduplicate import take_key
from .finish import emit, finalize, forget
from .flow import begin_waiting
from .mark import mark, mark_held, mark_new
from .outcomes import mark_edges
from .tie import needed_owner, unknown_dependency

NOTHING: frozenset[str] = frozenset()
_WAITING, _PRIORITIZED = JobState.WAITING, JobState.PRIORITIZED
PUSHED = {False: {"state": str(_WAITING)}, True: {"state": str(_PRIORITIZED)}}
"""What `pushed` carries of a job that is ready, by whether its priority is above 0."""


def admitted(
    state: State,
    queue: QueueState,
    record: JobRecord,
    own: Own | None,
    now: int,
    known_done: frozenset[str] = NOTHING,
    *,
    fresh: bool = False,
) -> JobSnapshot:
    """`admit`, and what its caller is to see of it."""
    admitted, job_state = admit(state, queue, record, own, now, known_done, fresh=fresh)
    if admitted is record:
        return state.snapshot(record, job_state)
    return state.snapshot(admitted, job_state, True).detach(with_data=admitted.state != REMOVED)


def admit(
    state: State,
    queue: QueueState,
    record: JobRecord,
    own: Own | None,
    now: int,
    known_done: frozenset[str] = NOTHING,
    *,
    fresh: bool = False,
) -> tuple[JobRecord, JobState]:
    """Publishes the record, or finds the job that has its custom id or its key. `known_done`: see
    `begin_waiting`; `fresh`: all that it waits for has come in just now, in the same unit."""
    record.created_ms = record.run_at_ms = record.entered_ms = now
    options = record.options
    if own is None:
        ready = True
        queue.admitted += 1
        queue.seq += 1
        state.index[record.id] = record
        queue.ready.admit(record, queue.seq)
        job_state = _PRIORITIZED if record.priority > 0 else _WAITING
    else:
        holder = _apply_own(state, queue, record, own, now)
        if holder is not None:
            # its claim may last longer now
            if holder.state != REMOVED:
                mark(queue, holder)
            else:
                mark_held(queue, holder)
            if state.events.any:
                emit(state, queue, "duplicated", holder.id, now)
            return holder, queue.state_of(holder, now, state.wall())
        queue.admitted += 1
        state.index[record.id] = record
        if record.custom_id is not None:
            queue.custom_ids[record.custom_id] = record
        if record.unique_key is not None:
            take_key(state, queue, record, now)
        links = None if record.side is None else record.side.links
        failure = None
        if links is not None and links.edges:
            if fresh:
                state.dependencies.register(record.id, links.edges)
            else:
                failure = begin_waiting(state, record, links, known_done)
            mark_edges(queue, record, links)
        ready = False
        if links is not None and (links.unmet or failure is not None):
            record.gate(now, new=True)
            queue.gate(record)
        else:
            # a moment in the past has its place before those that are here
            ready = queue.place(record, now, in_order=record.run_at_ms >= now)
        if ready:
            job_state = _PRIORITIZED if record.priority > 0 else _WAITING
        else:
            job_state = queue.state_of(record, now, state.wall())
    mark_new(queue, record)
    if options.ttl_ms is not None:
        due = now + options.ttl_ms
        queue.shard.deadlines.push(due, TTL, record)
        if due < state.alarm.due_ms:
            state.alarm.set(due)
    if state.events.any:
        carried = PUSHED[record.priority > 0] if ready else {"state": str(job_state)}
        emit(state, queue, "pushed", record.id, now, carried)
    if own is not None and failure is not None:
        finalize(state, queue, record, failure, now)
        return record, JobState.FAILED
    if queue.waiters.line and not queue.paused:
        if ready:
            queue.wake(1, now)
        else:
            due_ms = queue.next_due(now, state.wall())
            if due_ms is not None:
                queue.waiters.due(due_ms)
    return record, job_state


def refusal(
    state: State,
    queue: QueueState,
    record: JobRecord,
    own: Own,
    now: int,
    known_done: frozenset[str] = NOTHING,
) -> BunqueueError | None:
    """Why the job must not come in now, for a reason that lies in what is here; changes nothing."""
    refused: BunqueueError | None = None
    if own.group_limit is not None:
        refused = group_full(queue, record, own, now)
    if refused is None and own.depends_on:
        refused = unknown_dependency(state, queue, record, now, known_done)
    if refused is None and state.dependencies.dependents:
        refused = needed_owner(state, queue, record, now)
    return refused


def group_full(queue: QueueState, record: JobRecord, own: Own, now: int) -> GroupFullError | None:
    """The error of a job whose group is full; one that would only be found again by its custom
    id or key, or takes the place of another of its group, is let through."""
    if queue.groups is None or own.group is None or own.group_limit is None:
        return None
    group = queue.groups.by_name.get(own.group)
    if group is None or group.pending_total < own.group_limit:
        return None
    holder = queue.custom_ids.get(record.custom_id) if record.custom_id is not None else None
    if holder is not None and holder.state <= ACTIVE:
        return None
    if record.unique_key is not None:
        if queue.unique_keys.original(record, now) is not None:
            return None
        prior = queue.unique_keys.owner(record.unique_key, now)
        if prior is not None and prior.state < ACTIVE and _group_of(prior) == own.group:
            return None
    return GroupFullError(
        f"group {own.group!r} of queue {queue.name!r} has {group.pending_total} waiting jobs; "
        f"group_limit={own.group_limit} allows no more. Add it later, or raise the limit"
    )


def _group_of(record: JobRecord) -> str | None:
    return None if record.side is None else record.side.group


def _apply_own(
    state: State, queue: QueueState, record: JobRecord, own: Own, now: int
) -> JobRecord | None:
    """Gives the record what is its own; returns the live holder of its custom id instead, if
    there is one, else the owner of its key that it is a duplicate of. A holder of the custom id
    that is finished makes room."""
    holder = None
    if record.custom_id is not None:
        holder = queue.custom_ids.get(record.custom_id)
        if holder is not None and holder.state <= ACTIVE:
            return holder
    if record.unique_key is not None:
        owner = queue.unique_keys.judge(record, now)
        if owner is not None:
            return owner
    if holder is not None:
        forget(state, queue, holder, remember=True)
    if own.tags:
        record.need_side().tags = own.tags
    if own.trace is not None:
        record.need_side().trace = own.trace
    if own.group is not None:
        side = record.need_side()
        side.group = own.group
        group = None if queue.groups is None else queue.groups.by_name.get(own.group)
        if group is not None and not own.tags and own.trace is None and side.links is None:
            if group.view is None:
                group.view = side_view(side)
            side.view = group.view
    if own.run_at_wall_ms is not None:
        record.run_at_ms = own.run_at_wall_ms
        record.need_side().anchored = True
        # what is due already goes where the timeline puts it
        wall = state.wall()
        if own.run_at_wall_ms <= wall:
            record.run_at_ms = max(0, now - (wall - own.run_at_wall_ms))
            record.need_side().anchored = False
    elif own.delay_ms:
        record.run_at_ms = now + own.delay_ms
    return None
