"""A coroutine that waits for a job. Guarded as `Waiter` is, but for the wait itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ..types import ANY, GroupChoice
from .waiters import Waiter

LONGEST_S = 60.0


class LoopWaiter(Waiter):
    """One waiting coroutine of the running event loop. To wake it is foreign code, so `wake` only
    hands that to `post`, which may be called under a lock and has it called soon by another
    thread."""

    __slots__ = ("_event", "_loop", "_post")

    def __init__(
        self, post: Callable[[Callable[[], None]], None], affinity: GroupChoice = ANY
    ) -> None:
        super().__init__(affinity)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._post = post

    def wake(self) -> None:
        """See `Waiter.wake`."""
        if not self.woken:
            super().wake()
            self._post(self._ring)

    def rearm(self) -> None:
        """See `Waiter.rearm`."""
        super().rearm()
        self._event.clear()

    async def sleep(self, timeout_ms: int | None) -> None:
        """Until it is woken, or the time has passed; may end early."""
        seconds = LONGEST_S if timeout_ms is None else min(timeout_ms / 1000, LONGEST_S)
        alarm = self._loop.call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            alarm.cancel()

    def _ring(self) -> None:
        # a loop that was closed meanwhile has nobody left to wake
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)
