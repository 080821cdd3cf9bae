"""Push: a job comes in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import GroupFullError, StorageError
from ..model.checks import MAX_NAME, checked_name, checked_queue_name
from ..model.job import ACTIVE, REMOVED, JobRecord, JobSnapshot
from ..model.options import JobSpec
from ..model.own import NAMED, Own, checked_key
from ..shard.deadlines import TTL
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import DEFAULT_HOLD, DEFAULT_MODE, Deduplication, JobState
from .commit import cut_short, first_durable, refuse, settle
from .deduplicate import take_key
from .draft import NO_OPTIONS, draft, draft_batch
from .draft import encode as encode
from .finish import emit, forget
from .mark import mark, mark_new
from .recover import enter

_WAITING, _PRIORITIZED = JobState.WAITING, JobState.PRIORITIZED


def find_queue(state: State, name: object) -> QueueState:
    """The queue of that name; checked and made if it is new."""
    if isinstance(name, str) and name in state.queues:
        return state.queues[name]

    def announce(queue: QueueState) -> None:
        if state.events.any:
            emit(state, queue, "queue_created", None, state.now())

    return state.shards.queue(state.queues, checked_queue_name(name), announce)


def push(
    state: State, queue_name: str, data: Any, name: str, options: dict[str, Any]
) -> JobSnapshot:
    """Admits one job, or finds the one of its custom id or key."""
    storage = state.storage
    queue = state.queues.get(queue_name)
    if queue is None:
        checked_queue_name(queue_name)
    record, own = draft(state, queue, name, data, options)
    durable = False
    if storage is not None:
        durable = record.options.durable
        if durable or storage.troubled:
            refuse(state, durable=durable)
    if queue is None:
        # only now: a refused push leaves no queue behind
        queue = record.queue = find_queue(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        if own is not None and own.group_limit is not None:
            full = _group_full(queue, record, own, now)
            if full is not None:
                raise full
        shard.gate = BROKEN
        if (
            own is None
            and record.options.is_plain
            and not state.events.any
            and not queue.waiters.line
        ):
            # the short way of _admit, in line: a plain job, and nobody to tell
            record.created_ms = record.run_at_ms = record.entered_ms = now
            queue.admitted += 1
            queue.seq += 1
            state.index[record.id] = record
            if record.priority == 0:
                queue.ready.append(record, queue.seq)
                job = state.snapshot(record, _WAITING)
            else:
                queue.ready.admit(record, queue.seq)
                job = state.snapshot(record, _PRIORITIZED if record.priority > 0 else _WAITING)
            if shard.dirty is not None:
                mark_new(queue, record)
        else:
            job = _admitted(state, queue, record, own, now)
        shard.gate = OPEN
        cut = storage.cut if durable and storage is not None else 0
    if shard.after:
        shard.call_after()
    if not state.alarm.served and record.options.ttl_ms is not None:
        state.alarm.start()
    if storage is not None:
        settle(state, cut, job._id)
    return job


def push_named(
    state: State,
    queue_name: str,
    data: Any,
    name: str,
    custom_id: str | None,
    deduplication: Deduplication | None,
) -> JobSnapshot:
    """`push` of a job with a custom id, a key or both, and no other option. It goes most of its
    way in line: a name is to cost a push little more than the place that it takes."""
    queue = state.queues.get(queue_name)
    if queue is None:
        checked_queue_name(queue_name)
    # most names are seen to be good without a call
    if custom_id is not None and (
        custom_id.__class__ is not str
        or not custom_id.isascii()
        or "\0" in custom_id
        or not 0 < len(custom_id) <= MAX_NAME
    ):
        custom_id = checked_name(custom_id, "custom_id")
    key: str | None
    claim: Any
    if deduplication is None:
        key = claim = None
    elif deduplication.__class__ is not Deduplication:
        key, claim = checked_key(deduplication)
    else:
        key, claim, mode, hold = deduplication._terms
        if (
            key.__class__ is not str
            or not key.isascii()
            or "\0" in key
            or not 0 < len(key) <= MAX_NAME
            or mode is not DEFAULT_MODE
            or hold is not DEFAULT_HOLD
            or (claim is not None and (claim.__class__ is not int or not 0 < claim <= 86_400))
        ):
            key, claim = checked_key(deduplication)
        elif claim is not None:
            claim *= 1000
    record, _ = draft(state, queue, name, data, NO_OPTIONS)
    storage = state.storage
    if storage is not None and storage.troubled:
        refuse(state, durable=False)
    if queue is None:
        queue = record.queue = find_queue(state, queue_name)
    record.custom_id = custom_id
    if key is not None:
        record.unique_key = key
        record.claim = claim
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        if (
            (custom_id is None or custom_id not in queue.custom_ids)
            and (key is None or key not in queue.unique_keys.owners)
            and not state.events.any
            and not queue.waiters.line
        ):
            # the short way again
            record.created_ms = record.run_at_ms = record.entered_ms = now
            queue.admitted += 1
            queue.seq += 1
            state.index[record.id] = record
            if custom_id is not None:
                queue.custom_ids[custom_id] = record
            if key is not None:
                if claim is None or claim.__class__ is int:
                    queue.unique_keys.owners[key] = record
                else:
                    queue.unique_keys.take_new(record, now)
            queue.ready.append(record, queue.seq)
            if shard.dirty is not None:
                mark_new(queue, record)
            job = state.snapshot(record, _WAITING)
        else:
            job = _admitted(state, queue, record, NAMED, now)
        shard.gate = OPEN
    if shard.after:
        shard.call_after()
    if storage is not None:
        storage.admit()
    return job


def push_batch(
    state: State, queue_name: str, specs: Iterable[JobSpec | tuple[str, Any]]
) -> list[JobSnapshot]:
    """Admits all, in order, in one hold of the lock; what is invalid refuses the batch whole,
    naming `jobs[i]`."""
    checked_queue_name(queue_name)
    drafts = draft_batch(state, state.queues.get(queue_name), specs)
    storage = state.storage
    durable = False
    if storage is not None:
        durable = any(record.options.durable for record, _ in drafts)
        if durable or storage.troubled:
            refuse(state, durable=durable)
    queue = find_queue(state, queue_name)
    for record, _ in drafts:
        record.queue = queue
    shard = queue.shard
    jobs: list[JobSnapshot] = []
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        index, snapshot = state.index, state.snapshot
        owners, custom_ids = queue.unique_keys.owners, queue.custom_ids
        # with nobody to tell, the plain job of a batch takes the short way of _admit, in line
        quiet = not state.events.any and not queue.waiters.line
        full: GroupFullError | None = None
        for record, own in drafts:
            if (
                quiet
                and (
                    own is None
                    or (
                        own is NAMED
                        and (record.custom_id is None or record.custom_id not in custom_ids)
                        and (record.unique_key is None or record.unique_key not in owners)
                    )
                )
                and record.options.is_plain
            ):
                record.created_ms = record.run_at_ms = record.entered_ms = now
                queue.admitted += 1
                queue.seq += 1
                index[record.id] = record
                if own is not None:
                    if record.custom_id is not None:
                        custom_ids[record.custom_id] = record
                    if record.unique_key is not None:
                        if record.claim is None or record.claim.__class__ is int:
                            owners[record.unique_key] = record
                        else:
                            queue.unique_keys.take_new(record, now)
                if record.priority == 0:
                    queue.ready.append(record, queue.seq)
                else:
                    queue.ready.admit(record, queue.seq)
                jobs.append(snapshot(record, _PRIORITIZED if record.priority > 0 else _WAITING))
                if shard.dirty is not None:
                    mark_new(queue, record)
            else:
                if own is not None and own.group_limit is not None:
                    full = _group_full(queue, record, own, now)
                    if full is not None:
                        break
                jobs.append(_admitted(state, queue, record, own, now))
        shard.gate = OPEN
        first = first_durable(jobs, drafts) if durable else None
        cut = storage.cut if first is not None and storage is not None else 0
    shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    problem = None
    try:
        settle(state, cut, first)
    except StorageError as error:
        if full is None:
            raise
        problem = error
    if full is not None:
        raise cut_short(full, jobs, problem) from full
    return jobs


def _admitted(
    state: State, queue: QueueState, record: JobRecord, own: Own | None, now: int
) -> JobSnapshot:
    """`_admit`, and what its caller is to see of it."""
    admitted, job_state = _admit(state, queue, record, own, now)
    if admitted is record:
        return state.snapshot(record, job_state)
    return state.snapshot(admitted, job_state, True).detach(with_data=admitted.state != REMOVED)


def _admit(
    state: State, queue: QueueState, record: JobRecord, own: Own | None, now: int
) -> tuple[JobRecord, JobState]:
    """Publishes the record, or finds the job that has its custom id or its key."""
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
            if holder.state != REMOVED:
                # its claim may last longer now
                mark(queue, holder)
            if state.events.any:
                emit(state, queue, "duplicated", holder.id, now)
            return holder, queue.state_of(holder, now, state.wall())
        queue.admitted += 1
        state.index[record.id] = record
        if record.custom_id is not None:
            queue.custom_ids[record.custom_id] = record
        if record.unique_key is not None:
            take_key(state, queue, record, now)
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
        emit(state, queue, "pushed", record.id, now, {"state": str(job_state)})
    if queue.waiters.line and not queue.paused:
        if ready:
            queue.wake(1, now)
        else:
            due_ms = queue.next_due(now, state.wall())
            if due_ms is not None:
                queue.waiters.due(due_ms)
    return record, job_state


def _group_full(queue: QueueState, record: JobRecord, own: Own, now: int) -> GroupFullError | None:
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
    if own.group is not None:
        record.need_side().group = own.group
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
