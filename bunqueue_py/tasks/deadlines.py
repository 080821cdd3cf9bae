"""Leases, stalls, timeouts, ttl, retention, dead letters: judged when their moments come."""

from __future__ import annotations

from collections.abc import Callable

from ..ops.leases import judge_due
from ..ops.stalls import Freeze, forgive
from ..state import State
from .give_way import press_on
from .scheduler import Report
from .stalls import LatePasses

MAX_BITES = 16


def next_due(state: State) -> int | None:
    """The first moment at which there is something to judge."""
    earliest = None
    for shard in state.shards.shards:
        with shard.lock:
            first = shard.deadlines.first()
        if first is not None and (earliest is None or first[0] < earliest):
            earliest = first[0]
    return earliest


def tick(
    state: State,
    late_ms: int = 0,
    late: LatePasses | None = None,
    beat_ms: int = 0,
    give_way: Callable[[], None] = press_on,
) -> Report:
    """Judges what is due in every shard, at most 16 bites of 64 each. A pass that `late` finds to
    come too long after it was due only gives active jobs that much more time, and leaves the
    rest, such as ttl and retention, to the next one, which follows at once. One that is a little
    late, or finds the heartbeats `beat_ms` behind, spares the leases that are short beside that."""
    broken = any(shard.gate for shard in state.shards.shards)
    if not (late_ms or beat_ms or broken or (late is not None and late.in_a_row)):
        due = next_due(state)
        if due is None or due > state.now():
            return Report(0, due)
    freezes: tuple[Freeze, ...] = ()
    if late is not None:
        now = state.now()
        if late.forgives(late_ms, now):
            return Report(forgive(state, late_ms, give_way), state.now())
        freezes = late.freezes(late_ms, beat_ms, now)
    done, again = 0, False
    for shard in state.shards.shards:
        for _ in range(MAX_BITES):
            looked, more = judge_due(state, shard, freezes)
            done += looked
            if not more:
                break
            give_way()
        else:
            again = True
    if again:
        return Report(done, state.now())
    return Report(done, next_due(state))
