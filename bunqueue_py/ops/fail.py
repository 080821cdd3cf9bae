"""Fail: a run ended badly. What follows is decided as a value first, then applied."""

from __future__ import annotations

from typing import NamedTuple

from ..model.failure import Failure, trimmed, undecodable_of
from ..model.job import JobRecord
from ..model.side import AttemptRow
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import FailureReason, Outcome
from .ack import APPLIED, GONE, answer, judge_token
from .commit import outcome_cut, settle
from .finish import drop_deadlines, emit, finalize
from .interrupt import interrupt, reason_of
from .mark import mark
from .recover import check_open, enter
from .tally import note_run


class Verdict(NamedTuple):
    """What a failed run leads to: another one at `retry_at_ms`, or the end for `reason`."""

    retry_at_ms: int | None
    reason: FailureReason


class FailResult(NamedTuple):
    """The outcome of a fail, and whether the job will run again."""

    outcome: Outcome
    will_retry: bool


def fail(
    state: State,
    job_id: str,
    token: str | None,
    text: str,
    stack: tuple[str, ...],
    error: BaseException | str,
    *,
    unrecoverable: bool,
    work_done: bool = False,
    cause: FailureReason = FailureReason.UNKNOWN,
) -> FailResult:
    """Charges the attempt, then retries or ends the job. `error` is what a custom back-off is
    shown; `text` and `stack` are what is kept. `work_done` says that the handler had finished and
    only its result is at fault: then a token that a sweep retired still ends the pending job, as
    its ack would have, so that the work is not done twice. `cause` is the reason where no
    handler gave one. Raises `StorageError` with `accepted` if the job is durable, has ended, and
    that could not be committed."""
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return FailResult(GONE, False)
    queue: QueueState = record.queue
    shard = queue.shard
    delivery = record.delivery
    wait_ms = 0
    if delivery is not None and token in (delivery.token, None):
        # outside the lock: a custom back-off is the application's code
        wait_ms = wait_before_retry(state, record, error)
    reason = FailureReason.UNRECOVERABLE if unrecoverable else cause
    if undecodable_of(error) == job_id:
        # no other run would read it either
        reason = FailureReason.UNDECODABLE
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        refused = judge_token(record, token, late_ack=work_done)
        if refused is None:
            now = state.now()
            failure = Failure(reason, text, stack)
            shard.gate = BROKEN
            if record.delivery is None:
                finalize(state, queue, record, failure, now)
                verdict = Verdict(None, reason)
            else:
                verdict = end_run(state, queue, record, failure, wait_ms, now)
            shard.gate = OPEN
            cut = -1
            if shard.dirty is not None:
                cut = outcome_cut(state, record) if verdict.retry_at_ms is None else 0
    if refused is not None:
        return FailResult(answer(record, refused), False)
    shard.call_after()
    if cut >= 0:
        settle(state, cut, job_id)
    return FailResult(APPLIED, verdict.retry_at_ms is not None)


def wait_before_retry(state: State, record: JobRecord, error: BaseException | str) -> int:
    """The back-off after the run that is under way; runs the application's rule, so never under
    a lock. The number of the run cannot change while its delivery lasts."""
    attempt = record.attempts_made + 1
    if attempt >= record.options.attempts:
        return 0
    return record.options.backoff.wait_ms(attempt, error, state.ids.random)


def decide(
    record: JobRecord, row: AttemptRow, wait_ms: int, now: int, *, by_sweep: bool
) -> Verdict:
    """What comes after the run of that row; changes nothing."""
    cause = row.failure.reason
    if cause in (FailureReason.UNRECOVERABLE, FailureReason.UNDECODABLE):
        return Verdict(None, cause)
    if row.attempt >= record.options.attempts:
        # a job that died by timeouts or stalls says so; a plain error says that it had its runs
        plain = cause is FailureReason.UNKNOWN
        return Verdict(None, FailureReason.MAX_ATTEMPTS_EXCEEDED if plain else cause)
    stalls = (0 if record.side is None else record.side.stall_count) + by_sweep
    bound: int = record.queue.stalls.max_stalls
    if by_sweep and bound and stalls >= bound:
        return Verdict(None, cause)
    return Verdict(now + wait_ms, cause)


def end_run(
    state: State,
    queue: QueueState,
    record: JobRecord,
    failure: Failure,
    wait_ms: int,
    now: int,
    *,
    by_sweep: bool = False,
) -> Verdict:
    """Applies the end of a bad run of an active job, whatever ended it; its shard is held."""
    failure = failure._replace(stack=trimmed(failure.stack, record.options.stack_trace_limit))
    row = record.attempt_row(failure, now)
    verdict = decide(record, row, wait_ms, now, by_sweep=by_sweep)
    if verdict.retry_at_ms is None:
        failure = failure._replace(reason=verdict.reason)
        finalize(state, queue, record, failure, now, charged=row, by_sweep=by_sweep)
        return verdict
    if queue.shard.times is not None:
        note_run(queue.shard.times, record, now)
    interrupt(queue.shard, record.delivery, reason_of(failure))
    queue.leave_active(record, now)
    drop_deadlines(queue, record.delivery)
    record.requeue(verdict.retry_at_ms, now, "retrying", charged=row, by_sweep=by_sweep)
    ready = queue.place(record, now)
    mark(queue, record)
    if state.events.any:
        carried = {
            "error": failure.error,
            "attempt": row.attempt,
            "terminal": False,
            "retry_at_ms": verdict.retry_at_ms,
        }
        emit(state, queue, "failed", record.id, now, carried)
    announce(state, queue, record, now, ready=ready)
    return verdict


def announce(state: State, queue: QueueState, record: JobRecord, now: int, *, ready: bool) -> None:
    """A job is back among the pending: wakes whom that concerns."""
    if queue.waiters.line and not queue.paused:
        if ready:
            queue.wake(1, now)
        else:
            # the slot that it held is free, though it waits itself
            queue.freed(now)
            due = queue.next_due(now, state.wall())
            if due is not None:
                queue.waiters.due(due)
