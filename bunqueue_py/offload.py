"""Threads that make the blocking calls of coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from .sync import LEAF, make_lock, spawn

MAX_THREADS = 32
AIO_THREAD = "aio"
"""The threads of a manager's `Offload` are named `bunqueue-aio-<n>`: a storage that is behind holds
them up, as it does those of the application, in whose place they stand."""

_T = TypeVar("_T")
_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Offload:
    """Makes calls that may block on threads of its own, `<name>-1` and so on, at most `limit`,
    started as they are needed. Leaf noun."""

    def __init__(self, name: str = AIO_THREAD, limit: int = MAX_THREADS) -> None:
        self._name = name
        self._limit = limit
        self._lock = make_lock("aio threads", LEAF)
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: of its threads; each adds its own before its first call
        self._idents: set[int] = set()
        self._idle = 0
        self._closed = False

    async def __call__(self, fn: Callable[[], _T]) -> _T:
        """What `fn()` returns or raises. It goes on if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        with self._lock:
            closed = self._closed
            if not closed:
                # in the caller's context, as if it were made here
                self._calls.put((loop, future, partial(copy_context().run, fn)))
                if self._idle > 0:
                    self._idle -= 1
                elif len(self._threads) < self._limit:
                    number = len(self._threads) + 1
                    self._threads.append(spawn(f"{self._name}-{number}", self._serve))
        if closed:
            # the manager is closed: it refuses at once, and blocks nobody
            return fn()
        return await future

    @property
    def holds_me(self) -> bool:
        """Whether the calling thread is one of its own."""
        return threading.get_ident() in self._idents

    def close(self, timeout: float | None = None) -> bool:
        """Makes the calls that are due, then ends the threads; says whether they ended in time
        (each is given that long)."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            for _ in self._threads:
                self._calls.put(None)
        me = threading.current_thread()
        for thread in self._threads:
            if thread is not me:
                thread.join(timeout)
        return not any(t.is_alive() and t is not me for t in self._threads)

    def _serve(self) -> None:
        self._idents.add(threading.get_ident())
        while True:
            item = self._calls.get()
            if item is None:
                return
            loop, future, fn = item
            try:
                result, error = fn(), None
            except BaseException as raised:
                result, error = None, raised
            with self._lock:
                self._idle += 1
            # a loop that was closed meanwhile has nobody left to tell
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_answer, future, result, error)
            item = loop = future = fn = result = error = None  # type: ignore[assignment]


def _answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # no future takes one, and no coroutine may raise one
        problem = RuntimeError(f"a call on another thread raised {error!r}")
        problem.__cause__ = error
        future.set_exception(problem)
    else:
        future.set_exception(error)
