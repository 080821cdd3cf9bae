"""Many jobs at once: the old ones removed, the finished ones run again."""

from __future__ import annotations

from heapq import merge
from itertools import islice, takewhile

from ..model.job import JobRecord
from ..shard.finished import Finished
from ..shard.queue_state import QueueState
from ..shard.ready_queue import Stamped
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import JobState
from .commit import keep_up
from .finish import emit, forget, ran_dry, resolve
from .purge import purge
from .query import queue_of
from .recover import enter
from .revival import refusal_of_retry, revive
from .tidy import ask

_BITE = 250
CLEANABLE = (
    JobState.WAITING,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.COMPLETED,
    JobState.FAILED,
)


def clean(state: State, queue_name: str, age_ms: int, job_state: JobState, limit: int) -> list[str]:
    """Removes up to `limit` jobs that entered that state `age_ms` ago or earlier, oldest first,
    and returns their ids; in bites, so that others get their turn. Completed ones that only the
    file has are among them."""
    queue = queue_of(state, queue_name)
    shard = queue.shard
    gone: list[str] = []
    bound: int | None = None
    if job_state is JobState.COMPLETED:
        # they ended before any that is in memory
        bound = state.now() - age_ms
        gone = purge(state, queue, bound, limit)
    while True:
        with queue.lock:
            if shard.gate:
                enter(state, shard)
            now = state.now()
            if bound is None:
                bound = now - age_ms
            batch = _older(state, queue, job_state, bound, min(_BITE, limit - len(gone)))
            ids = [record.id for record in batch]
            shard.gate = BROKEN
            for record in batch:
                forget(state, queue, record, remember=True)
                resolve(queue, record.id, "removed", None)
            gone += ids
            done = not batch or len(gone) >= limit
            if done and gone and state.events.any:
                emit(state, queue, "cleaned", None, now, {"count": len(gone)})
            if batch and not queue.active and job_state not in CLEANABLE[3:]:
                ran_dry(state, queue, now)
            shard.gate = OPEN
        shard.call_after()
        keep_up(state)
        if done:
            if gone:
                ask(state)
            return gone


def _older(
    state: State, queue: QueueState, job_state: JobState, bound: int, limit: int
) -> list[JobRecord]:
    """Up to `limit` records that entered that state at `bound` or before, oldest first."""
    streams = queue.streams(job_state, state.now(), state.wall(), newest_first=False)
    old = takewhile(lambda entry: entry[0] <= bound, merge(*streams, key=_stamp))
    return [record for _, _, record in islice(old, limit)]


def _stamp(entry: Stamped) -> tuple[int, int]:
    return entry[0], entry[1]


def retry_all(state: State, queue_name: str, job_state: JobState, limit: int | None) -> int:
    """Runs failed or completed jobs again, oldest first: at most `limit`, and at most as many as
    there were at the start; in bites, so that others get their turn. One whose key or custom id
    belongs to another live job now is passed over. Returns how many run again."""
    queue = queue_of(state, queue_name)
    shard = queue.shard
    done, there, left = 0, -1, 0
    refused: set[str] = set()
    while True:
        with queue.lock:
            if shard.gate:
                enter(state, shard)
            now = state.now()
            kept: Finished | dict[str, JobRecord]
            kept = queue.dead.records if job_state is JobState.FAILED else queue.completed
            if there < 0:
                there = len(kept)
                left = there if limit is None else min(limit, there)
            fresh = (record for record in kept.values() if record.id not in refused)
            batch = list(islice(fresh, min(_BITE, left - done, there - done - len(refused))))
            shard.gate = BROKEN
            for record in batch:
                if refusal_of_retry(state, queue, record, now) is None:
                    revive(state, queue, record, now)
                    done += 1
                else:
                    refused.add(record.id)
            shard.gate = OPEN
        shard.call_after()
        keep_up(state)
        if not batch or done >= left:
            break
    if not state.alarm.served:
        state.alarm.start()
    return done
