"""What the end of a job means to those that wait for it: recorded here, under its shard's lock, and
applied by `flow.drain` after release."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

from ..model.job import ACTIVE, COMPLETED, FAILED, PENDING, REMOVED, JobRecord
from ..model.links import EDGES_A_ROW, INLINE_EDGES, UNMET, Links, status_of
from ..shard.dirty import Dirty
from ..shard.queue_state import QueueState
from ..shard.shard import Shard
from ..state import State
from ..stores.dependencies import DEAD, DONE, FREED, GONE, Effect
from ..stores.results import Proof
from .mark import MAX_STARTS, mark, mark_run

EDGES_KIND = "edges"
PROOF_KIND = "proof"

_effect = Effect._make
_MOST_HERE = 16
"""To so many who wait in the same shard a completion says it itself, under the lock; to more, the
drain does, one hold of the lock for each."""


def record_end(
    state: State, queue: QueueState, record: JobRecord, now: int
) -> Sequence[JobRecord] | None:
    """The record has just completed or failed for good. Whoever waits for it will be told; one that
    completed needs nobody any more, while one that failed may yet be retried. Of one that completed
    and whose dependents are few and of its shard, returns those: the caller tells them in the end,
    which saves the drain."""
    job_id, dependencies = record.id, state.dependencies
    done = record.state == COMPLETED
    here: Sequence[JobRecord] | None = None
    known = dependencies.dependents.get(job_id)
    if known is not None:
        if done and record.result_size >= 0:
            state.results.pin(job_id)
        if not done:
            pass
        elif known.__class__ is str:
            # the usual one, in line
            waits = state.index.get(known)
            if waits is None:
                here = ()
            elif waits.queue is queue or waits.queue.shard is queue.shard:
                here = (waits,)
        elif len(known) <= _MOST_HERE:
            here = _neighbours(state, queue.shard, known)  # type: ignore[arg-type]
        if here is None:
            note(state, queue.shard, _effect((DONE if done else DEAD, job_id, queue.name)), now)
    side = record.side
    links = None if side is None else side.links
    if links is not None and links.edges:
        if done:
            release_edges(state, queue, record, links)
        if queue.shard.dirty is not None:
            mark_edges(queue, record, links)
    return here


def _neighbours(state: State, shard: Shard, job_ids: dict[str, None]) -> list[JobRecord] | None:
    """The records of those jobs, but for those that are gone; `None` if one is of another shard."""
    # one step of the interpreter, which needs no lock
    found = [state.index.get(job_id) for job_id in tuple(job_ids)]
    records = [record for record in found if record is not None]
    return records if all(record.queue.shard is shard for record in records) else None


def record_leave(state: State, queue: QueueState, record: JobRecord, was: int) -> bool:
    """The record is about to leave the index, from that state. A finished one that somebody waits
    for, or has waited for, leaves a proof for as long as they live; says whether it did."""
    links = links_of(record)
    if links is not None:
        release_edges(state, queue, record, links)
        drop_edges(queue, record, links)
    job_id = record.id
    if job_id not in state.dependencies.dependents:
        return False
    if was != COMPLETED:
        # whoever waits for one that failed waits for a retry, which cannot be any more
        note(state, queue.shard, Effect(GONE, job_id, queue.name))
    if was not in (COMPLETED, FAILED):
        return False
    failure = record.side.failure if was == FAILED and record.side is not None else None
    pin_proof(
        state, queue, job_id, Proof(queue.name, record.entered_ms, record.result_size >= 0, failure)
    )
    return True


def note(state: State, shard: Shard, effect: Effect, now: int | None = None) -> None:
    """The effect is applied by whoever releases the shard's lock."""
    dependencies = state.dependencies
    dependencies.pending.append(effect)
    if not shard.after or shard.after[-1] is not dependencies.drain:
        shard.after.append(dependencies.drain)  # type: ignore[arg-type]
    # when the scheduler drains, should whoever was to do it have been broken off
    due = (state.now() if now is None else now) + state.periods.dependency_fallback
    if due < state.alarm.due_ms:
        state.alarm.set(due)


def links_of(record: JobRecord) -> Links | None:
    """What ties the record to others, if anything does."""
    side = record.side
    return None if side is None else side.links


def release_edges(state: State, queue: QueueState, record: JobRecord, links: Links) -> None:
    """The record needs to know nothing any more of those that it waited for."""
    if not links.edges:
        return
    freed = state.dependencies.unregister(record.id, links.edges)
    if state.proofs.pinned or state.results.pinned:
        for job_id in freed:
            free(state, queue.shard, job_id)


