"""Changing a job that waits: sooner, later, before others, other data, or not at all."""

from __future__ import annotations

from ..errors import JobStateError, LockError
from ..model.failure import Failure
from ..model.job import ACTIVE, COMPLETED, FAILED, GATED, PENDING, JobRecord
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import FailureReason, JobState
from .ack import NOT_ISSUED, answer, judge_token
from .commit import keep_up, outcome_cut, settle
from .control import find, still_there
from .fail import announce
from .finish import emit, finalize
from .mark import mark, mark_data
from .query import queue_of
from .recover import enter

_BITE = 250
_DISCARDED = Failure(FailureReason.DISCARDED, "discarded while it was pending")


def promote(state: State, job_id: str, of: str | None) -> bool:
    """Makes a delayed job ready, behind those that are ready already; False if it is ready
    itself. Raises `JobNotFoundError`, `JobStateError` for one that does not wait."""
    record, queue = find(state, job_id, of)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        now = state.now()
        _require(state, queue, record, PENDING, "promoted: only a job that is delayed can be")
        if queue.state_of(record, now, state.wall()) is not JobState.DELAYED:
            return False
        shard.gate = BROKEN
        _promote(state, queue, record, now)
        announce(state, queue, record, now, ready=True)
        shard.gate = OPEN
    keep_up(state)
    return True


def promote_all(state: State, queue_name: str, limit: int | None) -> int:
    """Makes delayed jobs ready, soonest first: at most `limit`, and at most as many as there were
    at the start; in bites, so that others get their turn. Returns how many."""
    queue = queue_of(state, queue_name)
    shard = queue.shard
    done, left = 0, limit
    while True:
        with queue.lock:
            if shard.gate:
                enter(state, shard)
            now, wall = state.now(), state.wall()
            if not done:
                delayed = queue.counts(now, wall).delayed
                left = delayed if left is None else min(left, delayed)
            assert left is not None
            batch = queue.not_due(now, wall, min(_BITE, left - done))
            shard.gate = BROKEN
            for record in batch:
                _promote(state, queue, record, now)
            if batch:
                queue.wake(len(batch), now)
            shard.gate = OPEN
        keep_up(state)
        done += len(batch)
        if not batch or done >= left:
            return done


def _promote(state: State, queue: QueueState, record: JobRecord, now: int) -> None:
    queue.move_to(record, now, now, "promoted")
    mark(queue, record)
    if state.events.any:
        emit(state, queue, "promoted", record.id, now)


def discard(state: State, job_id: str, of: str | None) -> bool:
    """Fails a job that waits, for good, with reason `discarded`; a durable one on disk.
    Raises `JobNotFoundError`, `JobStateError` for one that does not wait."""
    record, queue = find(state, job_id, of)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        _require(state, queue, record, GATED, "discarded: only a job that waits can be")
        shard.gate = BROKEN
        finalize(state, queue, record, _DISCARDED, state.now())
        shard.gate = OPEN
        cut = outcome_cut(state, record)
    shard.call_after()
    if not state.alarm.served:
        # its dead letter has moments of its own, though nothing may ever have been pulled
        state.alarm.start()
    settle(state, cut, job_id)
    return True


def update_data(state: State, job_id: str, of: str | None, token: str | None, data: bytes) -> bool:
    """Gives the job other (encoded) data; False if they are the same.

    With a token it goes by the delivery: done for the current one, else `LockError`. Without one:
    done for a job that waits or has failed, or was pulled without a lock; `LockError` while it is
    held, `JobStateError` once it has completed. Raises `JobNotFoundError`.
    """
    record, queue = find(state, job_id, of)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        refused = None
        if token is not None or record.state == ACTIVE:
            refused = judge_token(record, token, late_ack=False)
        elif record.state == COMPLETED:
            _require(state, queue, record, GATED, "given other data")
        if refused is None:
            if record.data == data:
                return False
            shard.gate = BROKEN
            before, record.data = record.data, data
            mark_data(queue, record, before)
            shard.gate = OPEN
    if refused is None:
        keep_up(state)
        return True
    if refused is not NOT_ISSUED:
        raise LockError(
            f"this run of job {job_id} has lost its lock; its data were not kept", job_id=job_id
        )
    answer(record, refused)
    return False


def change_priority(
    state: State, job_id: str, of: str | None, priority: int, lifo: bool | None
) -> bool:
    """Gives a job that waits another priority (and `lifo`, unless `None`); False if it has that
    already. Among its new equals it stands by run_at and admission, as ever. O(log n). Raises
    `JobNotFoundError`, `JobStateError` for a job that does not wait."""
    record, queue = find(state, job_id, of)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        _require(state, queue, record, GATED, "moved: only a job that waits can change its place")
        options = record.options
        if lifo is not None:
            options = state.options.with_lifo(options, lifo)
        if record.priority == priority and record.options is options:
            return False
        shard.gate = BROKEN
        if record.state == GATED:
            record.priority, record.options = priority, options
        else:
            queue.reprioritize(record, priority, options, state.now())
        mark(queue, record)
        shard.gate = OPEN
    keep_up(state)
    return True


def change_delay(state: State, job_id: str, of: str | None, delay_ms: int) -> bool:
    """Has a job that waits run `delay_ms` from now, whatever its moment was; False if that is its
    moment, or if it is ready and the delay is 0. Raises `JobNotFoundError`, `JobStateError` for a
    job that does not wait."""
    record, queue = find(state, job_id, of)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        _require(state, queue, record, PENDING, "put off: only a job that waits can be")
        now = state.now()
        due = now + delay_ms
        delayed = queue.state_of(record, now, state.wall()) is JobState.DELAYED
        anchored = queue.anchored.holds(record)
        if (due == record.run_at_ms and not anchored) or not (delayed or delay_ms):
            return False
        shard.gate = BROKEN
        ready = queue.move_to(record, due, now, "delayed" if delay_ms else "promoted")
        mark(queue, record)
        if ready and state.events.any:
            emit(state, queue, "promoted", record.id, now)
        announce(state, queue, record, now, ready=ready)
        shard.gate = OPEN
    keep_up(state)
    return True


def _require(state: State, queue: QueueState, record: JobRecord, most: int, what: str) -> None:
    """Refuses a record whose state is beyond `most` (pending < gated < active < ...)."""
    if record.state > most:
        seen = queue.state_of(record, state.now(), state.wall())
        hint = "; retry() runs it again" if record.state in (COMPLETED, FAILED) else ""
        raise JobStateError(
            f"job {record.id} is {seen} and cannot be {what}{hint}", job_id=record.id
        )
