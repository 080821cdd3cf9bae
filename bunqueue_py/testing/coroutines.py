"""Coroutine handlers where there is neither a thread nor a loop of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..sync import spawn


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs it to its end on an event loop of its own, and returns or raises what it does. Where
    the caller is in a coroutine himself, that loop runs on another thread meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(coroutine)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((True, _run(coroutine)))
        except BaseException as error:  # a handler may raise anything
            outcome.extend((False, error))

    spawn("harness-loop", run).join()
    returned, value = outcome
    if not returned:
        raise value
    return value


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


IDLE_CHECKS = 10
IDLE_PAUSE_S = 0.02
"""So often in a row, and so far apart, an event loop has nothing to do before its waits count as
endless: what another thread hands to it meanwhile is not missed."""


class Loops:
    """Ends the waits of an event loop in which nothing else goes on: on a clock that stands still
    nobody would ever end them."""

    def __init__(self) -> None:
        self._waits: dict[Any, dict[asyncio.Future[Any], Callable[[], BaseException]]] = {}

    async def waited(
        self, wait: Coroutine[Any, Any, Any], why: Callable[[], BaseException] | None
    ) -> Any:
        """What the wait returns or raises; raises `why()` once nothing can end it. `None`: its
        end is there already."""
        if why is None:
            return await wait
        if len(asyncio.all_tasks()) < 2:
            wait.close()
            raise why()
        loop = asyncio.get_running_loop()
        task = loop.create_task(wait)
        over: asyncio.Future[None] = loop.create_future()
        task.add_done_callback(lambda _: None if over.done() else over.set_result(None))
        waits = self._waits.setdefault(loop, {})
        waits[over] = why
        if len(waits) == 1:
            loop.call_soon(self._look, loop, waits, 0)
        try:
            await over
            return task.result()
        finally:
            task.cancel()
            del waits[over]
            if not waits and self._waits.get(loop) is waits:
                del self._waits[loop]

    def _look(self, loop: Any, waits: dict[Any, Any], idle: int) -> None:
        if not waits:
            return
        idle = idle + 1 if _is_idle(loop) else 0
        if idle < IDLE_CHECKS:
            loop.call_later(IDLE_PAUSE_S, self._look, loop, waits, idle)
            return
        for over, why in list(waits.items()):
            if not over.done():
                over.set_exception(why())
        # those that begin before these have left
        loop.call_later(IDLE_PAUSE_S, self._look, loop, waits, 0)


def _is_idle(loop: Any) -> bool:
    """Whether nothing in it is ready, timed, or waits for a file or an executor. A loop that does
    not show that counts as busy."""
    try:
        pending = (*loop._ready, *loop._scheduled)
        if loop._default_executor is not None or len(loop._selector.get_map()) > 1:
            return False
    except AttributeError:
        return False
    return all(handle.cancelled() for handle in pending)
