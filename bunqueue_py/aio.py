"""`manager.aio`: the calls that may block, as coroutines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Unpack

from .client.job import Ack, Job
from .durations import timeout_to_ms
from .model.options import JobOptions, JobSpec
from .types import ANY, Duration, GroupChoice, JobState, Outcome

if TYPE_CHECKING:
    from .manager import QueueManager

_T = TypeVar("_T")


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

    async def release(
        self, job: Job | str, *, token: str | None = None, delay: Duration = 0
    ) -> bool:
        """See `QueueManager.release`."""
        return await self._call(lambda: self._manager.release(job, token=token, delay=delay))

    async def release_owner(self, owner: str) -> int:
        """See `QueueManager.release_owner`."""
        return await self._call(lambda: self._manager.release_owner(owner))

    async def get_job(
        self,
        job_id: Job | str | None = None,
        *,
        queue: Any = None,
        custom_id: str | None = None,
    ) -> Job | None:
        """See `QueueManager.get_job`."""
        return await self._call(
            lambda: self._manager.get_job(job_id, queue=queue, custom_id=custom_id)
        )

    async def get_state(self, job_id: Job | str) -> JobState:
        """See `QueueManager.get_state`."""
        return await self._call(lambda: self._manager.get_state(job_id))

    async def get_result(self, job_id: Job | str) -> Any:
        """See `QueueManager.get_result`."""
        return await self._call(lambda: self._manager.get_result(job_id))

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
