"""Leases: renewed, prolonged, given back, reported on; and the deadlines whose moment has come."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import JobNotFoundError, LockError, ManagerClosedError
from ..model.cancel import Holder
from ..model.failure import Failure, bounded
from ..model.job import ACTIVE, COMPLETED, FAILED, REMOVED, Delivery, JobRecord
from ..shard.deadlines import LEASE, RETENTION, STALL, TIMEOUT, TTL, Entry
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN, Shard
from ..state import State
from ..types import FailureReason
from .ack import NOT_ISSUED, answer, judge_token
from .commit import keep_up
from .dead_letters import judge_letter
from .expire import expire
from .fail import end_run, wait_before_retry
from .finish import emit, forget
from .give_back import give_back as give_back
from .mark import mark
from .recover import check_open, enter, ttl_due
from .stalls import Freeze, judge, looks_alive, spare

PROGRESS_EVENT_MS = 100
BITE = 64


def renew(state: State, job_id: str, token: str | None, duration_ms: int | None) -> bool:
    """Moves the delivery's expiry to now plus its own lease, or plus `duration_ms`, which then
    is its lease; for a delivery without a lock, a sign of life. False if the delivery has ended or
    the job is gone; `LockError` for a token that is missing or was never issued."""
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        return False
    queue: QueueState = record.queue
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        refused = judge_token(record, token, late_ack=False)
        if refused is None:
            delivery = record.delivery
            assert delivery is not None
            if duration_ms is not None:
                _prolong(state, queue, delivery, duration_ms)
            elif delivery.lease_ms is not None:
                delivery.expires_ms = state.now() + delivery.lease_ms
            else:
                delivery.beat_ms = state.now()
                delivery.suspected_ms = None
            return True
    answer(record, refused)
    return False


def renew_batch(state: State, items: Sequence[tuple[str, str | None]]) -> list[bool]:
    """`renew` for each; a token that was never issued answers False here. What goes wrong with
    one is raised once all the others have been renewed: it must not cost them their locks."""
    check_open(state)
    renewed = []
    broken: Exception | None = None
    for job_id, token in items:
        try:
            renewed.append(renew(state, job_id, token, None))
        except LockError:
            renewed.append(False)
        except ManagerClosedError:
            raise
        except Exception as error:  # whatever it was, the caller hears of it below
            broken = error
    if broken is not None:
        raise broken
    return renewed


def _prolong(state: State, queue: QueueState, delivery: Delivery, duration_ms: int) -> None:
    shard = queue.shard
    due = state.now() + duration_ms
    shard.gate = BROKEN
    if delivery.expires_ms is None and delivery.armed_ms is not None:
        # it had no lock: its stall check ends
        delivery.armed_ms = None
        shard.deadlines.drop()
    delivery.lease_ms = duration_ms
    if delivery.armed_ms is None or due < delivery.armed_ms:
        if delivery.armed_ms is not None:
            shard.deadlines.drop()
        delivery.armed_ms = due
        shard.deadlines.push(due, LEASE, delivery)
    delivery.expires_ms = due
    if due < state.alarm.due_ms:
        state.alarm.set(due)
    shard.gate = OPEN


def release_unstarted(state: State, items: Sequence[tuple[str, str | None]]) -> None:
    """Gives back (id, token) that were claimed together from one queue, and whose handlers never
    began, in one hold of the lock: nobody can take a later one before an earlier one is back."""
    queue = next((r.queue for r in (state.index.get(i) for i, _ in items) if r is not None), None)
    if queue is None:
        check_open(state)
        return
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        for job_id, token in items:
            record = state.index.get(job_id)
            if record is None or record.queue is not queue:
                continue
            delivery = record.delivery
            if delivery is not None and delivery.token == token:
                shard.gate = BROKEN
                give_back(state, queue, record, now, 0, started=False)
                shard.gate = OPEN
    shard.call_after()
    keep_up(state)


def release(state: State, job_id: str, token: str | None, delay_ms: int) -> bool:
    """Gives an active job back, uncharged: it takes its old place again, or waits `delay_ms`.
    False if the delivery has ended; `LockError` as in `renew`."""
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
            give_back(state, queue, record, state.now(), delay_ms, started=True)
            shard.gate = OPEN
    if refused is None:
        shard.call_after()
        keep_up(state)
        return True
    answer(record, refused)
    return False


def update_progress(
    state: State, job_id: str, token: str | None, percent: int | float, message: str | None
) -> None:
    """Stores the progress of the delivery under way. At most ten events a second and job.

    Raises `JobNotFoundError`, or `LockError` for any token but the current one.
    """
    record = state.index.get(job_id)
    if record is None:
        check_open(state)
        raise JobNotFoundError(f"job {job_id} is gone; its progress was not kept", job_id=job_id)
    queue: QueueState = record.queue
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        refused = judge_token(record, token, late_ack=False)
        if refused is None:
            shard.gate = BROKEN
            side = record.need_side()
            finishing = percent >= 100 > side.progress
            side.progress, side.progress_message = percent, message
            side.view = None
            mark(queue, record)
            owner = None if record.delivery is None else record.delivery.owner
            heard = owner.progressed if owner.__class__ is Holder else None
            if state.events.any or heard is not None:
                now = state.now()
                last = side.progress_event_ms
                if last is None or now - last >= PROGRESS_EVENT_MS or finishing:
                    side.progress_event_ms = now
                    if state.events.any:
                        carried = {"percent": percent, "message": message}
                        emit(state, queue, "progress", job_id, now, carried)
                    if heard is not None and token is not None:
                        heard(job_id, token)
            shard.gate = OPEN
    if refused is None:
        keep_up(state)
        return
    if record.state == REMOVED:
        raise JobNotFoundError(f"job {job_id} is gone; its progress was not kept", job_id=job_id)
    if refused is not NOT_ISSUED:
        raise LockError(
            f"this run of job {job_id} has lost its lock; its progress was not kept",
            job_id=job_id,
        )
    answer(record, refused)


def judge_due(state: State, shard: Shard, freezes: Sequence[Freeze] = ()) -> tuple[int, bool]:
    """Judges up to 64 deadlines of the shard that have passed, but spares leases that those
    freezes held up; returns how many it looked at, and whether there may be more."""
    due: list[Entry] = []
    try:
        looked, more = _collect_due(state, shard, due, freezes)
        if due:
            # between the two holds: a custom back-off is the application's code
            _apply(state, shard, [_plan(state, entry) for entry in due])
    except BaseException:
        # what was taken out and not judged is judged in a later pass
        with shard.lock:
            for due_ms, _, kind, subject in due:
                shard.deadlines.push(due_ms, kind, subject)
        raise
    shard.call_after()
    return looked, more


def _collect_due(
    state: State, shard: Shard, due: list[Entry], freezes: Sequence[Freeze]
) -> tuple[int, bool]:
    """Takes up to 64 passed deadlines out into `due`, but for those that have moved on; returns
    how many it looked at, and whether there may be more."""
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        passed, more = shard.deadlines.take_due(now, BITE)
        for entry in passed:
            if not _renewed(shard, entry, now, freezes):
                due.append(entry)
        shard.gate = OPEN
    return len(passed), more


def _plan(state: State, entry: Entry) -> tuple[Entry, int, Failure | None]:
    subject = entry[3]
    if not isinstance(subject, Delivery):
        return entry, 0, None
    failure = _failure_of(state, entry[2], subject)
    return entry, wait_before_retry(state, subject.record, failure.error), failure


def _renewed(shard: Shard, entry: Entry, now: int, freezes: Sequence[Freeze]) -> bool:
    """Whether the entry's moment has moved on; then it stands there again."""
    _, _, kind, subject = entry
    if kind == LEASE and isinstance(subject, Delivery):
        expires = subject.expires_ms
        if expires is None:
            return True
        if expires > now:
            subject.armed_ms = expires
            shard.deadlines.push(expires, LEASE, subject)
            return True
        return spare(shard, subject, freezes, now)
    elif kind == TIMEOUT and isinstance(subject, Delivery):
        # a late pass has moved it
        if subject.timeout_ms is not None and subject.timeout_ms > now:
            shard.deadlines.push(subject.timeout_ms, TIMEOUT, subject)
            return True
    elif kind == STALL and isinstance(subject, Delivery):
        return looks_alive(shard, subject, now)
    return False


