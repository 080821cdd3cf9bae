"""Completed jobs that only the file has: with `keep_completed=None` memory lets them go to it.

Everything here that reads the disk is called with no shard held.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import JobNotFoundError, JobStateError
from ..model.claim import is_held
from ..model.job import COMPLETED, JobRecord
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
    Marks,
    full_row,
    record_from,
    row_of,
    with_data,
)
from ..model.snapshot import JobSnapshot
from ..shard.dirty import Dirty
from ..shard.keys import departed_key, seq_of
from ..shard.queue_state import QueueState
from ..state import State
from ..types import JobState
from .mark import mark_held


def is_kept(state: State) -> bool:
    """Whether the file keeps completed jobs that memory lets go."""
    return state.storage is not None and state.config.keep_completed is None


def may_go(queue: QueueState, record: JobRecord, unwritten: Sequence[Marks]) -> bool:
    """Whether memory may leave the completed record to the file: all of it is written. The shard
    is held since before `unwritten` was asked of the storage; looks at memory only."""
    dirty, job_id = queue.shard.dirty, record.id
    assert dirty is not None
    return job_id not in dirty.jobs and all(job_id not in part.jobs for part in unwritten)


def leave(queue: QueueState, record: JobRecord) -> None:
    """The record is about to leave memory for the file; its shard is held. A key that it holds
    beyond its end is held on without it: whoever frees the key later does not find the record."""
    if not is_held(record.claim):
        return
    mark_held(queue, record)
    dirty = queue.shard.dirty
    assert dirty is not None
    row = row_of(record, seq_of(record) or 0)
    dirty.mark((*row[:CLAIM], None, *row[SIDE:]))


def read(state: State, job_id: str) -> JobRow | None:
    """The row of a completed job that memory has let go, with its payload; `None` if the file has
    none, or memory has it (again)."""
    storage = state.storage
    if storage is None or not is_kept(state):
        return None
    marked = newest_mark(state, job_id)
    newest = None if marked is None else marked[1]
    if marked is not None and newest is None:
        return None
    row = storage.read_job(job_id)
    if row is None:
        return None
    if newest is not None:
        row = with_data(newest, row[DATA])
    return row if row[STATE] == COMPLETED and job_id not in state.index else None


def read_result(state: State, job_id: str) -> bytes | None:
    """The encoded result of that job, from what is marked or on disk; `None` if none is kept."""
    storage = state.storage
    if storage is None:
        return None
    # first what may move on meanwhile: from the marks to what was handed over, and to the disk
    marked = newest_mark(state, job_id)
    if marked is not None:
        dirty, row = marked
        if row is None or row[RESULT_SIZE] < 0:
            return None
        if row[RESULT] is not None:
            return row[RESULT]
        if row[RESULT_SIZE] > INLINE_BYTES:
            found = dirty.results.get(job_id)
            if found is not None:
                return found
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
    queue.admitted_shift -= 1  # it was added before
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


def newest_mark(state: State, job_id: str) -> tuple[Dirty, JobRow | None] | None:
    """The newest mark of the job that no cut has handed over, a row or `None` where it is gone,
    and among which marks it stands; `None` if there is none. Holds no lock: single looks into
    dictionaries, and nothing leaves them before it is handed over."""
    for shard in state.shards.shards:
        dirty = shard.dirty
        if dirty is not None:
            jobs = dirty.jobs
            try:
                row = jobs[job_id]
            except KeyError:
                continue
            return dirty, None if row is None else full_row(row)
    return None
