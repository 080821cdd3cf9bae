"""Per-minute counts go into storage when the second of the jobs that they count is over."""

from __future__ import annotations

from ..ops.recover import enter
from ..ops.tally import mark_counts
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN, Shard
from ..state import State
from .scheduler import Report

BITE = 16
"""Queues whose counts are packed in one hold of their lock."""


def tick(state: State) -> Report:
    """Marks what has been counted; due again for as long as something is left."""
    done = 0
    moments: list[int] = []
    for shard in state.shards.shards:
        later: dict[QueueState, None] = {}
        while shard.counting:
            done += _bite(state, shard, later, moments)
        if later:
            with shard.lock:
                shard.counting.update(later)
    return Report(done, min(moments, default=None))


def _bite(state: State, shard: Shard, later: dict[QueueState, None], moments: list[int]) -> int:
    done = 0
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        for _ in range(min(BITE, len(shard.counting))):
            queue, _ = shard.counting.popitem()
            due = mark_counts(state, queue, now)
            if due is None:
                done += 1
            else:
                later[queue] = None
                moments.append(due)
        shard.gate = OPEN
    return done