def free(state: State, shard: Shard, job_id: str) -> None:
    """Nobody waits for that job any more: its result is one of many, and so is its proof."""
    results, proofs = state.results, state.proofs.pinned
    if proofs and job_id in proofs:
        note(state, shard, Effect(FREED, job_id, proofs[job_id].queue))
    if results.pinned:
        results.unpin(job_id)
        if job_id in state.dependencies.dependents:
            # somebody has come meanwhile
            results.pin(job_id)


# -- on disk -------------------------------------------------------------------------------------


def pin_proof(state: State, queue: QueueState, job_id: str, proof: Proof) -> None:
    """Keeps the proof, and the result that it tells of, whatever else leaves; on disk too. The
    shard of that queue is held."""
    state.proofs.pin(job_id, proof)
    dirty = queue.shard.dirty
    if dirty is not None:
        result = state.results.get(job_id) if proof.has_result else None
        dirty.keep(PROOF_KIND, job_id, proof_body(proof, result))


def proof_body(proof: Proof, result: bytes | None) -> list[Any]:
    """A proof as something that JSON can hold."""
    text = None if result is None else b2a_base64(result, newline=False).decode()
    return [proof.queue, proof.finished_ms, proof.has_result, proof.failure, text]


def unpin_proof(state: State, queue: QueueState, job_id: str) -> None:
    """The proof is one of many again. The shard of that queue is held."""
    state.proofs.unpin(job_id)
    if queue.shard.dirty is not None:
        queue.shard.dirty.keep(PROOF_KIND, job_id, None)


def mark_edges(queue: QueueState, record: JobRecord, links: Links) -> None:
    """The record's edges have changed, and are too many to stand in its row."""
    dirty = queue.shard.dirty
    if dirty is not None and len(links.edges) > INLINE_EDGES:
        for i, chunk in enumerate(links.chunks()):
            dirty.keep(EDGES_KIND, edges_name(record.id, i), chunk)


def keep_edge(queue: QueueState, record: JobRecord, links: Links, job_id: str) -> None:
    """How that edge stands, if it is settled, is no longer told by the other job's end alone: it
    depends on what had failed before, or that job runs again. It is written with the record."""
    dirty = queue.shard.dirty
    if dirty is None or status_of(links.edges[job_id]) == UNMET:
        return
    if len(links.edges) <= INLINE_EDGES:
        mark(queue, record)
        return
    if not dirty.touched:
        dirty.begin()
    dirty.ties[record.id] = record


def mark_late(dirty: Dirty, record: JobRecord) -> None:
    """The record waits for nobody any more. Its row is made with the cut, or when many have been
    let go since: most have begun, or ended, by then. Edges that have rows of their own are not
    written for it: those who completed tell how they stand."""
    if not dirty.touched:
        dirty.begin()
    dirty.freed.append(record)
    if len(dirty.freed) > MAX_STARTS:
        _mark_oldest_freed(dirty)


def _mark_oldest_freed(dirty: Dirty) -> None:
    record = dirty.freed[0]
    if record.state in (PENDING, ACTIVE):
        mark_run(dirty, record)
    # after that: an exception between must not lose it
    dirty.freed.popleft()


def mark_ties(dirty: Dirty) -> None:
    """The cut is taken: makes the rows of those let go, and the rows of edges that have changed one
    by one since the last."""
    while dirty.freed:
        _mark_oldest_freed(dirty)
    for record in list(dirty.ties.values()):
        links = links_of(record)
        if links is not None and record.state != REMOVED:
            mark_edges(record.queue, record, links)
        # after that: an exception between must not lose it
        dirty.ties.pop(record.id, None)


def drop_edges(queue: QueueState, record: JobRecord, links: Links, before: int = 0) -> None:
    """The rows of the record's edges are no longer wanted; `before` is how many edges it had, if
    those were more."""
    dirty = queue.shard.dirty
    edges = max(before, len(links.edges))
    if dirty is not None and edges > INLINE_EDGES:
        for i, _ in enumerate(range(0, edges, EDGES_A_ROW)):
            dirty.keep(EDGES_KIND, edges_name(record.id, i), None)


def edges_name(job_id: str, i: int) -> str:
    """What the i-th row of the edges of a job is called on disk. An id has no NUL."""
    return f"{job_id}\0{i:05d}"
