"""Push: a job comes in."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ..durations import shown
from ..errors import BulkAddError, GroupFullError, SerializationError, ValidationError
from ..model.checks import checked_iterable
from ..model.job import ACTIVE, REMOVED, JobRecord, JobSnapshot
from ..model.options import MAX_BATCH, JobSpec, Own, checked_queue_name
from ..model.side import Claim
from ..shard.deadlines import TTL
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import JobState
from .deduplicate import take_key
from .finish import emit, forget
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


def encode(state: State, data: Any, what: str) -> bytes:
    """The encoded value, within `max_data_bytes`."""
    encoded = state.dumps(data)
    if encoded.__class__ is not bytes:
        raise no_bytes(state, encoded)
    if len(encoded) > state.max_data_bytes:
        raise too_large(state, what, len(encoded))
    return encoded


def no_bytes(state: State, encoded: Any) -> SerializationError:
    """The error of a serializer that does not keep its promise."""
    name = state.config.serializer.name
    return SerializationError(f"serializer {name!r} returned {shown(encoded)} where bytes are due")


def too_large(state: State, what: str, size: int) -> SerializationError:
    """The error of a value whose encoding is over the bound."""
    return SerializationError(
        f"{what} takes {size:,} bytes; the bound max_data_bytes is "
        f"{state.max_data_bytes:,}. Keep large data elsewhere and pass its name"
    )


def push(
    state: State, queue_name: str, data: Any, name: str, options: dict[str, Any]
) -> JobSnapshot:
    """Admits one job, or finds the one of its custom id or key."""
    queue = state.queues.get(queue_name)
    if queue is None:
        checked_queue_name(queue_name)
    record, own = _draft(state, queue, name, data, options)
    if queue is None:
        # only now: a refused push leaves no queue behind
        queue = record.queue = find_queue(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        if isinstance(own, Own) and own.group_limit is not None:
            full = _group_full(queue, own, now)
            if full is not None:
                raise full
        shard.gate = BROKEN
        if (
            (own is None or (own.__class__ is Claim and own.key not in queue.unique_keys.owners))
            and record.options.is_plain
            and not state.events.any
            and not queue.waiters.line
        ):
            # the short way of _admit, in line: a plain job, and nobody to tell
            record.created_ms = record.run_at_ms = record.entered_ms = now
            queue.admitted += 1
            queue.seq += 1
            state.index[record.id] = record
            if own is not None:
                queue.unique_keys.take_new(record, own, now)
            if record.priority == 0:
                queue.ready.append(record, queue.seq)
                job = state.snapshot(record, _WAITING)
            else:
                queue.ready.admit(record, queue.seq)
                job = state.snapshot(record, _PRIORITIZED if record.priority > 0 else _WAITING)
        else:
            admitted, job_state = _admit(state, queue, record, own, now)
            job = state.snapshot(admitted, job_state, admitted is not record)
            if admitted is not record:
                job.detach(with_data=admitted.state != REMOVED)
        shard.gate = OPEN
    if own is not None and shard.after:
        shard.call_after()
    if not state.alarm.served and record.options.ttl_ms is not None:
        state.alarm.start()
    return job


def push_batch(
    state: State, queue_name: str, specs: Iterable[JobSpec | tuple[str, Any]]
) -> list[JobSnapshot]:
    """Admits all, in order, in one hold of the lock; what is invalid refuses the batch whole,
    naming `jobs[i]`."""
    checked_queue_name(queue_name)
    drafts = _draft_batch(state, state.queues.get(queue_name), specs)
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
        # with nobody to tell, the plain job of a batch takes the short way of _admit, in line
        quiet = not state.events.any and not queue.waiters.line
        full: GroupFullError | None = None
        for record, own in drafts:
            if (
                quiet
                and (
                    own is None
                    or (own.__class__ is Claim and own.key not in queue.unique_keys.owners)
                )
                and record.options.is_plain
            ):
                record.created_ms = record.run_at_ms = record.entered_ms = now
                queue.admitted += 1
                queue.seq += 1
                index[record.id] = record
                if own is not None:
                    queue.unique_keys.take_new(record, own, now)
                if record.priority == 0:
                    queue.ready.append(record, queue.seq)
                else:
                    queue.ready.admit(record, queue.seq)
                jobs.append(snapshot(record, _PRIORITIZED if record.priority > 0 else _WAITING))
            else:
                if isinstance(own, Own) and own.group_limit is not None:
                    full = _group_full(queue, own, now)
                    if full is not None:
                        break
                admitted, job_state = _admit(state, queue, record, own, now)
                job = snapshot(admitted, job_state, admitted is not record)
                if admitted is not record:
                    job.detach(with_data=admitted.state != REMOVED)
                jobs.append(job)
        shard.gate = OPEN
    shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    if full is not None:
        i = len(jobs)
        raise BulkAddError(
            f"jobs[{i}]: {full}. The {i} before it were added (accepted)", accepted=jobs, index=i
        ) from full
    return jobs


def _draft_batch(
    state: State, queue: QueueState | None, specs: Iterable[JobSpec | tuple[str, Any]]
) -> list[tuple[JobRecord, Own | Claim | None]]:
    """The records of a whole batch; an error names the entry that it is about."""
    drafts: list[tuple[JobRecord, Own | Claim | None]] = []
    for spec in islice(checked_iterable(specs, "jobs"), MAX_BATCH + 1):
        i = len(drafts)
        if i == MAX_BATCH:
            raise ValidationError(f"a batch takes at most {MAX_BATCH:,} jobs")
        try:
            if spec.__class__ is JobSpec or isinstance(spec, JobSpec):
                options = spec.options
                drafts.append(
                    _draft(state, queue, spec.name, spec.data, dict(options) if options else {})
                )
            elif isinstance(spec, tuple) and len(spec) == 2:
                drafts.append(_draft(state, queue, spec[0], spec[1], {}))
            else:
                raise ValidationError(
                    f"must be a JobSpec or a (name, data) pair, not {shown(spec)}"
                )
        except ValidationError as error:
            raise ValidationError(f"jobs[{i}]: {error}") from error
        except SerializationError as error:
            raise SerializationError(f"jobs[{i}]: {error}", path=error.path) from error
        except TypeError as error:
            raise TypeError(f"jobs[{i}]: {error}") from error
    return drafts


def _draft(
    state: State, queue: QueueState | None, name: str, data: Any, options: dict[str, Any]
) -> tuple[JobRecord, Own | Claim | None]:
    """A record that nobody knows yet: everything that can be refused has been looked at."""
    cache = state.options
    if options:
        shared, priority, own = cache.resolve(options, state.wall)
    else:
        shared, priority, own = cache.default, 0, None
    try:
        name = cache.names[name]
    except (KeyError, TypeError):
        name = cache.name(name)
    encoded = state.dumps(data)
    if encoded.__class__ is not bytes:
        raise no_bytes(state, encoded)
    if len(encoded) > state.max_data_bytes:
        raise too_large(state, "data", len(encoded))
    record = JobRecord(state.new_id(), queue, name, shared, priority, encoded)
    if own is not None:
        record.claim = own if isinstance(own, Claim) else own.claim
    return record, own


def _admit(
    state: State, queue: QueueState, record: JobRecord, own: Own | Claim | None, now: int
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
            if state.events.any:
                emit(state, queue, "duplicated", holder.id, now)
            return holder, queue.state_of(holder, now, state.wall())
        queue.admitted += 1
        state.index[record.id] = record
        if record.custom_id is not None:
            queue.custom_ids[record.custom_id] = record
        if record.claim is not None:
            take_key(state, queue, record, now)
        # a moment in the past has its place before those that are here
        ready = queue.place(record, now, in_order=record.run_at_ms >= now)
        if ready:
            job_state = _PRIORITIZED if record.priority > 0 else _WAITING
        else:
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
            queue.wake(1, now)
        else:
            due_ms = queue.next_due(now, state.wall())
            if due_ms is not None:
                queue.waiters.due(due_ms)
    return record, job_state


def _group_full(queue: QueueState, own: Own, now: int) -> GroupFullError | None:
    """The error of a job whose group is full; one that would only be found again by its custom
    id or key, or takes the place of another of its group, is let through."""
    if queue.groups is None or own.group is None or own.group_limit is None:
        return None
    group = queue.groups.by_name.get(own.group)
    if group is None or group.pending_total < own.group_limit:
        return None
    holder = queue.custom_ids.get(own.custom_id) if own.custom_id is not None else None
    if holder is not None and holder.state <= ACTIVE:
        return None
    if own.claim is not None:
        if queue.unique_keys.original(own.claim, now) is not None:
            return None
        prior = queue.unique_keys.owner(own.claim.key, now)
        if prior is not None and prior.state < ACTIVE and _group_of(prior) == own.group:
            return None
    return GroupFullError(
        f"group {own.group!r} of queue {queue.name!r} has {group.pending_total} waiting jobs; "
        f"group_limit={own.group_limit} allows no more. Add it later, or raise the limit"
    )


def _group_of(record: JobRecord) -> str | None:
    return None if record.side is None else record.side.group


def _apply_own(
    state: State, queue: QueueState, record: JobRecord, own: Own | Claim, now: int
) -> JobRecord | None:
    """Gives the record what is its own; returns the live holder of its custom id instead, if
    there is one, else the owner of its key that it is a duplicate of. A holder of the custom id
    that is finished makes room."""
    if isinstance(own, Claim):
        return queue.unique_keys.judge(own, now)
    holder = None
    if own.custom_id is not None:
        holder = queue.custom_ids.get(own.custom_id)
        if holder is not None and holder.state <= ACTIVE:
            return holder
        record.custom_id = own.custom_id
    if own.claim is not None:
        owner = queue.unique_keys.judge(own.claim, now)
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
