"""Pull, for coroutines: no thread waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..model.snapshot import JobSnapshot
from ..shard.loop_waiter import LoopWaiter
from ..shard.queue_state import QueueState
from ..state import State
from .careful import hand_over
from .leases import release_unstarted
from .pull import give_up, look
from .push import find_queue

OffLoop = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function that may block on another thread."""


async def pull_async(
    state: State,
    queue_name: str,
    limit: int,
    timeout_ms: int | None,
    lease_ms: int | None,
    owner: str | None,
    waiter: LoopWaiter,
    off_loop: OffLoop,
) -> list[JobSnapshot]:
    """`pull` for a coroutine. One that is cancelled gives back what it was handed, uncharged.

    One that is collected with its loop may be so at any moment, in whatever thread, maybe under
    this very lock: whoever uses the shard next does then what there is to do."""
    queue = find_queue(state, queue_name)
    deadline = None if timeout_ms is None else state.now() + timeout_ms
    try:
        while True:
            views, sleep_ms = look(state, queue, limit, deadline, lease_ms, owner, waiter, False)
            queue.shard.call_after()
            if not state.alarm.served:
                state.alarm.start()
            if views is not None:
                break
            await waiter.sleep(sleep_ms)
    except GeneratorExit:
        queue.shard.after.append(partial(give_up, queue, waiter))
        raise
    except BaseException:
        give_up(queue, waiter)
        raise
    if views and queue.shard.dirty is not None and queue.shard.careful_ms:
        await _hand_over(state, queue, views, off_loop)
    return views


async def _hand_over(
    state: State, queue: QueueState, views: list[JobSnapshot], off_loop: OffLoop
) -> None:
    held = [(view._id, view.token) for view in views]
    try:
        await off_loop(lambda: hand_over(state, queue, views))
    except GeneratorExit:
        queue.shard.after.append(partial(release_unstarted, state, held))
        raise
    except BaseException:
        # cancelled meanwhile (if the disk failed, they are back already)
        release_unstarted(state, held)
        raise
