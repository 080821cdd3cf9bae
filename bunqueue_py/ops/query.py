"""Looking at jobs without changing anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from ..errors import ResultExpiredError, SerializationError
from ..model.job import COMPLETED, JobRecord
from ..model.rows import RESULT_SIZE
from ..model.snapshot import JobSnapshot
from ..shard.queue_state import QueueState
from ..shard.shard import Shard
from ..state import State
from ..types import JobCounts, JobState
from . import archive
from .push import find_queue
from .recover import enter

ALL_STATES = (
    JobState.WAITING,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
    JobState.ACTIVE,
    JobState.COMPLETED,
    JobState.FAILED,
)


def get_job(state: State, job_id: str) -> JobSnapshot | None:
    """A snapshot of the job, `None` if there is none. One that only the file has is read there."""
    while True:
        record = state.index.get(job_id)
        if record is None:
            row = archive.read(state, job_id)
            if row is not None:
                return archive.snapshot(state, row)
            if job_id not in state.index:
                return None
            continue  # it came back meanwhile
        queue: QueueState = record.queue
        with queue.lock:
            if queue.shard.gate:
                enter(state, queue.shard)
            if state.index.get(job_id) is record:
                return _look(state, queue, record)
        if not archive.is_kept(state):
            return None


def get_by_custom_id(state: State, queue_name: str, custom_id: str) -> JobSnapshot | None:
    """A snapshot of the newest job of the queue with that custom id, `None` if there is none."""
    queue = state.queues.get(queue_name)
    if queue is None:
        return None
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        record = queue.custom_ids.get(custom_id)
        if record is None:
            return None
        return _look(state, queue, record)


def _look(state: State, queue: QueueState, record: JobRecord) -> JobSnapshot:
    judged = queue.state_of(record, state.now(), state.wall())
    return state.snapshot(record, judged).detach()


def get_state(state: State, job_id: str) -> JobState:
    """The job's state, judged now; `UNKNOWN` if there is no such job."""
    view = get_job(state, job_id)
    return JobState.UNKNOWN if view is None else view._state


def get_result(state: State, job_id: str) -> Any:
    """The result of a completed job, `None` for a job in any other state or without a result.

    Raises `ResultExpiredError` if the result has made room for newer ones.
    """
    record = state.index.get(job_id)
    if record is not None:
        has_result = record.state == COMPLETED and record.result_size >= 0
    else:
        proof = state.proofs.get(job_id)
        has_result = proof is not None and proof.failure is None and proof.has_result
        if proof is None:
            row = archive.read(state, job_id)
            has_result = row is not None and row[RESULT_SIZE] >= 0
    if not has_result:
        return None
    return decode_result(state, job_id)


def decode_result(state: State, job_id: str) -> Any:
    """The kept result of that job, decoded, from memory or the file; `ResultExpiredError` if it is
    no longer kept. Called with no lock held."""
    data = state.results.get(job_id)
    if data is None:
        data = archive.read_result(state, job_id)
    if data is None:
        raise ResultExpiredError(
            f"job {job_id} completed, but its result was evicted: only the "
            f"{state.config.keep_results:,} used last (keep_results) are kept, and "
            f"{state.config.max_completed_bytes:,} bytes of them (max_completed_bytes)"
        )
    return decode(state, data, f"the result of job {job_id}")


def decode(state: State, data: bytes, what: str) -> Any:
    """The value, or `SerializationError` whatever the serializer raised."""
    try:
        return state.loads(data)
    except (SerializationError, MemoryError):
        raise
    except Exception as error:  # a serializer of the application's may raise anything
        raise SerializationError(f"{what} cannot be decoded: {error!r}") from error


def get_jobs(
    state: State,
    queue_name: str,
    states: Sequence[JobState],
    offset: int,
    limit: int,
    *,
    newest_first: bool,
    with_data: bool,
) -> list[JobSnapshot]:
    """A page of the jobs in those states, in the order in which they entered them."""
    queue = state.queues.get(queue_name)
    if queue is None:
        return []
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        now, wall = state.now(), state.wall()
        records = queue.listing(states, now, wall, newest_first=newest_first)
        return [
            state.snapshot(record, queue.state_of(record, now, wall)).detach(with_data=with_data)
            for record in islice(records, offset, offset + limit)
        ]


def counts(state: State, queue_name: str) -> JobCounts:
    """How many jobs of the queue are in each state."""
    queue = state.queues.get(queue_name)
    if queue is None:
        return JobCounts()
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        return queue.counts(state.now(), state.wall())


def counts_per_priority(state: State, queue_name: str) -> dict[int, int]:
    """How many jobs of the queue wait, of each priority."""
    queue = state.queues.get(queue_name)
    if queue is None:
        return {}
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        return queue.counts_per_priority()


def total_counts(state: State) -> JobCounts:
    """The sum of the counts of all queues; each queue is looked at in its own moment."""
    sums: dict[str, int] = {}
    for name in list(state.queues):
        for part, n in vars(counts(state, name)).items():
            sums[part] = sums.get(part, 0) + n
    return JobCounts(**sums)


def is_paused(state: State, queue_name: str) -> bool:
    """Whether the queue is paused."""
    queue = state.queues.get(queue_name)
    return queue is not None and queue.paused


def queue_of(state: State, name: str) -> QueueState:
    """The queue of that name; made if it is new."""
    return find_queue(state, name)


def check(state: State) -> None:
    """Asserts the invariants of every structure, with every shard held."""
    state.shards.holding_all(partial(_check, state))


def _check(state: State, shards: Sequence[Shard]) -> None:
    now = state.now()
    for shard in shards:
        if shard.gate:
            enter(state, shard)
        shard.deadlines.check()
        for queue in shard.queues.values():
            queue.check(now)
        completed = [r for q in shard.queues.values() for r in q.completed.values()]
        assert shard.finished == len(completed), "count of finished jobs"
        sizes = sum(len(r.data) + max(0, r.result_size) for r in completed)
        assert shard.finished_bytes == sizes, "bytes of finished jobs"
    state.schedules.check()
    records = sum(q.admitted - q.departed for q in state.queues.values())
    assert records == len(state.index), "index against queues"
    for job_id, record in state.index.items():
        assert record.id == job_id, "index key"
