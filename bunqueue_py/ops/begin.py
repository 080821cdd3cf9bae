"""Begin: the handler of a job that was claimed in a batch starts now."""

from __future__ import annotations

from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .finish import emit
from .give_back import give_back
from .mark import mark
from .pull import arm_timeout
from .recover import check_open, enter


def begin(state: State, job_id: str, token: str | None) -> bool:
    """The handler of a claimed job starts now: stamps it. False if the delivery has ended, or
    if the queue is paused: the job then goes back. Where there is a storage, the caller lets
    `mark_begun` follow soon unless the job has ended by then."""
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return False
    queue: QueueState = record.queue
    shard = queue.shard
    if not (state.events.active is not None or queue.paused or shard.gate):
        delivery = record.delivery
        if delivery is None or delivery.token != token:
            return False
        if delivery.begun:
            return True
        if record.options.timeout_ms is None:
            # nobody has to hear of it, so it needs no lock: a batch of short jobs would pay for
            # one each, and two switches of threads where another thread pushes meanwhile. If the
            # delivery ends at this very moment, the handler had begun before that; `entered_ms`,
            # by which structures are ordered, stays the moment of the claim
            delivery.begun = True
            record.started_ms = state.now()
            return True
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        delivery = record.delivery
        if delivery is None or delivery.token != token:
            return False
        if delivery.begun:
            return True
        shard.gate = BROKEN
        now = state.now()
        if queue.paused:
            give_back(state, queue, record, now, 0, started=False)
            shard.gate = OPEN
            return False  # whoever holds it is told by this answer
        delivery.begun = True
        record.started_ms = now
        mark(queue, record)
        if record.options.timeout_ms is not None:
            arm_timeout(state, queue, delivery, now)
        if state.events.any:
            emit(state, queue, "active", job_id, now)
        shard.gate = OPEN
    return True


def mark_begun(state: State, job_id: str, token: str | None) -> None:
    """Has the storage know that the delivery has begun, if it is still under way."""
    record = state.index.get(job_id)
    if record is None or state.storage is None:
        return
    queue: QueueState = record.queue
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        delivery = record.delivery
        if delivery is not None and delivery.token == token:
            shard.gate = BROKEN
            mark(queue, record)
            shard.gate = OPEN
