"""Go on: a run ended well, and whoever ran it takes the job that waited for it alone."""

from __future__ import annotations

from ..errors import StorageError
from ..model.snapshot import JobSnapshot
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..shard.waiters import Waiter
from ..state import State
from ..stores.timings import SAMPLED
from ..types import Outcome
from .ack import APPLIED, GONE, ack_batch, judge_token
from .finish import complete
from .pull import start_run
from .recover import check_open, enter
from .retention import trim


def go_on(
    state: State,
    job_id: str,
    token: str | None,
    data: bytes | None,
    lease_ms: int,
    owner: str,
    waiter: Waiter,
) -> tuple[Outcome, StorageError | None, JobSnapshot | None]:
    """`ack_batch` of one that is not durable. If that lets a job of the same queue go where nothing
    else is ready, and the waiter is not cancelled, that job is delivered, and has begun: in the
    same hold of the lock, and without waking anybody who could only come too late for it."""
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return GONE, None, None
    if record.options.repeat is not None:
        outcomes, problem = ack_batch(state, ((job_id, token, data),))
        return outcomes[0], problem, None
    queue: QueueState = record.queue
    timings, began_ns = state.timings, 0
    if timings is not None and not queue.completed_total & SAMPLED:
        began_ns = timings.now_ns()
    shard, view = queue.shard, None
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        delivery = record.delivery
        if delivery is None or delivery.token != token:
            refused = judge_token(record, token, late_ack=True)
            if refused is not None:
                return refused, None, None
        shard.gate = BROKEN
        now = state.now()
        # a rebuild may have made it anew
        ready = queue.ready
        records = ready.lane.records
        if (
            job_id not in state.dependencies.dependents
            or records
            or ready.heaped
            or (ready.lanes is not None and ready.lanes.order)
            or queue.groups is not None
            or queue.limits is not None
            or queue.paused
            or shard.careful_ms
        ):
            complete(state, queue, record, data, now)
        else:
            complete(state, queue, record, data, now, queue)
            due = None
            if queue.delayed.members or queue.anchored.members:
                due = queue.next_due(now, state.wall())
            if (
                len(records) == 1
                and not ready.heaped
                and (ready.lanes is None or not ready.lanes.order)
                and (due is None or due > now)
                and records[0].options.ttl_ms is None
                and not waiter.cancelled
            ):
                view = start_run(state, queue, records.popleft(), now, lease_ms, owner, True)
            elif queue.waiters.line:
                # of those that were let go, nobody has been woken for any
                queue.wake(queue.ready_count, now)
            if due is not None:
                queue.waiters.due(due)
        shard.gate = OPEN
    if shard.after:
        shard.call_after()
    if view is not None and not state.alarm.served:
        state.alarm.start()
    if not shard.completions & state.trim_mask or shard.finished_bytes > state.trim_bytes:
        trim(state)
    if timings is not None and began_ns:
        timings.ack.end(began_ns)
    if state.storage is not None:
        try:
            state.storage.admit()
        except StorageError as error:
            return APPLIED, error, view
    return APPLIED, None, view
