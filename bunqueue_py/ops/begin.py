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
    if the queue is paused: the job then goes back."""
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return False
    queue: QueueState = record.queue
    shard = queue.shard
    if (
        record.started_ms == state.now()
        and not state.events.any
        and not queue.paused
        and not shard.gate
    ):
        delivery = record.delivery
        if delivery is None or delivery.token != token:
            return False
        if delivery.begun or shard.dirty is None:
            # begun in the millisecond of its claim, whose stamps it bears already, and nobody
            # listens: what is left to say needs no lock, which a batch of short jobs would pay for
            # each; unless it is to be on disk that it has begun
            delivery.begun = True
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
        record.started_ms = record.entered_ms = now
        mark(queue, record)
        if record.options.timeout_ms is not None:
            arm_timeout(state, queue, delivery, now)
        if state.events.any:
            emit(state, queue, "active", job_id, now)
        shard.gate = OPEN
    return True
