"""The end of a manager: from here on every verb is refused."""

from __future__ import annotations

from collections.abc import Sequence

from ..shard.shard import BROKEN, CLOSED, FORKED, Shard
from ..state import State
from ..sync import SHARD, make_lock
from .give_back import give_back
from .recover import rebuild
from .tally import mark_last


def seal(state: State) -> None:
    """Closes every shard in one unit, so that no push can slip past it; wakes everybody who
    waits: they get `ManagerClosedError`. Safe again after an exception broke it off."""

    def close(shards: Sequence[Shard]) -> None:
        for shard in shards:
            if shard.dirty is not None:
                _give_all_back(state, shard)
            _seal(shard, CLOSED)

    state.shards.holding_all(close)
    for shard in state.shards.shards:
        shard.call_after()


def _give_all_back(state: State, shard: Shard) -> None:
    """What has not finished is pending again, uncharged: a close in good order loses no run. The
    gate is not marked: what an exception leaves active on disk is given back at the next open."""
    if shard.gate == BROKEN:
        rebuild(state, shard)
    now = state.now()
    for queue in shard.queues.values():
        mark_last(state, queue, now)
        for record in list(queue.active.values()):
            give_back(state, queue, record, now, 0, started=True)


def disown(state: State) -> None:
    """In a forked child: marks every shard without taking a lock, which a thread that does not
    exist here may hold for ever."""
    for shard in state.shards.shards:
        shard.gate = FORKED
        shard.lock = make_lock(f"forked shard {shard.index}", SHARD + shard.index)
        for queue in shard.queues.values():
            queue.lock = shard.lock


def _seal(shard: Shard, gate: int) -> None:
    shard.gate = gate
    for queue in shard.queues.values():
        queue.waiters.wake(len(queue.waiters))
        for waiter in queue.empty_waiters:
            waiter.wake()
    for watchers in shard.watched.values():
        for watcher in watchers:
            watcher.resolve(shard, "closed", None)
    shard.watched.clear()
