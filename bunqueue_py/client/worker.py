"""`Worker`: runs handlers on threads, on an event loop, or in processes.

It is over 400 lines because it is a façade: how handlers run is the crews' business.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal

from typing_extensions import Self

from ..durations import shown, timeout_to_ms, to_ms
from ..errors import BunqueueError, ManagerClosedError, ValidationError
from ..model.throttle import LogThrottle
from ..sync import WORKER, make_lock, spawn
from ..types import BatchOptions, Duration, RateLimit, Recycle
from .async_crew import AsyncCrew
from .batches import checked_batch
from .handlers import Handler, at_path, routed
from .hiring import CrewOptions, hire
from .job import Job
from .listeners import Emitter, Listeners, check_process
from .protocol import Manager
from .queue import Queue
from .running import run_until_closed
from .verdicts import Verdicts, checked_errors
from .worker_options import EVENTS, LISTENERS_S, ErrorClasses, checked_options


class Worker(Emitter):
    """Runs the jobs of a queue through `handler`, up to `concurrency` at once.

    `handler`: a function of the job whose return value is the result, a coroutine function, or a
    mapping from job name to such functions (`"*"` for the rest). What it raises fails the run;
    `UnrecoverableError` fails the job for good; `DelayJob` and `RateLimited` only put it off.

    Plain functions run on threads or, with `executor="process"`, in processes of their own, which
    import the handler by its name. Coroutine functions run on an event loop of the worker's own,
    or on the caller's with `async with` and `serve()`.

    `lock_duration`: how long a job stays held without a heartbeat; `heartbeat_interval`: a third
    of it unless given. `prefetch`: jobs handed to one thread at once, `"auto"` as many as should
    take about 5 ms. `rate_limit`: how many jobs this worker starts in any window of time.
    `group_concurrency`: while the worker runs, at most so many jobs of any one group are active,
    whoever runs them, unless the group has a limit of its own; of several workers the smallest
    counts. `batch`: the handler takes a list of jobs and returns a list of results, in which an
    exception fails its job alone. `retry_on`: errors of other classes end the job; `no_retry_on`:
    these do. `recycle`: when a process is replaced. `close_timeout`: how long `close()` waits for
    handlers unless told otherwise. Use it as a context manager, or `start()` and `close()`, or
    `run()`.

    >>> from bunqueue_py import Queue, QueueManager
    >>> with QueueManager() as manager:
    ...     sums = Queue("sums", manager)
    ...     with Worker(sums, lambda job: sum(job.data), concurrency=2):
    ...         sums.add("add", [1, 2, 3]).result(timeout=10)
    6
    """

    def __init__(
        self,
        queue: Queue | str,
        handler: Handler | str | Mapping[str, Handler | str],
        *,
        manager: Manager | None = None,
        name: str | None = None,
        concurrency: int = 1,
        executor: Literal["thread", "process"] = "thread",
        lock_duration: Duration = 30,
        heartbeat_interval: Duration | None = None,
        prefetch: int | Literal["auto"] = "auto",
        rate_limit: RateLimit | None = None,
        group_concurrency: int | None = None,
        batch: BatchOptions | None = None,
        retry_on: ErrorClasses | None = None,
        no_retry_on: ErrorClasses | None = None,
        recycle: Recycle | None = None,
        close_timeout: Duration | None = 30,
    ) -> None:
        if executor == "process":
            handler = at_path(handler)
        route = routed(handler)
        options = checked_options(
            name,
            concurrency,
            executor,
            lock_duration,
            heartbeat_interval,
            prefetch,
            rate_limit,
            group_concurrency,
        )
        self._group_concurrency = group_concurrency
        self._close_timeout_ms = timeout_to_ms(close_timeout, "close_timeout")
        errors = checked_errors(retry_on, "retry_on"), checked_errors(no_retry_on, "no_retry_on")
        if not isinstance(queue, Queue):
            queue = Queue(queue, manager)
        elif manager is not None and queue.manager is not manager:
            raise ValidationError("manager is not the one that the queue belongs to")
        self._backend = queue.manager.backend
        backend = self._backend
        if backend.crew_class is None and not backend.runs_threads and not backend.is_inert:
            raise ValidationError(
                "a Worker needs threads, and this manager has background=False: "
                "pull(), ack() and run_pending() by hand instead, or test with "
                "bunqueue_py.testing.Harness, whose workers run on the test's own thread"
            )
        self.name = name or self._backend.worker_name()
        self._queue = queue.name
        self._lock = make_lock(f"worker {self.name}", WORKER)
        self._listeners = Listeners(
            self.name,
            self._backend.clock,
            self._lock,
            EVENTS,
            "bunqueue_py.worker",
            lambda heard: self._crew.hear(heard),
        )
        self._unhear: Callable[[], None] | None = None
        self._throttle = LogThrottle("bunqueue_py.worker", self._backend.clock.timeline_ms)
        self._started = self._stopping = False
        self._ended = threading.Event()
        self._at_end: list[Callable[[], None]] = []
        self._fatal: BaseException | None = None
        self._abandoned: list[str] = []
        #: a close has waited for handlers for as long as it was to
        self._patience_is_over = False
        verdicts = Verdicts(self._backend, self._queue, self._tell, self._report, *errors)
        self._crew = hire(
            self._backend,
            handler,
            route,
            CrewOptions(executor, checked_batch(batch), recycle, self._stop_with),
            queue=self._queue,
            name=self.name,
            **options,
            tell=self._tell,
            report=self._report,
            ended=self._finish,
            verdicts=verdicts,
        )

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} of {self._queue!r}>"

    # -- life --------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts it; does nothing if it runs. Coroutine handlers run on an event loop of the
        worker's own. Raises `BunqueueError` once closed, `ManagerClosedError` if the manager is."""
        return self._start(self._crew.start)

    def _start(self, start: Callable[[], None]) -> Self:
        if self._backend.is_inert:
            # a child of a process worker that imports the module which starts it
            return self
        check_process(self._backend)
        with self._lock:
            if self._stopping:
                raise BunqueueError(f"worker {self.name!r} is closed; make a new Worker")
            if self._started:
                return self
            self._backend.check_open()
            self._started = True
            self._listeners.start(threaded=self._backend.runs_threads)
        try:
            if self._group_concurrency is not None:
                self._backend.bound_groups(self._queue, self._crew, self._group_concurrency)
                if self._ended.is_set():  # another thread has closed it meanwhile
                    self._backend.bound_groups(self._queue, self._crew, None)
            self._backend.attach(self, self._crew.beat, self._queue, self._crew.card)
            start()
        except BaseException:
            # half a crew would go on working with nobody to close it
            self.close(force=True)
            raise
        self._tell("ready")
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self._start_here()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close_here()

    def _start_here(self) -> Self:
        crew = self._crew
        return self._start(crew.start_here if isinstance(crew, AsyncCrew) else crew.start)

    async def serve(self) -> None:
        """Starts it on the running event loop and returns when it has been closed. A task that is
        cancelled closes it first, gracefully; one that is cancelled again, at once."""
        if self._backend.crew_class is not None and len(asyncio.all_tasks()) < 2:
            raise BunqueueError(self._never_ends("serve()"))
        self._start_here()
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(over.set)

        self._when_ended(tell)
        try:
            if not self._backend.is_inert:
                await over.wait()
        except GeneratorExit:
            raise  # collected with its loop: nothing can be awaited any more
        except BaseException:
            await self._close_here()
            raise
        await self._close_here()
        if self._fatal is not None:
            raise self._fatal

    async def _close_here(self) -> bool:
        """`close`, for a coroutine: the event loop goes on meanwhile."""
        crew = self._crew
        if not isinstance(crew, AsyncCrew) or not crew.holds_me:
            return await self._backend.off_loop(self.close)
        timeout_ms = self._close_timeout_ms
        deadline = None if timeout_ms is None else self._backend.clock.timeline_ms() + timeout_ms
        self._begin_close()
        crew.stop()
        returned = self._note(await crew.wind_up_here(deadline))
        self._finish()
        if self._listeners.mailbox is not None:
            await self._backend.off_loop(lambda: self._listeners.close(LISTENERS_S))
        return returned

    def run(self) -> None:
        """Starts it and blocks until it is closed. On the main thread, SIGINT and SIGTERM close it
        meanwhile: the first lets handlers finish (for `close_timeout`), a second does not; the
        signal handlers from before are put back in the end. Raises what stopped it, where that was
        an error (a process that cannot import the handler)."""
        if self._backend.crew_class is not None:
            raise BunqueueError(self._never_ends("run()"))
        if not self._backend.is_inert:
            run_until_closed(self.name, self.start, self.close, self._when_ended)
        if self._fatal is not None:
            raise self._fatal

    def _never_ends(self, call: str) -> str:
        return (
            f"{call} waits until the worker is closed, and on this manager, which has no threads, "
            "nobody else could do that: start() it, and then run_until_idle(), advance() or drain()"
        )

    def _when_ended(self, fn: Callable[[], None]) -> None:
        with self._lock:
            ended = self._ended.is_set()
            if not ended:
                self._at_end.append(fn)
        if ended:
            fn()

    def _stop_with(self, error: BaseException) -> None:
        """It cannot go on: closes it, on a thread of its own, since one of its threads calls."""
        with self._lock:
            first = self._fatal is None and not self._stopping
            if self._fatal is None:
                self._fatal = error
        if first:
            self._report(error)
            spawn(f"{self.name}-closer", self._close_late)

    def _close_late(self) -> None:
        with contextlib.suppress(BunqueueError):
            self.close()

    @property
    def is_running(self) -> bool:
        """Whether it takes jobs, or would but for a pause. In a forked child it never does."""
        return self._started and not self._stopping and not self._backend.is_forked

    @property
    def is_paused(self) -> bool:
        """Whether it is paused itself; its queue may be too."""
        return self._crew.is_paused

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._stopping

    @property
    def unfinished(self) -> list[str]:
        """After `close`: the ids of the jobs whose handlers had not returned in time. They were
        given back, no attempt charged."""
        return list(self._abandoned)

    def pause(self) -> None:
        """Takes no more jobs until `resume`; handlers under way go on. The queue's other workers
        are not concerned (`queue.pause()` stops all)."""
        check_process(self._backend)
        self._crew.pause()

    def resume(self) -> None:
        """Ends a pause."""
        check_process(self._backend)
        self._crew.resume()

    def cancel(self, job: Job | str, reason: str | None = None) -> bool:
        """Ends a running job of the queue for good, with the reason `cancelled`; `reason` is added
        to the error's text. Its handler learns of it by `job.cancelled`; a coroutine is cancelled,
        a process is killed if it has not returned 5 s later. False if the job has finished.

        Raises `JobNotFoundError`, and `JobStateError` for a job that does not run yet.
        """
        if reason is not None and not isinstance(reason, str):
            raise ValidationError(f"reason must be text, not {shown(reason)}")
        job_id = job.id if isinstance(job, Job) else job
        if not isinstance(job_id, str):
            raise ValidationError(f"job must be a Job or a job id, not {shown(job)}")
        return self._backend.cancel(job_id, self._queue, reason)

    def close(self, timeout: Duration | None = None, force: bool = False) -> bool:
        """Takes no more jobs, waits for the handlers under way up to `timeout` (`None`: the
        worker's `close_timeout`; `force`: not at all), and gives back what has not finished,
        uncharged: coroutines are cancelled then, processes killed. Says whether every handler had
        returned. Idempotent. From within a handler it waits for the others only; from the event
        loop that its handlers run on it waits for nobody, and goes on by itself."""
        timeout_ms = self._close_timeout_ms if timeout is None else to_ms(timeout, "timeout")
        if force:
            timeout_ms = 0
        if self._backend.is_forked:
            # none of its threads exists here, and a lock may be held for ever
            self._stopping = True
            return True
        now = self._backend.clock.timeline_ms
        deadline = None if timeout_ms is None else now() + timeout_ms
        if not self._begin_close():
            self._finish()
            return True
        self._crew.stop()
        returned = self._note(self._crew.wind_up(deadline))
        if returned and not self._crew.holds_me:
            # otherwise the last thread out does it, and the beat goes on until then
            self._finish()
            left = None if deadline is None else max(0, deadline - now()) / 1000
            self._listeners.close(left)
        if not self._crew.holds_me:
            # a handler that never returns keeps the worker from its end, but nobody waiting for it
            self._tell_waiting()
        return returned

    def _close_with_manager(self, timeout: float | None) -> bool:
        """`close`, by the manager: where a close has given up waiting, this one does not wait."""
        return self.close(0 if timeout is None and self._patience_is_over else timeout)

    def _begin_close(self) -> bool:
        """Says whether it had been started."""
        with self._lock:
            self._stopping = True
            return self._started

    def _note(self, wound_up: tuple[list[str], bool]) -> bool:
        unfinished, returned = wound_up
        if not returned and not self._crew.holds_me:
            self._patience_is_over = True
        self._abandoned += [job_id for job_id in unfinished if job_id not in self._abandoned]
        return returned

    def _finish(self) -> None:
        """Nothing will happen any more: ends the beat, and has the listeners' thread end after
        what is buffered (without waiting: a listener may be waiting for this very thread)."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            unhear, self._unhear = self._unhear, None
        if self._group_concurrency is not None and self._started:
            with contextlib.suppress(ManagerClosedError):
                self._backend.bound_groups(self._queue, self._crew, None)
        if unhear is not None:
            unhear()
        self._tell("closed")
        self._backend.detach(self, give_back=True)
        self._listeners.close(0)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        with self._lock:
            at_end, self._at_end = self._at_end, []
        for fn in at_end:
            fn()

    # -- events ------------------------------------------------------------------------------

    def on(self, event: str, fn: Callable[..., Any] | None = None) -> Any:
        """Has `fn` called at `ready()`, `active(job)`, `completed(job, result)`, `failed(job,
        error, will_retry)`, `progress(job)`, `stalled(job)` (its lock ran out), `cancelled(job)`,
        `drained()` (nothing in the queue waits or runs; it may come before the `completed` of the
        last job), `error(exception)` or `closed()`; as a
        decorator without `fn`. The calls come in order on one thread of the worker's own; what
        they raise is logged and has no effect."""
        added = super().on(event, fn)
        self._hear_empty(event)
        return added

    def once(self, event: str, fn: Callable[..., Any] | None = None) -> Any:
        """`on`, for the next such event only."""
        added = super().once(event, fn)
        self._hear_empty(event)
        return added

    def _hear_empty(self, event: str) -> None:
        if event != "drained" or self._unhear is not None:
            return
        unhear: Callable[[], None] | None
        unhear = self._backend.hear_empty(self._queue, lambda: self._tell("drained"))
        with self._lock:
            if self._unhear is None and not self._ended.is_set():
                self._unhear, unhear = unhear, None
        if unhear is not None:
            unhear()

    def _tell(self, event: str, *values: Any) -> None:
        if event == "completed":
            job, data = values
            self._listeners.tell(event, lambda: (job, self._decoded(data)))
        else:
            self._listeners.tell(event, values)

    def _decoded(self, data: bytes | None) -> Any:
        return None if data is None else self._backend.decode(data)

    def _report(self, error: BaseException) -> None:
        self._throttle.error(repr(self), error)
        self._tell("error", error)
