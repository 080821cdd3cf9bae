"""Completed jobs that only the file has: with `keep_completed=None` memory lets them go to it.

Everything here that reads the disk is called with no shard held.
"""

from __future__ import annotations

from ..errors import JobNotFoundError, JobStateError
from ..model.claim import Claim, is_held
from ..model.job import COMPLETED, JobRecord, JobSnapshot
from ..model.rows import (
    CLAIM,
    DATA,
    INLINE_BYTES,
    QUEUE,
    RESULT,
    RESULT_SIZE,
    SEQ,
    SIDE,
    STATE,
    JobRow,
    record_from,
    row_of,
)
from ..shard.dirty import HELD_KIND, held_name
from ..shard.keys import departed_key, seq_of
from ..shard.queue_state import QueueState
from ..state import State
from ..types import JobState

_UNMARKED = object()


def is_kept(state: State) -> bool:
    """Whether the file keeps completed jobs that memory lets go."""
    return state.storage is not None and state.config.keep_completed is None


def may_go(state: State, queue: QueueState, record: JobRecord) -> bool:
    """Whether memory may leave the completed record to the file: all of it is written. The shard
    is held; looks at memory only."""
    dirty, storage = queue.shard.dirty, state.storage
    assert dirty is not None
    assert storage is not None
    job_id = record.id
    return job_id not in dirty.jobs and all(job_id not in part.jobs for part in storage.unwritten())


def leave(queue: QueueState, record: JobRecord) -> None:
    """The record is about to leave memory for the file; its shard is held. A key that it holds
    beyond its end is held on without it: whoever frees the key later does not find the record."""
    dirty, key, claim = queue.shard.dirty, record.unique_key, record.claim
    assert dirty is not None
    if key is None or not isinstance(claim, Claim) or not is_held(claim):
        return
    if queue.unique_keys.owners.get(key) is record:
        body = [record.id, claim.ttl_ms, claim.mode, claim.until_ms]
        dirty.keep(HELD_KIND, held_name(queue.name, key), body)
    row = row_of(record, seq_of(record) or 0)
    dirty.mark((*row[:CLAIM], None, *row[SIDE:]))


def read(state: State, job_id: str) -> JobRow | None:
    """The row of a completed job that memory has let go, with its payload; `None` if the file has
    none, or memory has it (again)."""
    storage = state.storage
    if storage is None or not is_kept(state):
        return None
    newest = marked(state, job_id)
    if newest is None:
        return None
    row = storage.read_job(job_id)
    if row is None:
        return None
    if newest is not _UNMARKED:
        row = (*newest[:DATA], row[DATA], *newest[DATA + 1 :])  # type: ignore[index]
    return row if row[STATE] == COMPLETED and job_id not in state.index else None


def read_result(state: State, job_id: str) -> bytes | None:
    """The encoded result of that job, from what is marked or on disk; `None` if none is kept."""
    storage = state.storage
    if storage is None:
        return None
    # first what may move on meanwhile: from the marks to what was handed over, and to the disk
    for shard in state.shards.shards:
        dirty = shard.dirty
        row = None if dirty is None else dirty.jobs.get(job_id, _UNMARKED)
        if dirty is None or row is _UNMARKED:
            continue
        if row is None or row[RESULT_SIZE] < 0:  # type: ignore[index]
            return None
        if row[RESULT] is not None:  # type: ignore[index]
            return row[RESULT]  # type: ignore[index,no-any-return]
        if row[RESULT_SIZE] > INLINE_BYTES:  # type: ignore[index]
            found = dirty.results.get(job_id)
            if found is not None:
                return found
        break
    return storage.read_result(job_id)


def snapshot(state: State, row: JobRow) -> JobSnapshot:
    """What users are shown of the row."""
    return state.snapshot(_record(state, row), JobState.COMPLETED).detach()


def fetch(state: State, job_id: str, of: str | None) -> tuple[JobRecord, QueueState] | None:
    """A record of the job (in the queue `of`, if given) that only the file has; `take_back` brings
    it in. `None` if there is none. `state.recalling` is held from here to the verb's end, so that
    nobody else brings it in or removes it."""
    row = read(state, job_id)
    if row is None or (of is not None and row[QUEUE] != of):
        return None
    record = _record(state, row)
    return record, record.queue


def take_back(state: State, queue: QueueState, record: JobRecord) -> None:
    """The fetched record is in memory again, for a verb that takes it out of the completed ones
    before the shard is let go. The gate is the caller's."""
    queue.admitted += 1
    state.index[record.id] = record


def missing(state: State, job_id: str, of: str | None) -> JobNotFoundError | JobStateError:
    """What a verb for live jobs says of a job that is not in memory (in the queue `of`)."""
    row = read(state, job_id)
    if row is None or (of is not None and row[QUEUE] != of):
        return not_found(job_id)
    return JobStateError(
        f"job {job_id} is completed and kept in the file only, so it cannot be changed; retry() "
        "runs it again, remove() removes it",
        job_id=job_id,
    )


def not_found(job_id: str) -> JobNotFoundError:
    return JobNotFoundError(
        f"there is no job {job_id!r}: it never existed or was removed", job_id=job_id
    )


def _record(state: State, row: JobRow) -> JobRecord:
    name = row[QUEUE]
    queue = state.queues.get(name)
    if queue is None:
        queue = state.shards.queue(state.queues, name, lambda made: None)
    record = record_from(row, queue)
    record.key = departed_key(row[SEQ])
    return record


def marked(state: State, job_id: str) -> object:
    """The newest mark of the job: a row, `None` where it is gone, `_UNMARKED` if there is none.
    Holds no lock: a single look into a dictionary, and nothing leaves it before it is handed
    over."""
    for shard in state.shards.shards:
        if shard.dirty is not None:
            row = shard.dirty.jobs.get(job_id, _UNMARKED)
            if row is not _UNMARKED:
                return row
    return _UNMARKED
