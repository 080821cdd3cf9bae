"""Cancel: a running job ends for good; and what its handler can ask about that."""

from __future__ import annotations

from ..errors import JobStateError, LockError
from ..model.cancel import CLOSING, LOCK_LOST, STALLED, Cancellation
from ..model.failure import Failure, bounded
from ..model.job import ACTIVE, COMPLETED, FAILED, Delivery, JobRecord
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import FailureReason
from .ack import judge_token
from .commit import outcome_cut, settle
from .control import find, still_there
from .finish import emit, finalize
from .interrupt import reason_of
from .recover import check_open, enter


def cancel(state: State, job_id: str, of: str | None, why: str | None) -> bool:
    """Fails an active job for good, with the reason `cancelled`, and tells its handler. False if it
    has finished. Raises `JobNotFoundError`, `JobStateError` for a job that waits."""
    record, queue = find(state, job_id, of)
    shard = queue.shard
    text = "cancelled while it ran" if why is None else f"cancelled: {bounded(why, 4_000)}"
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        if record.state in (COMPLETED, FAILED):
            return False
        if record.state != ACTIVE:
            raise JobStateError(
                f"job {job_id} does not run, so there is nothing to cancel; discard() ends a job "
                "that waits",
                job_id=job_id,
            )
        now = state.now()
        failure = Failure(FailureReason.CANCELLED, text)
        row = record.attempt_row(failure, now)
        shard.gate = BROKEN
        if state.events.any:
            emit(state, queue, "cancelled", job_id, now, {"error": text})
        finalize(state, queue, record, failure, now, charged=row)
        shard.gate = OPEN
        cut = outcome_cut(state, record)
    shard.call_after()
    settle(state, cut, job_id)
    return True


def cancellation_of(state: State, job_id: str, token: str | None) -> Cancellation:
    """What the delivery of that token is told; set already, where it has ended. Raises `LockError`
    for a token that is missing or was never issued."""
    if token is None:
        raise LockError(
            f"this Job {job_id} was looked up: only one that a handler was given, or pull() "
            "returned, has a run that can be cancelled",
            job_id=job_id,
        )
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return Cancellation(state.clock, LOCK_LOST)
    queue: QueueState = record.queue
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        delivery = record.delivery
        if delivery is not None and delivery.token == token:
            return _attached(state, delivery)
        issued, _ = record.issued(token)
        if not issued:
            raise LockError(
                f"job {job_id} is not held by this token: it was never issued for it", job_id=job_id
            )
        return Cancellation(state.clock, _past_reason(record, token))


def announce_closing(state: State, job_id: str, token: str | None) -> None:
    """The worker of that delivery closes: its handler is told, and keeps its lock."""
    record = state.index.get(job_id)
    if record is None:
        return
    queue: QueueState = record.queue
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        delivery = record.delivery
        if delivery is not None and judge_token(record, token, late_ack=False) is None:
            _attached(state, delivery).set(CLOSING)


def _attached(state: State, delivery: Delivery) -> Cancellation:
    found: Cancellation | None = getattr(delivery, "cancellation", None)
    if found is None:
        found = delivery.cancellation = Cancellation(state.clock)
    return found


def _past_reason(record: JobRecord, token: str) -> str:
    """Why a delivery that nobody had asked about ended: the history tells of the latest one."""
    side = record.side
    if side is None or not side.attempts or not side.retired or side.retired[-1][0] != token:
        return LOCK_LOST
    reason = reason_of(side.attempts[-1].failure)
    return LOCK_LOST if reason == STALLED else reason
