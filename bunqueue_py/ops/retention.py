"""Completed jobs beyond the bounds make room, oldest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice

from ..shard.queue_state import QueueState, finished_size
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .finish import evict
from .recover import enter

_BITE = 256


def trim(state: State) -> None:
    """After a completion, outside every lock: lets the oldest completed jobs go until the bounds
    hold with some room to spare; leaves a proof of each.

    Several threads may be at it: each looks at what is over before each bite. A lock would have
    to be taken without blocking, and an exception could then leave it taken for ever.
    """
    if _excess(state, 0) == (0, 0):
        return
    keep = state.config.keep_completed
    room = 0 if keep is None else min(keep // 50, 1000)
    heads: list[tuple[int, str]] = []
    for queue in list(state.queues.values()):
        oldest = _oldest_ms(queue)
        if oldest is not None:
            heads.append((oldest, queue.name))
    heapify(heads)
    while heads:
        jobs, size = _excess(state, room)
        if not jobs and not size:
            return
        _, name = heappop(heads)
        _bite(state, state.queues[name], heads[0][0] if heads else None, jobs, size)
        oldest = _oldest_ms(state.queues[name])
        if oldest is not None:
            heappush(heads, (oldest, name))


def _excess(state: State, room: int) -> tuple[int, int]:
    """How many completed jobs, and bytes of them, are beyond the bounds; `room` more jobs are
    counted as beyond."""
    config, shards = state.config, state.shards.shards
    jobs = 0
    if config.keep_completed is not None:
        jobs = sum(shard.finished for shard in shards) - config.keep_completed + room
    size = sum(shard.finished_bytes for shard in shards) - config.max_completed_bytes
    return max(0, jobs), max(0, size)


def _oldest_ms(queue: QueueState) -> int | None:
    with queue.lock:
        for record in queue.completed.values():
            return record.entered_ms
    return None


def _bite(
    state: State, queue: QueueState, until: int | None, excess: int, excess_bytes: int
) -> None:
    """Lets up to 256 of the queue's oldest go, none but the first younger than `until`."""
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        gone = _how_many(queue, until, excess, excess_bytes)
        shard.gate = BROKEN
        evict(state, queue, gone)
        shard.gate = OPEN


def _how_many(queue: QueueState, until: int | None, excess: int, excess_bytes: int) -> int:
    gone = 0
    for record in islice(queue.completed.values(), _BITE):
        if gone >= excess and excess_bytes <= 0:
            break
        if gone and until is not None and record.entered_ms > until:
            break
        excess_bytes -= finished_size(record)
        gone += 1
    return gone
