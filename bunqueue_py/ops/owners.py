"""Everything that one owner holds, given back."""

from __future__ import annotations

from ..model.job import Delivery
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .commit import keep_up
from .give_back import give_back
from .recover import check_open, enter

_BITE = 256


def release_owner(state: State, owner: str) -> int:
    """Gives back every active job whose delivery names that owner, in any queue, no attempt
    charged, in bites; returns how many. O(active)."""
    check_open(state)
    released = 0
    for queue in list(state.queues.values()):
        held = _held_by(state, queue, owner)
        for i in range(0, len(held), _BITE):
            released += _release_bite(state, queue, held[i : i + _BITE])
    return released


def _held_by(state: State, queue: QueueState, owner: str) -> list[Delivery]:
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        return [
            record.delivery
            for record in queue.active.values()
            if record.delivery is not None and record.delivery.owner == owner
        ]


def _release_bite(state: State, queue: QueueState, bite: list[Delivery]) -> int:
    released = 0
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        for delivery in bite:
            record = delivery.record
            if record.delivery is delivery:
                give_back(state, queue, record, now, 0, started=delivery.begun)
                released += 1
        shard.gate = OPEN
    shard.call_after()
    keep_up(state)
    return released
