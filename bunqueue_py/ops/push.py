"""Push: a job comes in."""

from __future__ import annotations

from typing import Any

from ..model.checks import MAX_NAME, checked_name, checked_queue_name
from ..model.claim import Claim
from ..model.job import JobRecord
from ..model.own import NAMED, checked_key
from ..model.snapshot import UNREAD, JobSnapshot, new_fields
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..stores.timings import SAMPLED
from ..types import DEFAULT_HOLD, DEFAULT_MODE, Deduplication, JobState
from .admit import NOTHING, PUSHED, admitted, refusal
from .commit import refuse, settle
from .draft import encode as encode
from .draft import new_record, no_bytes, too_large
from .finish import emit
from .mark import mark_new
from .recover import enter
from .repeat import first_run
from .tally import begin_tally
from .tie import tie

_WAITING, _PRIORITIZED = JobState.WAITING, JobState.PRIORITIZED


def find_queue(state: State, name: object) -> QueueState:
    """The queue of that name; checked and made if it is new."""
    if isinstance(name, str) and name in state.queues:
        return state.queues[name]

    def announce(queue: QueueState) -> None:
        begin_tally(state, queue)
        if state.events.any:
            emit(state, queue, "queue_created", None, state.now())

    return state.shards.queue(state.queues, checked_queue_name(name), announce)


def push(
    state: State, queue_name: str, data: Any, name: str, options: dict[str, Any]
) -> JobSnapshot:
    """Admits one job, or finds the one of its custom id or key."""
    timings = state.timings
    began_ns = 0
    try:
        queue = state.queues[queue_name]
    except KeyError:
        queue = None
    if queue is None:
        checked_queue_name(queue_name)
    if timings is not None and (queue is None or not queue.seq & SAMPLED):
        began_ns = timings.now_ns()
    cache = state.options
    # from here on what `draft` does, in line: some calls less on the way of every job
    if options:
        shared, priority, own, custom_id, key, claim = cache.resolve(options, state.wall)
        if shared.repeat is not None:
            shared, own = first_run(state, shared, own, claim)
    else:
        shared, priority, own = cache.default, 0, None
    try:
        name = cache.names[name]
    except (KeyError, TypeError):
        name = cache.name(name)
    dumps, new_id = state.dumps, state.new_id
    encoded = dumps(data)
    if encoded.__class__ is not bytes:
        raise no_bytes(state, encoded)
    if len(encoded) > state.max_data_bytes:
        raise too_large(state, "data", len(encoded))
    job_id = new_id()
    record = JobRecord(job_id, queue, name, shared, priority, encoded)
    known_done = NOTHING
    if own is not None:
        record.custom_id, record.unique_key, record.claim = custom_id, key, claim
        if own.depends_on:
            known_done = tie(state, record, own)
    storage = state.storage
    durable = False
    if storage is not None:
        durable = shared.durable
        if durable or storage.troubled:
            refuse(state, durable=durable)
    if queue is None:
        # only now: a refused push leaves no queue behind
        queue = record.queue = find_queue(state, queue_name)
    shard, clock = queue.shard, state.now
    cut = 0
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = clock()
        if own is None and shared.is_plain and not queue.waiters.line:
            # the short way of _admit, in line: a plain job, and nobody to wake
            shard.gate = BROKEN
            record.created_ms = record.run_at_ms = record.entered_ms = now
            queue.admitted += 1
            queue.seq = seq = queue.seq + 1
            queue_name = queue.name
            state.index[job_id] = record
            ready = queue.ready
            if priority == 0:
                record.key = seq
                ready.lane.records.append(record)
            elif ready.lanes is None or not ready.lanes.push(record, seq):
                ready.admit(record, seq)
            if shard.dirty is not None:
                shard.dirty.add_new(record, queue_name, seq, now)
            tell = state.events.pushed
            if tell is not None:
                tell(queue, job_id, now, PUSHED[priority > 0])
            # a view of `new_fields`, in line
            view_type = state.view_type
            job = view_type()
            job._manager = state.manager
            job._value = UNREAD
            job.duplicate = False
            job._id = job_id
            job.token = None
            job._fields = (
                queue_name,
                name,
                shared,
                encoded,
                priority,
                _PRIORITIZED if priority > 0 else _WAITING,
                now,
                now,
                None,
                None,
                0,
                None,
                None,
                None,
            )
        else:
            if own is not None and (
                own.group_limit is not None or own.depends_on or state.dependencies.dependents
            ):
                refused = refusal(state, queue, record, own, now, known_done)
                if refused is not None:
                    raise refused
            shard.gate = BROKEN
            job = admitted(state, queue, record, own, now, known_done)
        shard.gate = OPEN
        if durable and storage is not None:
            cut = storage.cut
    if shard.after:
        shard.call_after()
    if shared.ttl_ms is not None and not state.alarm.served:
        state.alarm.start()
    if storage is not None:
        if cut:
            settle(state, cut, job._id)
        else:
            storage.admit()
    if began_ns and timings is not None:
        timings.push.end(began_ns)
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
    timings = state.timings
    began_ns = 0
    queue = state.queues.get(queue_name)
    if queue is None:
        checked_queue_name(queue_name)
    if timings is not None and (queue is None or not queue.seq & SAMPLED):
        began_ns = timings.now_ns()
    # most names are seen to be good without a call of ours: what can be printed has no NUL and
    # no half of a character
    if custom_id is not None and (
        custom_id.__class__ is not str
        or not custom_id.isprintable()
        or not custom_id
        or len(custom_id) > MAX_NAME
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
            or not key.isprintable()
            or not key
            or len(key) > MAX_NAME
            or mode is not DEFAULT_MODE
            or hold is not DEFAULT_HOLD
        ):
            key, claim = checked_key(deduplication)
        elif claim is not None:
            if claim.__class__ is not int or claim <= 0 or claim > 86_400:
                key, claim = checked_key(deduplication)
            else:
                claim *= 1000
    record = new_record(state, queue, name, data, state.options.default, 0)
    storage = state.storage
    if storage is not None and storage.troubled:
        refuse(state, durable=False)
    if queue is None:
        queue = record.queue = find_queue(state, queue_name)
    if custom_id is not None:
        record.custom_id = custom_id
    if key is not None:
        record.unique_key = key
        record.claim = claim
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        if state.dependencies.dependents and key is not None:
            refused = refusal(state, queue, record, NAMED, now)
            if refused is not None:
                raise refused
        shard.gate = BROKEN
        owners = queue.unique_keys.owners
        if (
            (custom_id is None or custom_id not in queue.custom_ids)
            and (key is None or key not in owners)
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
                if claim.__class__ is Claim:
                    queue.unique_keys.take_new(record, now)
                else:
                    owners[key] = record
            record.key = queue.seq
            queue.ready.lane.records.append(record)
            if shard.dirty is not None:
                mark_new(queue, record)
            if state.events.pushed is not None:
                emit(state, queue, "pushed", record.id, now, PUSHED[False])
            job = state.view(record.id, None, new_fields(record, queue.name, now))
        else:
            job = admitted(state, queue, record, NAMED, now)
        shard.gate = OPEN
    if shard.after:
        shard.call_after()
    if storage is not None:
        storage.admit()
    if began_ns and timings is not None:
        timings.push.end(began_ns)
    return job
