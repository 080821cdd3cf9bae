"""Push: a job comes in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import BunqueueError, StorageError
from ..model.checks import MAX_NAME, checked_name, checked_queue_name
from ..model.claim import Claim
from ..model.job import JobRecord
from ..model.options import JobSpec
from ..model.own import NAMED, Own, checked_key
from ..model.snapshot import JobSnapshot, new_fields
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..stores.timings import SAMPLED
from ..types import DEFAULT_HOLD, DEFAULT_MODE, Deduplication
from .admit import NOTHING, PUSHED, admitted, refusal
from .commit import cut_short, first_durable, refuse, settle
from .draft import draft_batch, new_record
from .draft import encode as encode
from .finish import emit
from .mark import mark_new
from .recover import enter
from .repeat import first_run
from .tally import begin_tally
from .tie import Batch, tie


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
    storage, timings = state.storage, state.timings
    began_ns = 0
    known_done = NOTHING
    queue = state.queues.get(queue_name)
    if queue is None:
        checked_queue_name(queue_name)
    if timings is not None and (queue is None or not queue.seq & SAMPLED):
        began_ns = timings.now_ns()
    if options:
        # what `draft` does, in line: a call less on the way of every job with options
        shared, priority, own, custom_id, key, claim = state.options.resolve(options, state.wall)
        if shared.repeat is not None:
            shared, own = first_run(state, shared, own, claim)
        record = new_record(state, queue, name, data, shared, priority)
        if own is not None:
            record.custom_id, record.unique_key, record.claim = custom_id, key, claim
            if own.depends_on:
                known_done = tie(state, record, own)
    else:
        record, own = new_record(state, queue, name, data, state.options.default, 0), None
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
        if own is not None and (
            own.group_limit is not None or own.depends_on or state.dependencies.dependents
        ):
            refused = refusal(state, queue, record, own, now, known_done)
            if refused is not None:
                raise refused
        shard.gate = BROKEN
        if own is None and record.options.is_plain and not queue.waiters.line:
            # the short way of _admit, in line: a plain job, and nobody to wake
            record.created_ms = record.run_at_ms = record.entered_ms = now
            queue.admitted += 1
            queue.seq = seq = queue.seq + 1
            job_id, priority, queue_name = record.id, record.priority, queue.name
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
            job = state.view(job_id, None, new_fields(record, queue_name, now))
        else:
            job = admitted(state, queue, record, own, now, known_done)
        shard.gate = OPEN
        cut = storage.cut if durable and storage is not None else 0
    if shard.after:
        shard.call_after()
    if not state.alarm.served and record.options.ttl_ms is not None:
        state.alarm.start()
    if cut:
        settle(state, cut, job._id)
    elif storage is not None:
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


def push_batch(
    state: State, queue_name: str, specs: Iterable[JobSpec | tuple[str, Any]]
) -> list[JobSnapshot]:
    """Admits all, in order, in one hold of the lock; what is invalid refuses the batch whole,
    naming `jobs[i]`."""
    checked_queue_name(queue_name)
    timings = state.timings
    began_ns = 0 if timings is None else timings.now_ns()
    drafts, batch = draft_batch(state, state.queues.get(queue_name), specs)
    if batch is not None:
        return _push_tied(state, queue_name, drafts, batch)
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
        index, view = state.index, state.view
        owners, custom_ids = queue.unique_keys.owners, queue.custom_ids
        # with nobody to wake, the plain job of a batch takes the short way of _admit, in line
        quiet, heard = not queue.waiters.line, state.events.pushed is not None
        full: BunqueueError | None = None
        dirty = shard.dirty
        plain: list[JobRecord] = []
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
                priority = record.priority
                if priority == 0:
                    queue.ready.append(record, queue.seq)
                else:
                    queue.ready.admit(record, queue.seq)
                jobs.append(view(record.id, None, new_fields(record, queue.name, now)))
                if dirty is not None:
                    if own is None and priority == 0:
                        plain.append(record)
                    elif own is None:
                        dirty.add_new(record, queue.name, queue.seq, now)
                    else:
                        mark_new(queue, record)
                if heard:
                    emit(state, queue, "pushed", record.id, now, PUSHED[priority > 0])
            else:
                if own is not None and (
                    own.group_limit is not None or state.dependencies.dependents
                ):
                    full = refusal(state, queue, record, own, now)
                    if full is not None:
                        break
                if plain and dirty is not None:
                    # whatever this one changes of them goes over their marks
                    dirty.add_lane(plain, queue.name, now)
                    plain.clear()
                jobs.append(admitted(state, queue, record, own, now))
        if plain and dirty is not None:
            dirty.add_lane(plain, queue.name, now)
        shard.gate = OPEN
        first = first_durable(jobs, drafts) if durable else None
        cut = storage.cut if first is not None and storage is not None else 0
    shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    _settle_batch(state, cut, first, jobs, full, len(jobs))
    if began_ns and timings is not None:
        timings.push.end(began_ns)
    return jobs


def _push_tied(
    state: State, queue_name: str, drafts: list[tuple[JobRecord, Own | None]], batch: Batch
) -> list[JobSnapshot]:
    """A batch whose jobs depend on others: each comes in after those of the batch that it depends
    on, and is returned in its place. Of one that is cut short, what came in stands."""
    storage = state.storage
    durable = any(record.options.durable for record, _ in drafts)
    if storage is not None and (durable or storage.troubled):
        refuse(state, durable=durable)
    queue = find_queue(state, queue_name)
    for record, _ in drafts:
        record.queue = queue
    shard = queue.shard
    found: dict[int, JobSnapshot] = {}
    refused: BunqueueError | None = None
    cut, at = 0, 0
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        for i in batch.order:
            record, own = drafts[i]
            own = own or NAMED
            batch.rename(record)
            refused = refusal(state, queue, record, own, now, batch.known_done)
            if refused is not None:
                at = i
                break
            job = found[i] = admitted(state, queue, record, own, now, batch.known_done)
            if job._id != record.id:
                batch.alias[record.id] = job._id
        shard.gate = OPEN
        first = next((j._id for i, j in found.items() if drafts[i][0].options.durable), None)
        if first is not None and storage is not None:
            cut = storage.cut
    shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    jobs = [found[i] for i in sorted(found)]
    _settle_batch(state, cut, first, jobs, refused, at)
    return jobs


def _settle_batch(
    state: State,
    cut: int,
    durable: str | None,
    jobs: list[JobSnapshot],
    refused: BunqueueError | None,
    at: int,
) -> None:
    """Waits for what the batch asks for on disk, of which `durable` is the first; then raises what
    cut the batch short at `jobs[at]`, if anything did."""
    problem = None
    try:
        settle(state, cut, durable)
    except StorageError as error:
        if refused is None:
            raise
        problem = error
    if refused is not None:
        raise cut_short(refused, jobs, problem, at) from refused
