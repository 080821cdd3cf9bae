"""Completed jobs beyond the bounds make room, oldest first."""

from __future__ import annotations

from collections.abc import Callable

from ..shard.queue_state import QueueState, finished_size
from ..shard.shard import BROKEN, OPEN, Shard
from ..state import State
from .archive import is_kept, may_go
from .finish import evict
from .recover import enter

_BITE = 256


def trim(state: State, give_way: Callable[[], None] | None = None) -> None:
    """After a completion, outside every lock: lets the oldest completed jobs go until the bounds
    hold with some room to spare; leaves a proof of each. Calls `give_way` between two bites.

    Several threads may be at it: each looks at what is over before each bite. A lock would have
    to be taken without blocking, and an exception could then leave it taken for ever.
    """
    if _excess(state, 0) == (0, 0):
        return
    keep = state.config.keep_completed
    room = 0 if keep is None else min(keep // 50, 1000)
    while True:
        jobs, size = _excess(state, room)
        moments = [(shard.heads.next_ms(), shard) for shard in state.shards.shards]
        oldest = sorted((ms, shard.index) for ms, shard in moments if ms is not None)
        if not (jobs or size) or not oldest:
            return
        until = oldest[1][0] if len(oldest) > 1 else None
        if not _bite(state, state.shards.shards[oldest[0][1]], until, jobs, size):
            # the oldest is not in the file yet, and stays until it is: the clean-up comes back
            state.cleanup.arm(state.now() + state.periods.cleanup_interval)
            return
        if give_way is not None:
            give_way()


def _excess(state: State, room: int) -> tuple[int, int]:
    """How many completed jobs, and bytes of them, are beyond the bounds; `room` more jobs are
    counted as beyond."""
    config, shards = state.config, state.shards.shards
    jobs = 0
    if config.keep_completed is not None:
        jobs = sum(shard.finished for shard in shards) - config.keep_completed + room
    size = sum(shard.finished_bytes for shard in shards) - config.max_completed_bytes
    if room and size > 0:
        size += config.max_completed_bytes // 50
    return max(0, jobs), max(0, size)


def _bite(state: State, shard: Shard, until: int | None, jobs: int, size: int) -> bool:
    """Lets up to 256 of the oldest of one queue go, none but the first younger than `until` or
    than the oldest of another queue of the shard. `False` if none of that queue may go now."""
    gone = 1
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        shard.gate = BROKEN
        queue = shard.heads.pop()
        if queue is not None:
            other = shard.heads.next_ms()
            bound = min((ms for ms in (until, other) if ms is not None), default=None)
            gone = _how_many(state, queue, bound, jobs, size)
            evict(state, queue, gone)
            shard.heads.push(queue)
        shard.gate = OPEN
    return gone > 0


def _how_many(
    state: State, queue: QueueState, until: int | None, excess: int, excess_bytes: int
) -> int:
    gone = 0
    unwritten = state.storage.unwritten() if state.storage is not None and is_kept(state) else None
    for record in queue.completed.first(_BITE):
        if gone >= excess and excess_bytes <= 0:
            break
        if gone and until is not None and record.entered_ms > until:
            break
        if unwritten is not None and not may_go(queue, record, unwritten):
            break
        excess_bytes -= finished_size(record)
        gone += 1
    return gone
