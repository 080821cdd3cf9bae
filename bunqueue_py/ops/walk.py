"""Going through all jobs of a queue while they change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..model.snapshot import JobSnapshot
from ..shard.pages import (
    ACTIVE,
    ANCHORED,
    COMPLETED,
    DEAD,
    DELAYED,
    END,
    GATED,
    GROUP_HEAPS,
    GROUP_LANES,
    HEAP,
    HIGH_LANES,
    LANE,
    LOW_LANES,
    Cursor,
    first_page,
    next_page,
)
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from ..types import JobState
from .recover import check_open, enter

PAGE = 500

_SHELVES = {
    JobState.COMPLETED: {COMPLETED},
    JobState.FAILED: {DEAD},
    JobState.WAITING_CHILDREN: {GATED},
    JobState.ACTIVE: {ACTIVE},
    JobState.DELAYED: {DELAYED, ANCHORED},
    # what was due when the walk began has been moved to these
    JobState.WAITING: {LANE, LOW_LANES, HEAP, GROUP_LANES, GROUP_HEAPS},
    JobState.PRIORITIZED: {HIGH_LANES, HEAP, GROUP_HEAPS},
}


def iter_jobs(state: State, queue_name: str, states: Sequence[JobState]) -> Iterator[JobSnapshot]:
    """Every job of the queue in those states, a page at a time; between pages nothing is held,
    and memory is that of one page. No job comes twice; one that keeps its state and its place
    comes once; one that is changed or comes in meanwhile may come or not."""
    check_open(state)
    queue = state.queues.get(queue_name)
    if queue is None:
        return
    shelves = {shelf for each in states for shelf in _SHELVES[each]}
    at = _begin(state, queue)
    while at.shelf != END:
        if at.shelf not in shelves:
            at = at._replace(shelf=at.shelf + 1)
            continue
        page, at = _page(state, queue, at, states)
        yield from page


def _begin(state: State, queue: QueueState) -> Cursor:
    """Moves what is due to where it is ready, in bites, and begins there."""
    shard = queue.shard
    while True:
        with queue.lock:
            if shard.gate:
                enter(state, shard)
            shard.gate = BROKEN
            now = state.now()
            moved = queue.promote_due(now, state.wall())
            if moved:
                queue.wake(moved, now)
            cursor = first_page(queue)
            shard.gate = OPEN
        if not moved:
            return cursor


def _page(
    state: State, queue: QueueState, at: Cursor, states: Sequence[JobState]
) -> tuple[list[JobSnapshot], Cursor]:
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        now, wall = state.now(), state.wall()
        queue.shard.gate = BROKEN
        records, after = next_page(queue, at, PAGE)
        queue.shard.gate = OPEN
        judged = [(record, queue.state_of(record, now, wall)) for record in records]
        return [
            state.snapshot(record, seen).detach() for record, seen in judged if seen in states
        ], after