def _failure_of(state: State, kind: int, delivery: Delivery) -> Failure:
    if kind == TIMEOUT:
        allowed = delivery.record.options.timeout_ms or 0
        return Failure(
            FailureReason.TIMEOUT, f"ran longer than its timeout of {allowed / 1000:g} s"
        )
    if kind == STALL:
        silent = (state.now() - delivery.beat_ms) / 1000
        return Failure(FailureReason.STALLED, f"no heartbeat for {silent:g} s")
    held = "" if delivery.owner is None else f" of {bounded(delivery.owner, 300)}"
    return Failure(
        FailureReason.STALLED,
        f"the lock{held} expired: no heartbeat for {(delivery.lease_ms or 0) / 1000:g} s",
    )


def _apply(state: State, shard: Shard, plans: Sequence[tuple[Entry, int, Failure | None]]) -> None:
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        for entry, wait_ms, failure in plans:
            _, _, kind, subject = entry
            if isinstance(subject, Delivery):
                assert failure is not None
                _lose(state, shard, kind, subject, failure, wait_ms, now)
            elif kind == TTL:
                if subject.state not in (COMPLETED, FAILED, REMOVED, ACTIVE) and not expire(
                    state, subject.queue, subject, now
                ):
                    _again(shard, entry, ttl_due(subject), now, wanted=subject.started_ms is None)
            elif kind == RETENTION:
                _retire(state, shard, entry, subject, now)
            else:
                judge_letter(state, kind, subject, now)
        shard.gate = OPEN


