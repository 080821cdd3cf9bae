"""How a job ends: completed, failed for good, or gone. Called under its shard's lock."""

from __future__ import annotations

from heapq import heappop

from ..model.cancel import LOCK_LOST
from ..model.failure import Failure, trimmed
from ..model.job import ACTIVE, COMPLETED, FAILED, GATED, PENDING, Delivery, JobRecord
from ..model.options import Keep
from ..model.side import AttemptRow
from ..shard.deadlines import RETENTION
from ..shard.finished import CHUNK
from ..shard.keys import departed_key, seq_of
from ..shard.queue_state import QueueState, finished_size
from ..state import State
from ..stores.results import Proof
from .archive import is_kept, leave
from .emit import emit as emit
from .interrupt import interrupt, reason_of
from .log_rows import drop_log
from .mark import mark, mark_completed, mark_gone
from .outcomes import drop_edges, links_of, pin_proof, record_end, record_leave
from .tally import look, note_run
from .unblock import settle_met

_tuple = tuple.__new__


def complete(
    state: State,
    queue: QueueState,
    record: JobRecord,
    data: bytes | None,
    now: int,
    taker: QueueState | None = None,
) -> None:
    """The record is completed with that encoded result, and its watchers know. Of what becomes
    ready in the queue `taker`, nobody is woken: the caller sees to it."""
    job_id, shard = record.id, queue.shard
    if data is None:
        size = -1
        held = len(record.data)
    else:
        # before the completion can be seen: whoever sees it finds the result
        put = state.results.put
        put(job_id, data)
        size = len(data)
        held = len(record.data) + size
    delivery, side = record.delivery, record.side
    if delivery is not None and delivery.timeout_ms is None:
        # what leave_stage does, in line: the way of nearly every job
        del queue.active[job_id]
        if side is not None and side.group is not None and queue.groups is not None:
            queue.groups.ended(side.group, now)
        if delivery.armed_ms is not None:
            deadlines = shard.deadlines
            heap = deadlines.heap
            if heap and heap[0][3] is delivery:
                # as where runs end in the order in which they began: nothing stale is left behind
                heappop(heap)
            else:
                deadlines.stale = stale = deadlines.stale + 1
                if stale > deadlines.sweep_at:
                    deadlines.sweep()
    else:
        leave_stage(queue, record, now)
    if now >= queue.look_ms:
        look(state, queue, now)
    if shard.times is not None and delivery is not None:
        times = shard.times
        if record.run_at_ms == now:
            times.at_once += 1  # it started between the two
        else:
            note_run(times, record, now)
    record.complete(now, size)
    queue.completed_total += 1
    shard.completions += 1
    if record.unique_key is not None:
        queue.unique_keys.free(record)
    freed = None
    if job_id in state.dependencies.dependents or (side is not None and side.links is not None):
        freed = record_end(state, queue, record, now)
    keep = record.options.remove_on_complete
    if keep is True:
        _vanish(state, queue, record)
    else:
        completed = queue.completed
        # what its `add` does, in line
        newest = completed.newest
        newest[job_id] = record
        completed.size = kept = completed.size + 1
        if len(newest) >= CHUNK:
            completed.turn()
        if kept == 1:
            shard.heads.push(queue)
        if shard.dirty is not None:
            mark_completed(shard.dirty, queue, record, data)
        shard.finished += 1
        shard.finished_bytes += held
        if keep is not False:
            _keep(state, queue, record, keep, now)
    if shard.watched:
        resolve(queue, job_id, "completed", data)
    events = state.events
    tell = events.completed
    if tell is not None:
        tell(queue, job_id, now, None if data is None else {"result": data})
    if queue.waiters.line and (queue.limits is not None or queue.groups is not None):
        queue.freed(now)
    if not queue.active and (queue.empty_waiters or events.empty is not None):
        ran_dry(state, queue, now)
    if freed is not None:
        settle_met(state, job_id, freed, now, taker)


