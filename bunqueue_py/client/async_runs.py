"""The runs of coroutine handlers: how each begins, ends, and is ended by others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BunqueueError, ManagerClosedError, RateLimited, ValidationError
from ..model.cancel import CLOSING
from .batches import Batch, results_of
from .crew_base import CrewBase
from .handlers import not_awaited
from .job import Job
from .protocol import Backend

GRACE_MS = 250
"""How long a task that was cancelled may take to end."""

_Held = tuple[Job, "bytes | None"]


class Run:
    """One call of the handler: its jobs (one, unless it takes batches), and its task. `left` maps
    the tokens of those whose fate is still open to their jobs; `reason` is why it was cancelled;
    `begun` whether its task has taken a first step."""

    __slots__ = ("begun", "jobs", "left", "reason", "task")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.left: dict[str, Job] = {str(job.token): job for job in jobs}
        self.reason: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun = False


class AsyncRuns(CrewBase):
    """What one worker runs on one event loop. All of it is called on the loop, but for what others
    tell of its runs."""

    def __init__(
        self,
        backend: Backend,
        queue: str,
        name: str,
        route: Callable[[Any], Any],
        batch: Batch | None,
        **usual: Any,
    ) -> None:
        super().__init__(backend, queue, name, **usual)
        self._route = route
        self._batch = batch
        self._loop: asyncio.AbstractEventLoop | None = None
        #: something to look at for whoever waits: a run has ended, a pause, a stop
        self._changed: asyncio.Event
        #: by token, those of batches several times; written on the loop only
        self._runs: dict[str, Run] = {}
        #: how many calls of the handler are under way
        self._running = 0
        self._open: set[Run] = set()
        #: finished, to be acked together at the end of this turn of the loop
        self._held: list[_Held] = []
        #: the ids of what had not finished when it was to end
        self._given_back: list[str] = []
        self._interrupts: deque[tuple[str, str]] = deque()

    async def _run(self, run: Run) -> None:
        assert self._loop is not None
        run.begun, collected = True, False
        try:
            if self._batch is None:
                result = await self._route(run.jobs[0])
            else:
                result = await self._route(list(run.jobs))
        except BaseException as error:  # SystemExit and its like fail the job, not the loop
            collected = isinstance(error, GeneratorExit) and not _is_current(run.task)
            if not collected:
                await self._raised(run, error)
        else:
            collected = self._loop.is_closed()
            if not collected:
                await self._returned(run, result)
        finally:
            # Collected with its loop: at any moment, in whatever thread, maybe under a lock of
            # ours. What it ran goes back when the heartbeat, or whoever closes the worker, finds
            # the loop closed.
            if not collected:
                for token in list(run.left):
                    self._settles(run, token)
                self._running -= 1
                self._open.discard(run)
                self._changed.set()

    def _check_begun(self, runs: Sequence[Run]) -> None:
        """A task that is cancelled before its first step runs nothing of its coroutine: its jobs go
        back, and its place is free."""
        for run in runs:
            if not run.begun:
                for token, job in run.left.copy().items():
                    self._release(run, job, token)
                self._running -= 1
                self._open.discard(run)
                self._changed.set()

    async def _raised(self, run: Run, error: BaseException) -> None:
        dropped = False
        if isinstance(error, asyncio.CancelledError) and run.reason is None:
            # not ours: the handler's own, unless the whole loop is being shut down, which shows
            # a turn later
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            dropped = self.stopping
        if dropped or (run.reason == CLOSING and isinstance(error, asyncio.CancelledError)):
            for token, job in run.left.copy().items():
                self._release(run, job, token)
            return
        for job in run.left.copy().values():
            await self._fail(run, job, error)

    async def _returned(self, run: Run, result: Any) -> None:
        if self._batch is None:
            await self._complete(run, run.jobs[0], result)
            return
        try:
            results = results_of(result, len(run.jobs))
        except ValidationError as error:
            for job in run.left.copy().values():
                await self._fail(run, job, error, work_done=True)
            return
        for job, value in zip(run.jobs, results, strict=True):
            if isinstance(value, BaseException):
                await self._fail(run, job, value)
            else:
                await self._complete(run, job, value)

    async def _complete(self, run: Run, job: Job, result: Any) -> None:
        token = str(job.token)
        data = None
        if result is not None:
            try:
                data = self._backend.encode(result)
            except BaseException as error:  # a serializer may raise anything
                await self._fail(run, job, not_awaited(result) or error, work_done=True)
                return
        if not self._settles(run, token):
            return
        if job._options.durable and self._backend.may_block:
            await self._off_loop(lambda: self._settle([(job, data)]))
            return
        self._held.append((job, data))
        if len(self._held) == 1:
            assert self._loop is not None
            self._loop.call_soon(self._flush)

    async def _fail(
        self, run: Run, job: Job, error: BaseException, *, work_done: bool = False
    ) -> None:
        if not self._settles(run, str(job.token)):
            return
        if isinstance(error, RateLimited):
            self._flush()

        def end() -> None:
            try:
                self._verdicts.end(job, error, work_done=work_done)
            except ManagerClosedError:
                pass
            except BaseException as problem:  # the worker outlives a verdict that goes wrong
                self._report(problem)

        if job._options.durable and self._backend.may_block:
            await self._off_loop(end)
        else:
            end()

    def _settles(self, run: Run, token: str) -> bool:
        """Whether this run is to say how that delivery ended; nobody else is, from then on."""
        self._runs.pop(token, None)
        return run.left.pop(token, None) is not None

    def _release(self, run: Run, job: Job, token: str) -> None:
        if self._settles(run, token):
            try:
                if self._backend.give_back(job.id, token):
                    self._given_back.append(job.id)
            except ManagerClosedError:
                # closing gives everything back by itself
                self._given_back.append(job.id)
            except BunqueueError as error:
                self._report(error)

    async def _off_loop(self, fn: Callable[[], None]) -> None:
        # a cancelled task still says how its job ended
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._backend.off_loop(fn))

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._settle(held)
            self._changed.set()

    def _settle(self, batch: list[_Held]) -> None:
        try:
            outcomes, problem = self._backend.settle(
                [(job._id, job.token, data) for job, data in batch]
            )
        except ManagerClosedError:
            return
        except BaseException as error:  # a deadline decides on what could not be acked
            self._report(error)
            return
        if problem is not None:
            self._report(problem)
        self.card.count(sum(outcome.applied for outcome in outcomes))
        if "completed" in self.heard:
            for (job, data), outcome in zip(batch, outcomes, strict=True):
                if outcome.applied:
                    self._tell("completed", job, data)

    def _cancel(self, run: Run, reason: str) -> None:
        if run.reason is None and run.task is not None:
            run.reason = reason
            run.task.cancel()

    # -- what others do to its runs, told under the shard's lock -----------------------------

    def _told(self, job_id: str, token: str, reason: str) -> Callable[[], None] | None:
        run = self._runs.get(token)
        if run is None:
            return None
        super()._told(job_id, token, reason)
        self._interrupts.append((token, reason))
        return self._ring

    def _ring(self) -> None:
        self._call(self._interrupted)

    def _interrupted(self) -> None:
        while self._interrupts:
            token, reason = self._interrupts.popleft()
            run = self._runs.get(token)
            # of a batch, the others go on
            if run is not None and self._settles(run, token) and not run.left:
                self._cancel(run, reason)

    def _job_of(self, token: str) -> Job | None:
        run = self._runs.get(token)
        return None if run is None else run.left.get(token)

    def _call(self, fn: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            # a loop that is closed has nothing left to do
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(fn)


def _is_current(task: asyncio.Task[None] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no loop runs here
        return False


def cancel_strays(loop: asyncio.AbstractEventLoop) -> None:
    """Ends the tasks that handlers have left behind."""
    strays = asyncio.all_tasks(loop)
    for task in strays:
        task.cancel()
    if strays:
        loop.run_until_complete(asyncio.wait(strays, timeout=GRACE_MS / 1000))