def _lose(
    state: State,
    shard: Shard,
    kind: int,
    delivery: Delivery,
    failure: Failure,
    wait_ms: int,
    now: int,
) -> None:
    """Ends a delivery whose deadline has passed, if it is still the same one and nobody has
    moved it since."""
    record = delivery.record
    if record.delivery is not delivery:
        return
    # its entry is out already: counted as stale besides, it would have the heap swept for nothing
    if kind == TIMEOUT:
        delivery.timeout_ms = None
        end_run(state, record.queue, record, failure, wait_ms, now)
    elif kind == STALL:
        if not looks_alive(shard, delivery, now):
            delivery.armed_ms = None
            judge(state, delivery, failure, wait_ms, now)
    elif delivery.expires_ms is not None and delivery.expires_ms > now:
        delivery.armed_ms = delivery.expires_ms
        shard.deadlines.push(delivery.expires_ms, LEASE, delivery)
    else:
        delivery.armed_ms = None
        judge(state, delivery, failure, wait_ms, now)


def _again(shard: Shard, entry: Entry, due: int, now: int, *, wanted: bool) -> None:
    if wanted and due > now:
        shard.deadlines.push(due, entry[2], entry[3])


def _retire(state: State, shard: Shard, entry: Entry, record: JobRecord, now: int) -> None:
    """Removes a finished job whose retention age has passed, unless it finished anew since."""
    options = record.options
    if record.state == COMPLETED:
        keep = options.remove_on_complete
    elif record.state == FAILED:
        keep = options.remove_on_fail
    else:
        return
    if isinstance(keep, bool) or keep.age_ms is None:
        return
    due = record.entered_ms + keep.age_ms
    if due > now:
        shard.deadlines.push(due, RETENTION, record)
    else:
        forget(state, record.queue, record, remember=True)
