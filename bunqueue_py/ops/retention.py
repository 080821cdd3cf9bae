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
    hold with some room to spare; leaves a proof of each. One thread at a time; a second one has
    nothing to do."""
    config, shards = state.config, state.shards.shards
    keep = config.keep_completed
    count = sum(shard.finished for shard in shards)
    size = sum(shard.finished_bytes for shard in shards)
    if (keep is None or count <= keep) and size <= config.max_completed_bytes:
        return
    if not state.retention.acquire(False):
        return
    try:
        excess = 0
        if keep is not None and count > keep:
            excess = count - keep + min(keep // 50, 1000)
        _evict(state, excess, size - config.max_completed_bytes)
    finally:
        state.retention.release()


def _evict(state: State, excess: int, excess_bytes: int) -> None:
    heads: list[tuple[int, str]] = []
    for queue in list(state.queues.values()):
        oldest = _oldest_ms(queue)
        if oldest is not None:
            heads.append((oldest, queue.name))
    heapify(heads)
    while heads and (excess > 0 or excess_bytes > 0):
        _, name = heappop(heads)
        until = heads[0][0] if heads else None
        gone, freed = _bite(state, state.queues[name], until, excess, excess_bytes)
        excess -= gone
        excess_bytes -= freed
        oldest = _oldest_ms(state.queues[name])
        if oldest is not None:
            heappush(heads, (oldest, name))


def _oldest_ms(queue: QueueState) -> int | None:
    with queue.lock:
        for record in queue.completed.values():
            return record.entered_ms
    return None


def _bite(
    state: State, queue: QueueState, until: int | None, excess: int, excess_bytes: int
) -> tuple[int, int]:
    """Lets up to 256 of the queue's oldest go, none younger than `until`."""
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        before = shard.finished_bytes
        gone = _how_many(queue, until, excess, excess_bytes)
        shard.gate = BROKEN
        evict(state, queue, gone)
        shard.gate = OPEN
        return gone, before - shard.finished_bytes


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
