"""`manager.aio`: the calls that may block, as coroutines; and the threads that make them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Unpack

from .client.job import Ack, Job
from .durations import timeout_to_ms
from .model.options import JobOptions, JobSpec
from .sync import LEAF, make_lock, spawn
from .types import ANY, Duration, GroupChoice, Outcome

if TYPE_CHECKING:
    from .manager import QueueManager

MAX_THREADS = 32
AIO_THREAD = "aio"
"""The threads of an `Offload` are named `bunqueue-aio-<n>`: a storage that is behind holds them
up, as it does those of the application, in whose place they stand."""

_T = TypeVar("_T")
_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Offload:
    """Makes calls that may block on threads of its own, at most 32, started as they are needed.
    Leaf noun."""

    def __init__(self) -> None:
        self._lock = make_lock("aio threads", LEAF)
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
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
                elif len(self._threads) < MAX_THREADS:
                    number = len(self._threads) + 1
                    self._threads.append(spawn(f"{AIO_THREAD}-{number}", self._serve))
        if closed:
            # the manager is closed: it refuses at once, and blocks nobody
            return fn()
        return await future

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
    else:
        future.set_exception(error)


class AsyncCalls:
    """The manager's calls for an event loop that must not be held up by a durable commit, by a
    storage that is behind, or by waiting; `manager.aio`.

    Each takes and returns what the manager's own call of that name does. Where everything is in
    memory nothing is handed to another thread. A `push` or `ack` whose caller is cancelled while
    it waits has been made all the same; a `pull` that is cancelled gives back what it was handed,
    uncharged.

    >>> import asyncio
    >>> from bunqueue_py import QueueManager
    >>> async def main():
    ...     with QueueManager() as manager:
    ...         added = await manager.aio.push("sums", [1, 2, 3])
    ...         job = await manager.aio.pull("sums", timeout=5)
    ...         await manager.aio.ack(job, sum(job.data))
    ...         return await manager.aio.wait_for(added)
    >>> asyncio.run(main())
    6
    """

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager

    async def push(
        self, queue: Any, data: Any = None, *, name: str = "default", **options: Unpack[JobOptions]
    ) -> Job:
        """See `QueueManager.push`."""
        return await self._call(lambda: self._manager.push(queue, data, name=name, **options))

    async def push_batch(self, queue: Any, specs: Iterable[JobSpec | tuple[str, Any]]) -> list[Job]:
        """See `QueueManager.push_batch`."""
        return await self._call(lambda: self._manager.push_batch(queue, specs))

    async def pull(
        self,
        queue: Any,
        timeout: Duration | None = 0,
        *,
        lock_duration: Duration | None = 30,
        owner: str | None = None,
        group: GroupChoice = ANY,
    ) -> Job | None:
        """See `QueueManager.pull`. However many wait, no thread does."""
        found = await self.pull_batch(
            queue, 1, timeout, lock_duration=lock_duration, owner=owner, group=group
        )
        return found[0] if found else None

    async def pull_batch(
        self,
        queue: Any,
        max_jobs: int,
        timeout: Duration | None = 0,
        *,
        lock_duration: Duration | None = 30,
        owner: str | None = None,
        group: GroupChoice = ANY,
    ) -> list[Job]:
        """See `QueueManager.pull_batch`."""
        manager = self._manager
        if timeout_to_ms(timeout) == 0 or not manager.backend.runs_threads:
            # without threads nobody would end the wait: the call answers as it does there
            return manager.pull_batch(
                queue, max_jobs, timeout, lock_duration=lock_duration, owner=owner, group=group
            )
        return await manager._pull_async(
            queue, max_jobs, timeout, lock_duration=lock_duration, owner=owner, group=group
        )

    async def ack(self, job: Job | str, result: Any = None, *, token: str | None = None) -> Outcome:
        """See `QueueManager.ack`."""
        return await self._call(lambda: self._manager.ack(job, result, token=token))

    async def ack_batch(self, items: Iterable[Ack]) -> list[Outcome]:
        """See `QueueManager.ack_batch`."""
        return await self._call(lambda: self._manager.ack_batch(items))

    async def fail(
        self,
        job: Job | str,
        error: BaseException | str,
        *,
        token: str | None = None,
        unrecoverable: bool = False,
    ) -> Outcome:
        """See `QueueManager.fail`."""
        return await self._call(
            lambda: self._manager.fail(job, error, token=token, unrecoverable=unrecoverable)
        )

    async def wait_for(self, job_id: Job | str, timeout: Duration | None = None) -> Any:
        """See `QueueManager.wait_for`; `await job` is the same without a timeout."""
        return await self._manager.wait_for_async(job_id, timeout)

    async def flush(self, timeout: Duration | None = None) -> None:
        """See `QueueManager.flush`."""
        await self._call(lambda: self._manager.flush(timeout))

    async def _call(self, fn: Callable[[], _T]) -> _T:
        backend = self._manager.backend
        if not backend.may_block:
            return fn()
        return await backend.off_loop(fn)
