"""Ack: a run ended well."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import LockError, StorageError
from ..model.job import COMPLETED, FAILED, PENDING, REMOVED, JobRecord
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..stores.timings import SAMPLED
from ..types import Outcome
from .bulk import complete_plain
from .commit import outcome_cut, settle
from .finish import complete
from .recover import check_open, enter
from .repeat import complete_and_repeat
from .retention import trim

APPLIED = Outcome(True)
GONE = Outcome(False, "gone")
LOCK_LOST = Outcome(False, "lock_lost")
FINALIZED = Outcome(False, "already_finalized")
NOT_ISSUED = Outcome(False, "not_issued")


def ack(state: State, job_id: str, token: str | None, data: bytes | None) -> Outcome:
    """Completes the job if the token is that of its delivery (SPEC 5's table); a durable one on
    disk, too. Raises `StorageError` with `accepted` if that fails."""
    timings = state.timings
    began_ns = cut = 0
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return GONE
    queue: QueueState = record.queue
    if timings is not None and not queue.completed_total & SAMPLED:
        began_ns = timings.now_ns()
    shard, clock, storage = queue.shard, state.now, state.storage
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        delivery = record.delivery
        if delivery is None or delivery.token != token:
            refused = judge_token(record, token, late_ack=True)
            if refused is not None:
                return answer(record, refused)
        shard.gate = BROKEN
        if record.options.repeat is None:
            complete(state, queue, record, data, clock())
        else:
            complete_and_repeat(state, queue, record, data, clock())
        shard.gate = OPEN
        if storage is not None and record.options.durable:
            cut = outcome_cut(state, record)
    if shard.after:
        shard.call_after()
    if not shard.completions & state.trim_mask or shard.finished_bytes > state.trim_bytes:
        trim(state)
    if storage is not None:
        if cut:
            settle(state, cut, job_id)
        else:
            storage.admit()
    if began_ns and timings is not None:
        timings.ack.end(began_ns)
    return APPLIED


def ack_batch(
    state: State, items: Sequence[tuple[str, str | None, bytes | None]]
) -> tuple[list[Outcome], StorageError | None]:
    """Like `ack` for each (id, token, encoded result), in order, with one hold of the lock for
    each run of items of one queue; a token that was never issued answers `not_issued`. Waits once
    for all durable ones; returns what went wrong with that."""
    timings = state.timings
    if len(items) == 1 and timings is None:
        # what `ack` does, and tells in another way
        job_id, token, data = items[0]
        try:
            return [ack(state, job_id, token, data)], None
        except LockError:
            return [NOT_ISSUED], None
        except StorageError as error:
            return [APPLIED], error
    check_open(state)
    began_ns = 0 if timings is None else timings.now_ns()
    outcomes: list[Outcome] = []
    waits: list[tuple[int, str]] = []
    position, end = 0, len(items)
    while position < end:
        record = state.index.get(items[position][0])
        if record is None:
            outcomes.append(GONE)
            position += 1
            continue
        queue: QueueState = record.queue
        position = _ack_run(state, queue, items, position, outcomes, waits)
        if queue.shard.after:
            queue.shard.call_after()
        trim(state)
    if state.storage is not None:
        try:
            # the last one is in the last cut
            settle(state, *(waits[-1] if waits else (0, None)))
        except StorageError as error:
            return outcomes, error
    if began_ns and timings is not None:
        timings.ack.end(began_ns)
    return outcomes, None


def _ack_run(
    state: State,
    queue: QueueState,
    items: Sequence[tuple[str, str | None, bytes | None]],
    position: int,
    outcomes: list[Outcome],
    waits: list[tuple[int, str]],
) -> int:
    shard, index = queue.shard, state.index
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        if position + 1 < len(items) and queue.limits is None and not state.dependencies.dependents:
            shard.gate = BROKEN
            begun, position = position, complete_plain(state, queue, items, position, now)
            shard.gate = OPEN
            outcomes += [APPLIED] * (position - begun)
        for i in range(position, len(items)):
            job_id, token, data = items[i]
            record = index.get(job_id)
            if record is None:
                outcomes.append(GONE)
                continue
            if record.queue is not queue:
                return i
            delivery = record.delivery
            if delivery is None or delivery.token != token:
                refused = judge_token(record, token, late_ack=True)
                if refused is not None:
                    outcomes.append(refused)
                    continue
            shard.gate = BROKEN
            if record.options.repeat is None:
                complete(state, queue, record, data, now)
            else:
                complete_and_repeat(state, queue, record, data, now)
            shard.gate = OPEN
            outcomes.append(APPLIED)
            if shard.dirty is not None and record.options.durable:
                waits.append((outcome_cut(state, record), job_id))
    return len(items)


def judge_token(record: JobRecord, token: str | None, *, late_ack: bool) -> Outcome | None:
    """What a token that is not plainly the current one is answered; `None` means go on.

    SPEC 5's table: without a token only a delivery that took no lock may be settled; one that a
    sweep retired may still be acked while the job is pending; any other that was issued has lost
    its lock; the rest was never issued.
    """
    if record.state == REMOVED:
        return GONE
    delivery = record.delivery
    if delivery is not None and (
        token == delivery.token or (token is None and delivery.lease_ms is None)
    ):
        return None
    issued, by_sweep = record.issued(token)
    if not issued:
        return NOT_ISSUED
    if record.state in (COMPLETED, FAILED):
        return FINALIZED
    if late_ack and by_sweep and record.state == PENDING:
        return None
    return LOCK_LOST


def answer(record: JobRecord, refused: Outcome) -> Outcome:
    """The outcome, or the `LockError` of a token that was never issued."""
    if refused is NOT_ISSUED:
        raise LockError(
            f"job {record.id} is not held by this token: it is missing or was never issued for "
            "it. Use the Job that pull() returned, or give its token",
            job_id=record.id,
        )
    return refused
