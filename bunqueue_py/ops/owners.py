"""Everything that one owner holds, given back."""

from __future__ import annotations

from ..errors import ManagerClosedError
from ..model.job import Delivery
from ..registry.workers import WorkerEntry
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .commit import keep_up
from .give_back import give_back
from .recover import check_open, enter

_BITE = 256


def release_owner(state: State, owner: str, queue_name: str | None = None) -> int:
    """Gives back every active job whose delivery names that owner, in any queue or in that one, no
    attempt charged, in bites; returns how many. O(active)."""
    check_open(state)
    released = 0
    for queue in list(state.queues.values()):
        if queue_name is not None and queue.name != queue_name:
            continue
        held = _held_by(queue, owner)
        for i in range(0, len(held), _BITE):
            released += _release_bite(state, queue, held[i : i + _BITE])
    return released


def release_lost(state: State, entry: WorkerEntry) -> int:
    """Gives back what a worker that has left or died still holds, unless another one holds jobs
    under the same name; returns how many."""
    if state.workers.has_owner(entry.card.name, besides=entry):
        return 0
    try:
        return release_owner(state, entry.card.name, entry.queue)
    except ManagerClosedError:
        # the close has given everything back, or memory is gone
        return 0


def _held_by(queue: QueueState, owner: str) -> list[Delivery]:
    """What the owner holds in that queue. Without the lock, as the list is made in one step: each
    is looked at again before it is given back."""
    deliveries = (record.delivery for record in list(queue.active.values()))
    return [d for d in deliveries if d is not None and d.owner == owner]


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
