"""What a job knows of those that it waits for, and how it stops waiting for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..errors import JobStateError, ResultExpiredError
from ..model.job import COMPLETED, GATED, PENDING, JobRecord
from ..model.links import (
    DROPPED,
    FAILED_CHILD,
    IGNORED,
    LOOSE,
    MET,
    UNMET,
    Links,
    is_child,
    status_of,
)
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..stores.dependencies import DEAD, DONE, GONE, LIVE
from . import archive
from .commit import keep_up
from .control import find, still_there
from .finish import ran_dry, removed
from .flow import look, settle_gated
from .mark import mark
from .outcomes import drop_edges, free, links_of, mark_edges
from .query import decode
from .recover import enter


def values(state: State, job_id: str, offset: int, limit: int | None) -> dict[str, Any]:
    """The results of those that the job waited for and that have completed, by id, in the order of
    adding: of the `limit` behind the first `offset`. Raises `JobNotFoundError`, and
    `ResultExpiredError` for one whose result is no longer kept. Reads the disk where need be."""
    found: dict[str, Any] = {}
    stop = None if limit is None else offset + limit
    for other, code in islice(_edges(state, job_id), offset, stop):
        kind = look(state, other).kind
        # one that completed and was retried since has no result, or will have another
        if kind == DONE or (status_of(code) == MET and kind == GONE):
            found[other] = _value(state, job_id, other)
    return found


def failed(state: State, job_id: str) -> dict[str, str]:
    """The errors of those that failed for good and were not passed over, by id."""
    found = {}
    for other, code in _edges(state, job_id):
        if status_of(code) in (UNMET, LOOSE, FAILED_CHILD):
            seen = look(state, other)
            if seen.kind == DEAD or status_of(code) == FAILED_CHILD:
                found[other] = seen.error
    return found


def ignored(state: State, job_id: str) -> dict[str, str]:
    """The errors of those that failed for good and were passed over, by id."""
    return {
        other: look(state, other).error
        for other, code in _edges(state, job_id)
        if status_of(code) == IGNORED
    }


def unprocessed(state: State, job_id: str) -> list[str]:
    """The ids of the job's children that are neither completed nor failed for good."""
    return [
        other
        for other, code in _edges(state, job_id)
        if is_child(code) and status_of(code) in (UNMET, LOOSE) and look(state, other).kind == LIVE
    ]


def _edges(state: State, job_id: str) -> Iterator[tuple[str, int]]:
    """The edges of the job as they are now, but for those that are no longer known."""
    record, queue = find(state, job_id, None)
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        still_there(state, record)
        links = links_of(record)
        edges = () if links is None else tuple(links.edges.items())
    return (edge for edge in edges if status_of(edge[1]) != DROPPED)


def _value(state: State, job_id: str, other: str) -> Any:
    record = state.index.get(other)
    if record is not None and record.state == COMPLETED and record.result_size < 0:
        return None
    proof = None if record is not None else state.proofs.get(other)
    if proof is not None and not proof.has_result:
        return None
    data = state.results.get(other)
    if data is None:
        data = archive.read_result(state, other)
    if data is not None:
        return decode(state, data, f"the result of job {other}")
    raise ResultExpiredError(
        f"job {job_id} waited for job {other}, whose result was evicted (keep_results) before it "
        "began to wait, or since it has ended itself; or which was retried, and then removed"
    )


# -- waiting no longer -----------------------------------------------------------------------------


def drop(state: State, job_id: str, other: str) -> bool:
    """The job waits for that other one no longer, which goes on by itself; says whether it had.
    Raises `JobNotFoundError`, `JobStateError` for a job that has completed."""
    record, queue = find(state, job_id, None)
    dropped = _drop(state, queue, record, [other])
    if dropped:
        _orphan(state, other, job_id)
        keep_up(state)
    return bool(dropped)


def _drop(state: State, queue: QueueState, record: JobRecord, others: list[str]) -> list[str]:
    """Drops those edges of the job, and lets it go if it was held back by nothing else; returns
    those that were there."""
    shard = queue.shard
    dropped: list[str] = []
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        still_there(state, record)
        if record.state == COMPLETED:
            raise JobStateError(
                f"job {record.id} is completed and waits for nothing", job_id=record.id
            )
        links = links_of(record)
        if links is None:
            return []
        shard.gate = BROKEN
        before = len(links.edges)
        dropped = [other for other in others if links.drop(other)]
        if dropped:
            _edges_dropped(state, queue, record, links, dropped, before)
        if record.state == GATED:
            settle_gated(state, queue, record, None, state.now())
        shard.gate = OPEN
    if shard.after:
        shard.call_after()
    return dropped


def _edges_dropped(
    state: State,
    queue: QueueState,
    record: JobRecord,
    links: Links,
    dropped: list[str],
    before: int,
) -> None:
    for other in state.dependencies.unregister(record.id, dropped):
        free(state, queue.shard, other)
    mark(queue, record)
    drop_edges(queue, record, links, before)
    mark_edges(queue, record, links)


def _orphan(state: State, job_id: str, parent_id: str) -> None:
    """That job is a child of that parent no longer."""
    record = state.index.get(job_id)
    if record is None:
        return
    queue: QueueState = record.queue
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        links = links_of(record)
        if state.index.get(job_id) is not record or links is None or links.parent_id != parent_id:
            return
        queue.shard.gate = BROKEN
        side = record.need_side()
        side.links, side.view = links.without_parent(), None
        mark(queue, record)
        queue.shard.gate = OPEN


def remove_unprocessed(state: State, job_id: str) -> list[str]:
    """Removes the children of the job that wait for their turn, with all that only they waited
    for; returns the ids of the children. Those that run or have ended stay. The job is let go if
    nothing else holds it back. Raises as `drop` does."""
    record, queue = find(state, job_id, None)
    gone = _drop(state, queue, record, _waiting_children(state, record))
    stack = list(gone)
    while stack:
        child = state.index.get(stack.pop())
        if child is not None:
            below = _waiting_children(state, child)
            if _remove(state, child):
                stack += [other for other in below if not state.dependencies.waiting_for(other)]
    if gone:
        keep_up(state)
    return gone


def _waiting_children(state: State, record: JobRecord) -> list[str]:
    """The ids of the job's children that it waits for and that wait for their turn."""
    queue: QueueState = record.queue
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        links = links_of(record)
        others = [] if links is None else links.waited_for()
        edges = {} if links is None else {other: links.edges[other] for other in others}
    waiting = []
    for other, code in edges.items():
        child = state.index.get(other)
        if is_child(code) and child is not None and child.state in (PENDING, GATED):
            waiting.append(other)
    return waiting


def _remove(state: State, record: JobRecord) -> bool:
    """Removes a job that still waits, and says whether it did; one that has begun meanwhile goes on
    as nobody's child."""
    queue: QueueState = record.queue
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        waits = state.index.get(record.id) is record and record.state in (PENDING, GATED)
        if waits:
            shard.gate = BROKEN
            removed(state, queue, record, state.now())
            if not queue.active:
                ran_dry(state, queue, state.now())
            shard.gate = OPEN
    if shard.after:
        shard.call_after()
    if not waits:
        links = links_of(record)
        if links is not None and links.parent_id is not None:
            _orphan(state, record.id, links.parent_id)
    return waits
