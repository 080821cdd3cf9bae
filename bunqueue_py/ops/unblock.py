"""What a job that completed means to those that wait for it, under the lock of their shard."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.job import FAILED, GATED, JobRecord
from ..model.links import MET, STATUS
from ..shard.queue_state import QueueState
from ..state import State
from .emit import emit
from .outcomes import mark_late


def settle_met(
    state: State,
    job_id: str,
    dependents: Sequence[JobRecord],
    now: int,
    taker: QueueState | None = None,
) -> None:
    """That job has completed: those no longer wait for it. Their shard is held. `taker` as in
    `let_go`."""
    for record in dependents:
        side = record.side
        links = None if side is None else side.links
        code = None if links is None else links.edges.get(job_id)
        if links is None or code is None:
            continue
        if record.state == GATED and not code & STATUS:
            # the usual one, in line
            links.edges[job_id] = code | MET
            links.unmet = unmet = links.unmet - 1
            if not unmet:
                let_go(state, record.queue, record, now, taker)
        elif record.state <= FAILED:
            links.settle(job_id, MET)


def let_go(
    state: State,
    queue: QueueState,
    record: JobRecord,
    now: int,
    taker: QueueState | None = None,
) -> None:
    """Nothing holds the gated record back any more: it is ready, or delayed as it was asked to be.
    The caller has marked the gate, and looks itself at what there is now if the queue is `taker`:
    then nobody is woken."""
    del queue.gated[record.id]
    record.unblock(now)
    # in an empty lane, which has no stale mark of it either, it takes the way of those that come in
    place, side = queue.ready, record.side
    records = place.lane.records
    empty = not (records or record.priority or place.heaped)
    if (
        empty
        and queue.groups is None
        and record.run_at_ms <= now
        and not record.options.lifo
        and (side is None or not (side.anchored or side.group))
    ):
        # what `place` does, in line: the way of every job of a chain
        queue.seq = seq = queue.seq + 1
        record.key = seq
        records.append(record)
        ready = True
    else:
        ready = queue.place(record, now, in_order=empty and queue.groups is None)
    dirty = queue.shard.dirty
    if dirty is not None:
        mark_late(dirty, record)
    if state.events.any:
        seen = queue.state_of(record, now, state.wall())
        emit(state, queue, "unblocked", record.id, now, {"state": str(seen)})
    if queue.waiters.line and queue is not taker and not queue.paused:
        if ready:
            queue.wake(1, now)
        else:
            due = queue.next_due(now, state.wall())
            if due is not None:
                queue.waiters.due(due)
