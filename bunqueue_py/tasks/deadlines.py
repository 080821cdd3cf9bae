"""Leases, timeouts, ttl and retention: judged when their moments come."""

from __future__ import annotations

from ..ops.leases import BITE, judge_due
from ..state import State
from .scheduler import Report

MAX_BITES = 16


def tick(state: State) -> Report:
    """Judges what is due in every shard, at most 16 bites of 64 each."""
    done, again = 0, False
    for shard in state.shards.shards:
        for _ in range(MAX_BITES):
            looked = judge_due(state, shard)
            done += looked
            if looked < BITE:
                break
        else:
            again = True
    if again:
        return Report(done, state.now())
    moments = []
    for shard in state.shards.shards:
        with shard.lock:
            moments.append(shard.deadlines.next_ms())
    return Report(done, min((m for m in moments if m is not None), default=None))
