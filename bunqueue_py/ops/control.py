"""Controlling a queue and its jobs from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..errors import JobStateError
from ..model.job import ACTIVE, COMPLETED, FAILED, GATED, JobRecord
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from . import archive
from .archive import not_found
from .commit import keep_up
from .finish import emit, forget, ran_dry, removed, resolve
from .mark import mark_queue
from .purge import purge
from .query import queue_of
from .recover import check_open, enter
from .revival import refuse_retry, revive
from .tidy import ask

_BITE = 1000


def set_paused(state: State, queue_name: str, paused: bool) -> None:
    """Pauses or resumes the queue; resuming wakes as many waiters as there are ready jobs."""
    queue = queue_of(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        if queue.paused is paused:
            return
        shard.gate = BROKEN
        queue.paused = paused
        mark_queue(queue)
        if state.events.any:
            emit(state, queue, "paused" if paused else "resumed", None, state.now())
        if not paused:
            # at least one, so that somebody minds the timer of what is delayed
            queue.waiters.wake(max(1, queue.ready_count))
        shard.gate = OPEN
    keep_up(state)


def drain(state: State, queue_name: str, *, delayed: bool) -> int:
    """Removes what is pending (the delayed too, if asked), at most as many as there were at the
    start; in bites, so that others get their turn. Returns how many."""
    queue = queue_of(state, queue_name)
    shard = queue.shard
    gone, left = 0, None
    while True:
        with queue.lock:
            if shard.gate:
                enter(state, shard)
            now = state.now()
            shard.gate = BROKEN
            # what has come due is waiting, not delayed
            queue.promote_due(now, state.wall())
            if left is None:
                due = sum(queue.delayed.count_due(now)) + sum(
                    queue.anchored.count_due(state.wall())
                )
                left = queue.pending if delayed else queue.ready_count + due
            batch = _pending_batch(queue, min(_BITE, left), delayed=delayed)
            for record in batch:
                forget(state, queue, record, remember=False)
                resolve(queue, record.id, "removed", None)
            gone += len(batch)
            left -= len(batch)
            done = not batch or left <= 0
            if done and gone and state.events.any:
                emit(state, queue, "drained", None, now, {"count": gone})
            if batch and not queue.active:
                ran_dry(state, queue, now)
            shard.gate = OPEN
        shard.call_after()
        keep_up(state)
        if done:
            break
    if gone:
        ask(state)
    return gone


def _pending_batch(queue: QueueState, limit: int, *, delayed: bool) -> list[JobRecord]:
    """Up to `limit` pending records, still in their places."""
    batch: list[JobRecord] = []
    sources = [*queue.ready_streams(True), *queue.ready_streams(False)]
    if delayed:
        sources += [iter(queue.delayed.members.values()), iter(queue.anchored.members.values())]
    for source in sources:
        for record in source:
            if len(batch) >= limit:
                return batch
            batch.append(record)
    return batch


def obliterate(state: State, queue_name: str, *, force: bool) -> int:
    """Removes every job of the queue in one unit (then, in bites, those that only the file has);
    returns how many. Raises `JobStateError` while
    jobs are active, unless forced: then their handlers find the job gone."""
    queue = queue_of(state, queue_name)
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        if queue.active and not force:
            raise JobStateError(
                f"queue {queue_name!r} has {len(queue.active)} active jobs; wait for them, "
                "close its workers, or obliterate(force=True)"
            )
        shard.gate = BROKEN
        records = list(queue.records())
        for record in records:
            forget(state, queue, record, remember=False)
            resolve(queue, record.id, "removed", None)
        if state.events.any:
            emit(state, queue, "obliterated", None, state.now(), {"count": len(records)})
        queue.settle_idle()
        shard.gate = OPEN
    shard.call_after()
    keep_up(state)
    ask(state)
    return len(records) + len(purge(state, queue, state.now(), sys.maxsize))


def remove(state: State, job_id: str, of: str | None = None) -> None:
    """Removes a job that is not active (of the queue `of`, if given). Raises `JobNotFoundError`,
    `JobStateError`."""
    _with_the_file(state, job_id, of, _remove)


def _remove(state: State, queue: QueueState, record: JobRecord, *, fetched: bool) -> bool:
    job_id, shard = record.id, queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        if not fetched and state.index.get(job_id) is not record:
            return False
        if record.state == ACTIVE:
            raise JobStateError(
                f"job {job_id} is active and cannot be removed; wait until it has finished",
                job_id=job_id,
            )
        shard.gate = BROKEN
        if fetched:
            archive.take_back(state, queue, record)
        now = state.now()
        was_pending = record.state not in (COMPLETED, FAILED)
        removed(state, queue, record, now)
        if was_pending and not queue.active:
            ran_dry(state, queue, now)
        shard.gate = OPEN
    shard.call_after()
    ask(state)
    return True


def retry(state: State, job_id: str, of: str | None = None) -> None:
    """Runs a failed or completed job (of the queue `of`, if given) again, with fresh attempts.
    Raises `JobNotFoundError`, `JobStateError` for a job that is still to run or running, or whose
    custom id a live job has, `DuplicateJobError` where its key belongs to another live job now."""
    _with_the_file(state, job_id, of, _retry)


def _retry(state: State, queue: QueueState, record: JobRecord, *, fetched: bool) -> bool:
    job_id, shard = record.id, queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        if not fetched and state.index.get(job_id) is not record:
            return False
        now = state.now()
        if record.state not in (COMPLETED, FAILED):
            what = queue.state_of(record, now, state.wall())
            raise JobStateError(
                f"job {job_id} is {'gated' if record.state == GATED else what}; only a failed or "
                "completed job can be retried",
                job_id=job_id,
            )
        refuse_retry(state, queue, record, now)
        shard.gate = BROKEN
        if fetched:
            archive.take_back(state, queue, record)
        revive(state, queue, record, now)
        shard.gate = OPEN
    shard.call_after()
    return True


def _with_the_file(state: State, job_id: str, of: str | None, verb: Callable[..., bool]) -> None:
    """Calls the verb for the record of that id (in the queue `of`, if given), brought back where
    only the file has it. The verb says `False` where the record has left memory. Raises
    `JobNotFoundError`."""
    check_open(state)
    while True:
        record = state.index.get(job_id)
        if record is not None:
            if of is not None and record.queue.name != of:
                raise not_found(job_id)
            if verb(state, record.queue, record, fetched=False):
                break
        if archive.is_kept(state):
            with state.recalling:
                found = archive.fetch(state, job_id, of)
                if found is not None:
                    verb(state, found[1], found[0], fetched=True)
                    break
        if job_id not in state.index:
            raise not_found(job_id)
    keep_up(state)


def find(state: State, job_id: str, of: str | None) -> tuple[JobRecord, QueueState]:
    """The record of that id (in the queue `of`, if given). Raises `JobNotFoundError`."""
    check_open(state)
    record = state.index.get(job_id)
    if record is None:
        raise archive.missing(state, job_id, of)
    if of is not None and record.queue.name != of:
        raise not_found(job_id)
    return record, record.queue


def still_there(state: State, record: JobRecord) -> None:
    """Raises `JobNotFoundError` if the record was removed before its shard was held."""
    if state.index.get(record.id) is not record:
        raise not_found(record.id)