def finalize(
    state: State,
    queue: QueueState,
    record: JobRecord,
    failure: Failure,
    now: int,
    *,
    charged: AttemptRow | None = None,
    by_sweep: bool = False,
) -> None:
    """The record has failed for good, whoever decided it: dead letter, freed places, counters,
    events, watchers. The one function that ends a job so. `charged` is the row of the run that
    it died in, if it did."""
    failure = failure._replace(stack=trimmed(failure.stack, record.options.stack_trace_limit))
    if now >= queue.look_ms:
        look(state, queue, now)
    if queue.shard.times is not None and charged is not None:
        note_run(queue.shard.times, record, now)
    interrupt(queue.shard, record.delivery, reason_of(failure))
    leave_stage(queue, record, now)
    record.fail(failure, now, charged=charged, by_sweep=by_sweep)
    drop_ttl(queue, record)
    if record.unique_key is not None:
        queue.unique_keys.free(record)
    attempt = record.attempts_made
    queue.failed_total += 1
    if state.events.any:
        carried = {
            "error": failure.error,
            "reason": str(failure.reason),
            "attempt": attempt,
            "terminal": True,
        }
        emit(state, queue, "failed", record.id, now, carried)
    if state.dependencies.dependents or links_of(record) is not None:
        record_end(state, queue, record, now)
    keep = record.options.remove_on_fail
    if keep is True:
        forget(state, queue, record, remember=True)
    else:
        due = queue.dead.add(record, queue.shard.deadlines)
        mark(queue, record)
        if due is not None and due < state.alarm.due_ms:
            # one that comes back may be past its age: that is no lateness of the scheduler
            state.alarm.set(max(due, now))
        if state.events.any:
            emit(state, queue, "dlq_added", record.id, now, {"reason": str(failure.reason)})
        for oldest in queue.dead.excess():
            forget(state, queue, oldest, remember=True)
        if keep is not False:
            _keep(state, queue, record, keep, now)
    resolve(queue, record.id, "failed", failure)
    queue.freed(now)
    if not queue.active:
        ran_dry(state, queue, now)


def leave_stage(queue: QueueState, record: JobRecord, now: int) -> None:
    """Takes a live record out of the structure of its state, and gives back what it holds there."""
    if record.state == ACTIVE:
        queue.leave_active(record, now)
        drop_deadlines(queue, record.delivery)
    elif record.state == PENDING:
        seq = seq_of(record)
        queue.unplace(record, now)
        record.key = departed_key(seq)
    elif record.state == GATED:
        del queue.gated[record.id]


def drop_ttl(queue: QueueState, record: JobRecord) -> None:
    """Says that the ttl of a job that was live no longer matters, once it no longer is: a sweep
    goes by the state, and would take what is stale for what matters."""
    if record.options.ttl_ms is not None and record.started_ms is None:
        queue.shard.deadlines.drop()


def drop_deadlines(queue: QueueState, delivery: Delivery | None) -> None:
    """Says that the delivery's lease (or stall check) and timeout no longer matter."""
    if delivery is not None:
        entries = (delivery.armed_ms is not None) + (delivery.timeout_ms is not None)
        if entries:
            queue.shard.deadlines.drop(entries)


def forget(state: State, queue: QueueState, record: JobRecord, *, remember: bool) -> None:
    """The record is gone: from its structure, the index, the custom ids and keys. `remember` leaves
    a proof of how a finished one ended; otherwise its result is dropped too."""
    was = record.state
    mark_gone(queue, record)
    drop_retention(queue, record)
    if was == COMPLETED:
        if queue.completed.discard(record):
            queue.shard.finished -= 1
            queue.shard.finished_bytes -= finished_size(record)
    elif was == FAILED:
        queue.dead.records.pop(record.id, None)
    else:
        interrupt(queue.shard, record.delivery, LOCK_LOST)
        leave_stage(queue, record, state.now())
    queue.counted.pop(record.id, None)
    custom_id = record.custom_id
    if custom_id is not None and queue.custom_ids.get(custom_id) is record:
        del queue.custom_ids[custom_id]
    if record.unique_key is not None:
        queue.unique_keys.free(record)
    needed, side = False, record.side
    if state.dependencies.dependents or (side is not None and side.links is not None):
        needed = record_leave(state, queue, record, was)
    if needed:
        pass  # whoever needs it has its proof and its result
    elif remember and was in (COMPLETED, FAILED):
        failure = record.side.failure if was == FAILED and record.side is not None else None
        proof = Proof(queue.name, record.entered_ms, record.result_size >= 0, failure)
        state.proofs.put(record.id, proof)
    elif record.result_size >= 0:
        state.results.drop(record.id)
    if state.logs.jobs and record.id in state.logs.jobs:
        drop_log(state, queue.shard, record.id)
    record.remove()
    if was in (PENDING, GATED, ACTIVE):
        drop_ttl(queue, record)
    del state.index[record.id]
    queue.departed += 1


def _vanish(state: State, queue: QueueState, record: JobRecord) -> None:
    """What `forget` does, for a job that was completed just now and has never been among those
    that are kept."""
    mark_gone(queue, record)
    job_id, custom_id, side = record.id, record.custom_id, record.side
    if custom_id is not None and queue.custom_ids.get(custom_id) is record:
        del queue.custom_ids[custom_id]
    needed = False
    if state.dependencies.dependents or (side is not None and side.links is not None):
        needed = record_leave(state, queue, record, COMPLETED)
    if not needed:
        told = queue.name, record.entered_ms, record.result_size >= 0, None
        state.proofs.put(job_id, _tuple(Proof, told))
    if state.logs.jobs and job_id in state.logs.jobs:
        drop_log(state, queue.shard, job_id)
    record.remove()
    del state.index[job_id]
    queue.departed += 1


