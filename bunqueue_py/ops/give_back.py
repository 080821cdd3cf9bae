"""An active job is pending again, and nobody is to blame. Called under its shard's lock."""

from __future__ import annotations

from ..model.cancel import LOCK_LOST
from ..model.job import JobRecord
from ..shard.deadlines import TTL
from ..shard.keys import seq_of
from ..shard.queue_state import QueueState
from ..state import State
from .fail import announce
from .finish import drop_deadlines, emit
from .interrupt import interrupt
from .mark import mark
from .recover import ttl_due


def give_back(
    state: State, queue: QueueState, record: JobRecord, now: int, delay_ms: int, *, started: bool
) -> None:
    """The active job is pending again, no attempt charged; its shard is held. `started` says that
    its handler was called; if not, the job has last started when it had before."""
    delivery = record.delivery
    queue.leave_active(record, now)
    interrupt(queue.shard, delivery, LOCK_LOST)
    drop_deadlines(queue, delivery)
    seq = None if delay_ms else seq_of(record)
    record.requeue(now + delay_ms if delay_ms else record.run_at_ms, now, "released")
    if not started:
        record.started_ms = getattr(delivery, "before_ms", None)
        if record.options.ttl_ms is not None and record.started_ms is None:
            queue.shard.deadlines.push(ttl_due(record), TTL, record)
            # past due is no lateness of the scheduler
            state.alarm.set(max(ttl_due(record), now))
    ready = queue.place(record, now, seq)
    mark(queue, record)
    if state.events.any:
        emit(state, queue, "released", record.id, now)
    announce(state, queue, record, now, ready=ready)
