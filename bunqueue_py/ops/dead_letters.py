"""What is done with jobs that failed for good: read, retried, removed, by hand or in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from ..errors import JobStateError
from ..model.job import FAILED, JobRecord
from ..model.settings import EVERY_LETTER, DlqSettings, LetterFilter
from ..model.snapshot import JobSnapshot
from ..shard.dead_letters import letter_of, matches
from ..shard.deadlines import DEAD_EXPIRY
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .commit import keep_up
from .control import find, still_there
from .finish import emit, forget, removed
from .mark import mark_queue
from .push import find_queue
from .recover import check_open, enter
from .revival import refusal_of_retry, refuse_retry, revive

_BITE = 256


class LetterStats(NamedTuple):
    """The dead letters in numbers; moments in timeline ms."""

    by_reason: Counter[str]
    retriable: int
    retried: int
    oldest_ms: int | None
    newest_ms: int | None


# -- settings ------------------------------------------------------------------------------------


def configure(state: State, queue_name: str, settings: DlqSettings) -> None:
    """Sets how the queue keeps its dead letters; those that are there get their moments anew, and
    the oldest beyond the bound leave. O(dead letters), in one unit."""
    queue = find_queue(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        dead = queue.dead
        dead.settings = settings
        mark_queue(queue)
        for record in dead.excess():
            forget(state, queue, record, remember=True)
        for record in dead.records.values():
            dead.disarm(record, shard.deadlines)
            due = dead.arm(record, shard.deadlines)
            if due is not None and due < state.alarm.due_ms:
                state.alarm.set(max(due, now))
        shard.gate = OPEN
    shard.call_after()
    if not state.alarm.served:
        state.alarm.start()
    keep_up(state)


def settings_of(state: State, queue_name: str) -> DlqSettings:
    """How the queue keeps its dead letters."""
    queue = state.queues.get(queue_name)
    return DlqSettings() if queue is None else queue.dead.settings


# -- reading -------------------------------------------------------------------------------------


def entries(
    state: State, queue_name: str, wanted: LetterFilter, offset: int, limit: int
) -> list[JobSnapshot]:
    """A page of the dead letters that are meant, in the order in which they came in. O(offset +
    limit) without a filter, otherwise O(dead letters) in bites."""
    queue = state.queues.get(queue_name)
    if queue is None:
        check_open(state)
        return []
    if wanted == EVERY_LETTER:
        with queue.lock:
            if queue.shard.gate:
                enter(state, queue.shard)
            records = islice(queue.dead.records.values(), offset, offset + limit)
            return [_view(state, queue, record) for record in records]
    views: list[JobSnapshot] = []
    for bite in _bites(state, queue):
        with queue.lock:
            if queue.shard.gate:
                enter(state, queue.shard)
            for record in bite:
                if queue.dead.records.get(record.id) is record and matches(record, wanted):
                    offset -= 1
                    if offset < 0 and len(views) < limit:
                        views.append(_view(state, queue, record))
        if len(views) >= limit:
            break
    return views


def count(state: State, queue_name: str) -> int:
    """How many dead letters the queue has."""
    check_open(state)
    queue = state.queues.get(queue_name)
    return 0 if queue is None else len(queue.dead)


def stats(state: State, queue_name: str) -> LetterStats:
    """The dead letters in numbers. O(dead letters), in bites."""
    check_open(state)
    reasons: Counter[str] = Counter()
    retriable = retried = 0
    moments: list[int] = []
    queue = state.queues.get(queue_name)
    for bite in () if queue is None else _bites(state, queue):
        assert queue is not None
        with queue.lock:
            if queue.shard.gate:
                enter(state, queue.shard)
            for record in bite:
                if queue.dead.records.get(record.id) is not record:
                    continue
                side, letter = record.side, letter_of(record)
                assert side is not None and side.failure is not None
                reasons[str(side.failure.reason)] += 1
                retriable += letter.next_retry_ms is not None
                retried += side.dlq_retries > 0
                moments.append(letter.since_ms)
    return LetterStats(
        reasons, retriable, retried, min(moments, default=None), max(moments, default=None)
    )


def _view(state: State, queue: QueueState, record: JobRecord) -> JobSnapshot:
    judged = queue.state_of(record, state.now(), state.wall())
    return state.snapshot(record, judged).detach()


def _bites(state: State, queue: QueueState) -> Iterator[list[JobRecord]]:
    """The dead letters there are now, as lists of up to 256; each may have left since."""
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        records = list(queue.dead.records.values())
    for i in range(0, len(records), _BITE):
        yield records[i : i + _BITE]


# -- by hand -------------------------------------------------------------------------------------


def retry(state: State, job_id: str, of: str) -> None:
    """Retries a dead letter of the queue `of`. Raises `JobNotFoundError`, `JobStateError` for a
    job that is none, or that `refuse_retry` refuses; `DuplicateJobError` where
    its key belongs to another live job."""
    record, queue = find(state, job_id, of)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        _require_dead(record)
        now = state.now()
        refuse_retry(state, queue, record, now)
        shard.gate = BROKEN
        revive(state, queue, record, now)
        shard.gate = OPEN
    shard.call_after()
    keep_up(state)


def retry_all(state: State, queue_name: str, wanted: LetterFilter) -> int:
    """Retries the dead letters that are meant, of those there were at the start; one that is
    refused is passed over, with an event. In bites: broken off half-way, each is either retried
    or still there. Returns how many."""
    check_open(state)
    queue = state.queues.get(queue_name)
    if queue is None:
        return 0
    return sum(_retry_bite(state, queue, bite, wanted) for bite in _bites(state, queue))


def _retry_bite(
    state: State, queue: QueueState, bite: list[JobRecord], wanted: LetterFilter
) -> int:
    retried = 0
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        for record in bite:
            if queue.dead.records.get(record.id) is record and matches(record, wanted):
                refused = refusal_of_retry(state, queue, record, now)
                if refused is None:
                    revive(state, queue, record, now)
                    retried += 1
                else:
                    _skipped(state, queue, record, refused, now)
        shard.gate = OPEN
    shard.call_after()
    keep_up(state)
    return retried


def remove(state: State, job_id: str, of: str) -> None:
    """Removes a dead letter of the queue `of`. Raises `JobNotFoundError`, `JobStateError` for a
    job that is none."""
    record, queue = find(state, job_id, of)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        _require_dead(record)
        shard.gate = BROKEN
        removed(state, queue, record, state.now())
        shard.gate = OPEN
    shard.call_after()
    keep_up(state)


def purge(state: State, queue_name: str, wanted: LetterFilter) -> int:
    """Removes the dead letters that are meant, of those there were at the start; in bites.
    Returns how many."""
    check_open(state)
    queue = state.queues.get(queue_name)
    if queue is None:
        return 0
    gone = sum(_purge_bite(state, queue, bite, wanted) for bite in _bites(state, queue))
    if gone and state.events.any:
        with queue.lock:
            emit(state, queue, "cleaned", None, state.now(), {"count": gone})
    return gone


def _purge_bite(
    state: State, queue: QueueState, bite: list[JobRecord], wanted: LetterFilter
) -> int:
    gone = 0
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        shard.gate = BROKEN
        for record in bite:
            if queue.dead.records.get(record.id) is record and matches(record, wanted):
                forget(state, queue, record, remember=True)
                gone += 1
        shard.gate = OPEN
    shard.call_after()
    keep_up(state)
    return gone


def _require_dead(record: JobRecord) -> None:
    if record.state != FAILED:
        raise JobStateError(f"job {record.id} is not among the dead letters", job_id=record.id)


# -- in time -------------------------------------------------------------------------------------


def judge_letter(state: State, kind: int, record: JobRecord, now: int) -> None:
    """The moment of a dead letter has come: it expires, or is retried. Does nothing if that has
    moved on. Its shard is held."""
    queue: QueueState = record.queue
    if record.state != FAILED:
        return
    letter, dead = letter_of(record), queue.dead
    if letter.expires_ms is not None and letter.expires_ms <= now:
        forget(state, queue, record, remember=True)
    elif kind != DEAD_EXPIRY and letter.next_retry_ms is not None and letter.next_retry_ms <= now:
        refused = refusal_of_retry(state, queue, record, now)
        if refused is None:
            revive(state, queue, record, now, automatic=True)
        else:
            due = now + dead.settings.retry_interval_ms
            dead.retry_at(record, due, queue.shard.deadlines)
            _skipped(state, queue, record, refused, now)


def _skipped(state: State, queue: QueueState, record: JobRecord, why: str, now: int) -> None:
    if state.events.any:
        emit(state, queue, "dlq_skipped", record.id, now, {"reason": why})