def resolve(queue: QueueState, job_id: str, kind: str, value: object) -> None:
    """Tells everybody who waits for this job's outcome."""
    watchers = queue.shard.watched.pop(job_id, None)
    if watchers is not None:
        for watcher in watchers:
            watcher.resolve(queue.shard, kind, value)


def drop_retention(queue: QueueState, record: JobRecord) -> None:
    """Says that a finished job's retention age, and its moments as a dead letter, no longer
    matter."""
    if record.state == FAILED:
        queue.dead.disarm(record, queue.shard.deadlines)
    if goes_by_age(record):
        queue.shard.deadlines.drop()


def goes_by_age(record: JobRecord) -> bool:
    """Whether a finished job leaves at a certain age."""
    options = record.options
    keep = options.remove_on_complete if record.state == COMPLETED else options.remove_on_fail
    return (
        record.state in (COMPLETED, FAILED) and isinstance(keep, Keep) and keep.age_ms is not None
    )


def evict(state: State, queue: QueueState, limit: int) -> None:
    """Lets the oldest `limit` completed jobs of the queue go, each leaving a proof: what `forget`
    does for one, in the form that a full memory needs at every completion. Where the file keeps
    all, they stay in that, but for those with a bound of their own."""
    custom_ids, index, size = queue.custom_ids, state.index, 0
    leaving = queue.completed.first(limit)
    proofs: dict[str, Proof] = {}
    proof = Proof(queue.name, -1, False, None)
    for record in leaving:
        has_result = record.result_size >= 0
        if proof.finished_ms != record.entered_ms or proof.has_result is not has_result:
            # one for all that ended alike in one millisecond
            proof = Proof(queue.name, record.entered_ms, has_result, None)
        proofs[record.id] = proof
    # before anything leaves: an exception between must not make a completed job unknown
    state.proofs.put_many(proofs)
    marked, kept = queue.shard.dirty is not None, is_kept(state)
    logged = state.logs.jobs
    dependents = state.dependencies.dependents
    for record in leaving:
        job_id = record.id
        if dependents and job_id in dependents:
            pin_proof(state, queue, job_id, proofs[job_id])
        if kept and record.options.remove_on_complete is False:
            leave(queue, record)
        elif marked:
            mark_gone(queue, record)
            if record.side is not None and record.side.links is not None:
                drop_edges(queue, record, record.side.links)
        if logged and job_id in logged:
            drop_log(state, queue.shard, job_id)
        size += len(record.data)
        if record.result_size > 0:
            size += record.result_size
        if record.options.remove_on_complete is not False:
            drop_retention(queue, record)
            queue.counted.pop(job_id, None)
        custom_id = record.custom_id
        if custom_id is not None and custom_ids.get(custom_id) is record:
            del custom_ids[custom_id]
        # in this order: what a rebuild finds removed in the index, it removes from the file too
        del index[job_id]
        record.remove()
    queue.completed.pop_oldest(leaving)
    queue.departed += len(leaving)
    queue.shard.finished -= len(leaving)
    queue.shard.finished_bytes -= size


def ran_dry(state: State, queue: QueueState, now: int) -> None:
    """Nothing is active: if nothing is pending either, says so."""
    # all that are here have ended: as `queue.is_idle` has it, in two sums instead of five
    if queue.admitted - queue.departed != queue.completed.size + len(queue.dead.records):
        return
    tell = state.events.empty
    if tell is not None:
        tell(queue, None, now, None)
    if queue.empty_waiters:
        queue.settle_idle()


def removed(state: State, queue: QueueState, record: JobRecord, now: int) -> None:
    """Removes a job at somebody's wish, with its event and its watchers."""
    live = record.state in (PENDING, GATED, ACTIVE)
    forget(state, queue, record, remember=not live)
    if live:
        resolve(queue, record.id, "removed", None)
    if state.events.any:
        emit(state, queue, "removed", record.id, now)


def _keep(state: State, queue: QueueState, record: JobRecord, keep: bool | Keep, now: int) -> None:
    assert isinstance(keep, Keep)
    if keep.age_ms is not None:
        queue.shard.deadlines.push(now + keep.age_ms, RETENTION, record)
        if now + keep.age_ms < state.alarm.due_ms:
            state.alarm.set(now + keep.age_ms)
    if keep.count is not None:
        queue.counted[record.id] = record
        while len(queue.counted) > keep.count:
            oldest = next(iter(queue.counted.values()))
            forget(state, queue, oldest, remember=True)
