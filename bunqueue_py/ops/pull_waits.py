"""Pulls that wait, seen from outside."""

from __future__ import annotations

from ..shard.waiters import Waiter
from ..state import State


def cancel(state: State, queue_name: str, waiter: Waiter) -> None:
    """Ends the wait of that waiter, now or as soon as it begins; what it was already handed
    stays delivered."""
    waiter.cancelled = True
    queue = state.queues.get(queue_name)
    if queue is None:
        return
    with queue.lock:
        if waiter in queue.waiters.line:
            waiter.wake()
            queue.waiters.leave(waiter)


def others_wait(state: State, queue_name: str) -> bool:
    """Whether some thread waits for a job of that queue; a look without the lock."""
    queue = state.queues.get(queue_name)
    return queue is not None and bool(queue.waiters.line)
