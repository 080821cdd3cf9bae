"""Park: a handler has added children, and its job waits for them."""

from __future__ import annotations

from ..model.failure import Failure
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import FailureReason
from .ack import answer, judge_token
from .commit import keep_up
from .fail import announce, end_run
from .finish import drop_deadlines, emit
from .flow import review, settle_gated
from .mark import mark
from .outcomes import links_of, mark_edges
from .recover import check_open, enter

_CHILDLESS = Failure(
    FailureReason.UNRECOVERABLE,
    "WaitForChildren: the job has no children and depends on nothing, so it would wait for ever "
    "or run for ever; add_child() first",
)


def park(state: State, job_id: str, token: str | None) -> bool:
    """The run ends, no attempt charged, and the job waits until its children are done; it is ready
    at once if they are already, and fails at once if one has failed that it cannot do without.
    False if the delivery has ended; `LockError` for a token that was never issued."""
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return False
    queue: QueueState = record.queue
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        refused = judge_token(record, token, late_ack=False)
        if refused is None:
            shard.gate = BROKEN
            now = state.now()
            links = links_of(record)
            if links is None or not links.edges:
                end_run(state, queue, record, _CHILDLESS, 0, now)
            else:
                queue.leave_active(record, now)
                drop_deadlines(queue, record.delivery)
                record.park(now)
                queue.gate(record)
                mark(queue, record)
                mark_edges(queue, record, links)
                if state.events.any:
                    emit(state, queue, "released", job_id, now)
                # what failed while it ran was left for now
                settle_gated(state, queue, record, review(state, record, links), now)
                announce(state, queue, record, now, ready=False)
            shard.gate = OPEN
    if refused is not None:
        answer(record, refused)
        return False
    shard.call_after()
    keep_up(state)
    return True
