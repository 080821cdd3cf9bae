"""`Worker`: runs handlers on threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from typing_extensions import Self

from ..durations import shown, timeout_to_ms, to_ms
from ..errors import (
    BunqueueError,
    ManagerClosedError,
    UnrecoverableError,
    ValidationError,
)
from ..model.events import Mailbox
from ..model.options import checked_int, checked_name
from ..model.throttle import LogThrottle
from ..model.window import MAX_PER_WINDOW, RateWindow
from ..sync import WORKER, make_lock, nothing_held
from ..types import Duration, RateLimit
from .crew import Crew, Handler
from .job import Job
from .protocol import Manager
from .queue import Queue

MAX_CONCURRENCY = 10_000
MAX_PREFETCH = 1_000
_Listener = TypeVar("_Listener", bound=Callable[..., Any])

EVENTS = ("active", "completed", "failed", "error")


class Worker:
    """Runs the jobs of a queue through `handler` on `concurrency` threads.

    `handler`: a function of the job whose return value is the result, or a mapping from job name
    to such functions (`"*"` for the rest). What it raises fails the run; `UnrecoverableError`
    fails the job for good. `lock_duration`: how long a job stays held without a heartbeat;
    `heartbeat_interval`: a third of it unless given. `prefetch`: jobs handed to one thread at
    once, `"auto"` as many as should take about 5 ms. `rate_limit`: how many jobs this worker
    starts in any window of time. `group_concurrency`: while the worker runs, at most so many jobs
    of any one group are active, whoever runs them, unless the group has a limit of its own; of
    several workers the smallest counts. `close_timeout`: how long `close()` waits
    for handlers unless told otherwise. Use it as a context manager, or `start()` and `close()`.

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
        handler: Handler | Mapping[str, Handler],
        *,
        manager: Manager | None = None,
        name: str | None = None,
        concurrency: int = 1,
        lock_duration: Duration = 30,
        heartbeat_interval: Duration | None = None,
        prefetch: int | Literal["auto"] = "auto",
        rate_limit: RateLimit | None = None,
        group_concurrency: int | None = None,
        close_timeout: Duration | None = 30,
    ) -> None:
        checked_int(concurrency, "concurrency", 1, MAX_CONCURRENCY)
        route = _router(handler)
        lease_ms = to_ms(lock_duration, "lock_duration", zero=False)
        beat_ms = _beat_ms(heartbeat_interval, lease_ms)
        if prefetch != "auto":
            checked_int(prefetch, 'prefetch, unless it is "auto",', 1, MAX_PREFETCH)
        pace_limit = None if rate_limit is None else _window(rate_limit)
        if group_concurrency is not None:
            checked_int(group_concurrency, "group_concurrency", 1, MAX_PER_WINDOW)
        self._group_concurrency = group_concurrency
        self._close_timeout_ms = timeout_to_ms(close_timeout, "close_timeout")
        if name is not None:
            checked_name(name, "name")
        if not isinstance(queue, Queue):
            queue = Queue(queue, manager)
        elif manager is not None and queue.manager is not manager:
            raise ValidationError("manager is not the one that the queue belongs to")
        self._backend = queue.manager.backend
        crew_class = self._backend.crew_class
        if crew_class is None and not self._backend.runs_threads:
            raise ValidationError(
                "a Worker needs threads, and this manager has background=False: "
                "pull(), ack() and run_pending() by hand instead, or test with "
                "bunqueue_py.testing.Harness, whose workers run on the test's own thread"
            )
        self.name = name or self._backend.worker_name()
        self._queue = queue.name
        self._lock = make_lock(f"worker {self.name}", WORKER)
        self._listeners: dict[str, tuple[Callable[..., Any], ...]] = {}
        self._mailbox: Mailbox | None = None
        self._throttle = LogThrottle("bunqueue_py.worker", self._backend.clock.timeline_ms)
        self._started = self._stopping = False
        self._ended = threading.Event()
        self._abandoned: list[str] = []
        self._crew: Crew = (crew_class or Crew)(
            self._backend,
            self._queue,
            self.name,
            self._backend.instrument(route),
            concurrency=concurrency,
            lease_ms=lease_ms,
            beat_ms=beat_ms,
            prefetch=None if prefetch == "auto" else prefetch,
            window=pace_limit,
            tell=self._tell,
            report=self._report,
            ended=self._finish,
        )

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} of {self._queue!r}>"

    # -- life --------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts the threads; does nothing if they run. Raises `BunqueueError` once closed,
        `ManagerClosedError` if the manager is."""
        with self._lock:
            if self._stopping:
                raise BunqueueError(f"worker {self.name!r} is closed; make a new Worker")
            if self._started:
                return self
            self._backend.check_open()
            self._started = True
            if self._mailbox is not None and self._backend.runs_threads:
                self._mailbox.start()
        try:
            if self._group_concurrency is not None:
                self._backend.bound_groups(self._queue, self._crew, self._group_concurrency)
                if self._ended.is_set():  # another thread has closed it meanwhile
                    self._backend.bound_groups(self._queue, self._crew, None)
            self._backend.attach(self, self._crew.beat, self._queue, self._crew.card)
            self._crew.start()
        except BaseException:
            # half a crew would go on working with nobody to close it
            self.close(force=True)
            raise
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

    @property
    def is_running(self) -> bool:
        """Whether it takes jobs."""
        return self._started and not self._stopping

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._stopping

    @property
    def unfinished(self) -> list[str]:
        """After `close`: the ids of the jobs whose handlers had not returned in time. They were
        given back, no attempt charged."""
        return list(self._abandoned)

    def close(self, timeout: Duration | None = None, force: bool = False) -> bool:
        """Takes no more jobs, waits for the handlers under way up to `timeout` (`None`: the
        worker's `close_timeout`; `force`: not at all), and gives back what has not finished,
        uncharged. Says whether every handler had returned. Idempotent; from within a handler it
        waits for the others only."""
        timeout_ms = self._close_timeout_ms if timeout is None else to_ms(timeout, "timeout")
        if force:
            timeout_ms = 0
        with self._lock:
            self._stopping = True
            started = self._started
        now = self._backend.clock.timeline_ms
        deadline = None if timeout_ms is None else now() + timeout_ms
        if not started:
            self._finish()
            return True
        self._crew.stop()
        late = self._crew.join(deadline)
        for slot in late:
            try:
                job_id = self._crew.abandon(slot)
            except BunqueueError as error:
                self._report(error)
                continue
            if job_id is not None:
                self._abandoned.append(job_id)
        if not late and not self._crew.holds_me:
            # otherwise the last thread out does it, and the beat goes on until then
            self._finish()
            if self._mailbox is not None:
                left = None if deadline is None else max(0, deadline - now()) / 1000
                self._mailbox.close(left)
        return not late

    def _finish(self) -> None:
        """Nothing will happen any more: ends the beat, and has the listeners' thread end after
        what is buffered (without waiting: a listener may be waiting for this very thread)."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        self._backend.detach(self, give_back=True)
        if self._group_concurrency is not None and self._started:
            with contextlib.suppress(ManagerClosedError):
                self._backend.bound_groups(self._queue, self._crew, None)
        if self._mailbox is not None:
            self._mailbox.close(0)

    # -- events ------------------------------------------------------------------------------

    @overload
    def on(self, event: str) -> Callable[[_Listener], _Listener]: ...
    @overload
    def on(self, event: str, fn: _Listener) -> _Listener: ...
    def on(self, event: str, fn: Callable[..., Any] | None = None) -> Any:
        """Has `fn` called at `active(job)`, `completed(job, result)`, `failed(job, error,
        will_retry)` or `error(exception)`; as a decorator without `fn`. The calls come in order
        on one thread of the worker's own; what they raise is logged and has no effect."""
        if event not in EVENTS:
            raise ValidationError(f"event must be among {', '.join(EVENTS)}, not {shown(event)}")
        if fn is None:
            return lambda fn: self.on(event, fn)
        if not callable(fn):
            raise ValidationError(f"a listener must be callable, not {shown(fn)}")
        with self._lock:
            if self._mailbox is None and not self._ended.is_set():
                self._mailbox = Mailbox(
                    f"{self.name}-events", self._deliver, self._backend.clock.timeline_ms
                )
                if self._started and self._backend.runs_threads:
                    self._mailbox.start()
            self._listeners = {
                **self._listeners,
                event: (*self._listeners.get(event, ()), fn),
            }
            self._crew.heard = frozenset(self._listeners)
        return fn

    def off(self, event: str, fn: Callable[..., Any]) -> bool:
        """Ends what `on` began; says whether there was such a listener."""
        with self._lock:
            kept = self._listeners.get(event, ())
            left = tuple(f for f in kept if f is not fn)
            self._listeners = {**self._listeners, event: left}
            return len(left) < len(kept)

    def _tell(self, event: str, *values: Any) -> None:
        if self._listeners.get(event) and self._mailbox is not None:
            self._mailbox.offer((event, values))

    def _deliver(self, item: tuple[str, tuple[Any, ...]]) -> None:
        event, values = item
        nothing_held()
        for fn in self._listeners.get(event, ()):
            arguments = values
            if event == "completed":
                job, data = values
                arguments = (job, None if data is None else self._backend.decode(data))
            try:
                fn(*arguments)
            except BaseException as error:  # a listener may raise anything, SystemExit included
                self._throttle.error(f"a listener of {event!r} of {self!r}", error)

    def _report(self, error: BaseException) -> None:
        self._throttle.error(repr(self), error)
        self._tell("error", error)


def _router(handler: Any) -> Handler:
    """One function of the job, whatever form the handler was given in."""
    if isinstance(handler, Mapping):
        routes: dict[str, Handler] = {}
        for name, fn in handler.items():
            routes[checked_name(name, "handler name")] = _checked_handler(fn)
        if not routes:
            raise ValidationError("handler must not be an empty mapping")
        return _Routes(routes)
    return _checked_handler(handler)


def _checked_handler(fn: Any) -> Handler:
    if not callable(fn):
        raise ValidationError(f"handler must be a function or a mapping of them, not {shown(fn)}")
    if iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        raise ValidationError(
            f"handler {shown(fn)} is a coroutine function; this version runs plain functions only"
        )
    return fn  # type: ignore[no-any-return]


class _Routes:
    """Chooses the handler by the job's name."""

    def __init__(self, routes: dict[str, Handler]) -> None:
        self._routes = routes
        self._rest = routes.get("*")

    def __call__(self, job: Job) -> Any:
        fn = self._routes.get(job.name, self._rest)
        if fn is None:
            raise UnrecoverableError(
                f"no handler for jobs named {job.name!r}; this worker has "
                f"{', '.join(sorted(self._routes))}. Workers of one queue need the same names, "
                'or "*"'
            )
        return fn(job)


def _window(limit: RateLimit) -> RateWindow:
    if not isinstance(limit, RateLimit):
        raise ValidationError(f"rate_limit must be a RateLimit, not {shown(limit)}")
    checked_int(limit.max, "rate_limit: max", 1, MAX_PER_WINDOW)
    return RateWindow(limit.max, to_ms(limit.per, "rate_limit: per", zero=False))


def _beat_ms(interval: Duration | None, lease_ms: int) -> int:
    if interval is None:
        if lease_ms < 3:
            raise ValidationError(
                f"lock_duration must be at least 0.003 seconds, not {lease_ms / 1000:g}: "
                "a lock needs room for a heartbeat"
            )
        return lease_ms // 3
    beat_ms = to_ms(interval, "heartbeat_interval", zero=False)
    if beat_ms * 2 >= lease_ms:
        raise ValidationError(
            f"heartbeat_interval must be under half of lock_duration ({lease_ms / 1000:g} s), "
            f"not {shown(interval)}"
        )
    return beat_ms
