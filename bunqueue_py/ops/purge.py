"""Removing many of the completed jobs that only the file has."""

from __future__ import annotations

from ..model.rows import INLINE_BYTES
from ..shard.queue_state import QueueState
from ..state import State
from ..stores.results import Proof
from .archive import is_kept, newest_mark
from .outcomes import pin_proof
from .recover import enter

_BITE = 1000


def purge(state: State, queue: QueueState, until_ms: int, limit: int) -> list[str]:
    """Removes completed jobs of the queue that only the file has and that ended by then, oldest
    first, up to `limit`; returns their ids. In bites; the disk is read between them."""
    gone: list[str] = []
    storage, shard, at = state.storage, queue.shard, (-1, -1)
    if storage is None or not is_kept(state):
        return gone
    while len(gone) < limit:
        with state.recalling:
            found = storage.completed_ids(queue.name, until_ms, at, _BITE)
            if not found:
                return gone
            at = found[-1][:2]
            with queue.lock:
                if shard.gate:
                    enter(state, shard)
                dirty = shard.dirty
                assert dirty is not None
                for ended_ms, _, job_id in found:
                    if len(gone) < limit and job_id not in state.index and _is_there(state, job_id):
                        if job_id in state.dependencies.dependents:
                            # those that waited for it may yet ask for it
                            has_result = job_id in state.results.pinned
                            proof = Proof(queue.name, ended_ms, has_result, None)
                            pin_proof(state, queue, job_id, proof)
                        # how large they are nobody knows here
                        dirty.tombstone(job_id, INLINE_BYTES + 1, INLINE_BYTES + 1)
                        gone.append(job_id)
        for _, _, job_id in found:
            if job_id not in state.index and job_id not in state.dependencies.dependents:
                state.results.drop(job_id)
        storage.admit()
    return gone


def _is_there(state: State, job_id: str) -> bool:
    """Whether what is unwritten does not say that the job on disk is gone."""
    marked = newest_mark(state, job_id)
    if marked is not None:
        return marked[1] is not None
    assert state.storage is not None
    for part in state.storage.unwritten():
        if job_id in part.jobs:
            return part.jobs[job_id] is not None
    return True
