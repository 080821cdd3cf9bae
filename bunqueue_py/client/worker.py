"""`Worker`: runs handlers on threads."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from itertools import count
from types import TracebackType
from typing import Any, Literal

from typing_extensions import Self

from ..durations import shown, to_ms
from ..errors import BunqueueError, ManagerClosedError, UnrecoverableError, ValidationError
from ..model.events import Mailbox
from ..model.options import checked_int, checked_name
from ..sync import WORKER, make_lock, nothing_held, spawn
from ..types import Duration
from .job import Job
from .protocol import Backend, Manager
from .queue import Queue

Handler = Callable[[Job], Any]
Settled = tuple[str, "str | None", "bytes | None"]

MAX_CONCURRENCY = 10_000
MAX_PREFETCH = 1_000
AUTO_PREFETCH = 256
"""The most jobs that `prefetch="auto"` hands to one thread at once."""
BATCH_MS = 5
"""How long an outcome may be held back, and what a batch of prefetched jobs should take."""
HOARD_MS = 10
"""After so long in one handler, its thread's unstarted jobs go back if somebody waits."""
FIRST_PAUSE_MS, LAST_PAUSE_MS = 100, 30_000
"""The wait after a pull that failed, doubling."""
EVENTS = ("active", "completed", "failed", "error")

_log = logging.getLogger("bunqueue_py.worker")
_numbers = count(1)


class _Slot:
    """One thread of a worker: what it runs, what it has prefetched, what it has yet to ack.

    `queued` and `held` are deques that the beat thread also takes from; each single pop is
    atomic, so every job and every outcome has exactly one taker.
    """

    __slots__ = ("appetite", "current", "handle", "held", "queued", "since_ms", "thread")

    def __init__(self, backend: Backend) -> None:
        self.handle = backend.wait_handle()
        self.queued: deque[Job] = deque()
        self.held: deque[tuple[Job, bytes | None]] = deque()
        self.current: Job | None = None
        self.since_ms = 0
        self.appetite = 1
        self.thread: threading.Thread | None = None


class Worker:
    """Runs the jobs of a queue through `handler` on `concurrency` threads.

    `handler`: a function of the job whose return value is the result, or a mapping from job name
    to such functions (`"*"` for the rest). What it raises fails the run; `UnrecoverableError`
    fails the job for good. `lock_duration`: how long a job stays held without a heartbeat;
    `heartbeat_interval`: a third of it unless given. `prefetch`: jobs handed to one thread at
    once, `"auto"` as many as should take about 5 ms. `close_timeout`: how long `close()` waits
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
        close_timeout: Duration | None = 30,
    ) -> None:
        self._concurrency = checked_int(concurrency, "concurrency", 1, MAX_CONCURRENCY)
        self._route = _router(handler)
        self._lease_ms = to_ms(lock_duration, "lock_duration", zero=False)
        self._beat_ms = _beat_ms(heartbeat_interval, self._lease_ms)
        self._fixed = (
            None if prefetch == "auto" else checked_int(prefetch, "prefetch", 1, MAX_PREFETCH)
        )
        self._close_timeout_ms = (
            None if close_timeout is None else to_ms(close_timeout, "close_timeout")
        )
        number = next(_numbers)
        self.name = f"worker-{number}" if name is None else checked_name(name, "name")
        if not isinstance(queue, Queue):
            queue = Queue(queue, manager)
        elif manager is not None and queue.manager is not manager:
            raise ValidationError("manager is not the one that the queue belongs to")
        self._manager = queue.manager
        self._backend = self._manager.backend
        if not self._backend.runs_threads:
            raise ValidationError(
                "a Worker needs threads, and this manager has background=False: "
                "pull(), ack() and run_pending() by hand instead"
            )
        self._queue = queue.name
        self._lock = make_lock(f"worker {self.name}", WORKER)
        self._slots = [_Slot(self._backend) for _ in range(self._concurrency)]
        self._listeners: dict[str, tuple[Callable[..., Any], ...]] = {}
        self._mailbox: Mailbox | None = None
        self._started = self._stopping = False
        self._live = 0
        self._ended = threading.Event()
        self._abandoned: list[str] = []
        self._next_beat_ms = 0

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} of {self._queue!r}>"

    # -- life --------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts the threads; does nothing if they run. Raises `BunqueueError` once closed."""
        with self._lock:
            if self._stopping:
                raise BunqueueError(f"worker {self.name!r} is closed; make a new Worker")
            if self._started:
                return self
            self._started = True
            self._live = len(self._slots)
        self._backend.attach(self, self._beat)
        for i, slot in enumerate(self._slots):
            slot.thread = spawn(
                f"{self.name}-{i}",
                lambda slot=slot: self._serve(slot),  # type: ignore[misc]
            )
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
        if not started:
            self._finish()
            return True
        for slot in self._slots:
            try:
                self._backend.cancel_wait(self._queue, slot.handle)
            except ManagerClosedError:
                break
            self._return_queued(slot)
        me = threading.current_thread()
        others = [s for s in self._slots if s.thread is not me and s.thread is not None]
        self._join(others, timeout_ms)
        late = [s for s in others if s.thread is not None and s.thread.is_alive()]
        for slot in late:
            self._abandon(slot)
        if late or len(others) < len(self._slots):
            # the last thread out finishes; until then the beat goes on for a handler that closes
            return not late
        self._finish()
        return True

    def _join(self, slots: list[_Slot], timeout_ms: int | None) -> None:
        now = self._backend.clock.timeline_ms
        deadline = None if timeout_ms is None else now() + timeout_ms
        for slot in slots:
            thread = slot.thread
            assert thread is not None
            thread.join(None if deadline is None else max(0, deadline - now()) / 1000)

    def _abandon(self, slot: _Slot) -> None:
        """Gives back the job of a handler that did not return in time."""
        self._flush(slot)
        job = slot.current
        if job is not None:
            try:
                if self._backend.give_back(job.id, job.token):
                    self._abandoned.append(job.id)
            except BunqueueError as error:
                self._report(error)

    def _finish(self) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        self._backend.detach(self)
        if self._mailbox is not None:
            self._mailbox.close()

    # -- events ------------------------------------------------------------------------------

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
                self._mailbox = Mailbox(f"{self.name}-events", self._deliver)
                self._mailbox.start()
            self._listeners = {
                **self._listeners,
                event: (*self._listeners.get(event, ()), fn),
            }
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
            except BaseException:  # a listener may raise anything, SystemExit included
                _log.exception("a %r listener of %r raised", event, self)

    def _report(self, error: BaseException) -> None:
        _log.error("%r: %s: %s", self, type(error).__name__, error, exc_info=error)
        self._tell("error", error)

    # -- work --------------------------------------------------------------------------------

    def _serve(self, slot: _Slot) -> None:
        pause_ms = 0
        try:
            while not self._stopping:
                try:
                    self._round(slot)
                    pause_ms = 0
                except ManagerClosedError:
                    return
                except BaseException as error:  # the thread outlives whatever goes wrong in it
                    slot.current = None
                    self._report(error)
                    pause_ms = min(max(FIRST_PAUSE_MS, pause_ms * 2), LAST_PAUSE_MS)
                    self._rest(slot, pause_ms)
        finally:
            self._leave(slot)

    def _leave(self, slot: _Slot) -> None:
        try:
            self._flush(slot)
            self._return_queued(slot)
        except BunqueueError:
            # the manager is closed: it has given back what was held
            slot.held.clear()
        with self._lock:
            self._live -= 1
            last = self._live == 0 and self._stopping
        if last:
            self._finish()

    def _rest(self, slot: _Slot, pause_ms: int) -> None:
        bell = threading.Lock()
        bell.acquire()
        clock = self._backend.clock
        until = clock.timeline_ms() + pause_ms
        while not self._stopping and clock.timeline_ms() < until:
            clock.wait(bell, min(FIRST_PAUSE_MS, until - clock.timeline_ms()))

    def _round(self, slot: _Slot) -> None:
        """Takes what there is and runs it."""
        backend = self._backend
        wanted = slot.appetite if self._fixed is None else self._fixed
        jobs = backend.claim(self._queue, wanted, self._lease_ms, self.name, slot.handle)
        if not jobs:
            return
        now = backend.clock.timeline_ms
        began = now()
        if self._next_beat_ms <= began:
            self._next_beat_ms = began + self._beat_ms
        backend.beat_at(self._next_beat_ms)
        queued = slot.queued
        if len(jobs) == 1:
            self._run(slot, jobs[0])
        else:
            queued.extend(jobs)
            # unstarted jobs and held outcomes are minded by the beat thread
            backend.beat_at(began + BATCH_MS)
            first = True
            while queued:
                try:
                    job = queued.popleft()
                except IndexError:  # the beat thread gave the last one back
                    break
                if first or backend.begin(job.id, job.token):
                    self._run(slot, job)
                first = False
        if slot.held:
            self._flush(slot)
        if self._fixed is None:
            self._adapt(slot, len(jobs), now() - began)

    def _adapt(self, slot: _Slot, ran: int, took_ms: int) -> None:
        if took_ms > BATCH_MS:
            slot.appetite = max(1, min(slot.appetite, ran * BATCH_MS // took_ms))
        elif ran >= slot.appetite and took_ms * 2 <= BATCH_MS:
            slot.appetite = min(AUTO_PREFETCH, slot.appetite * 2)

    def _run(self, slot: _Slot, job: Job) -> None:
        slot.since_ms = self._backend.clock.timeline_ms()
        slot.current = job
        if self._listeners:
            self._tell("active", job)
        try:
            result = self._route(job)
        except BaseException as error:  # SystemExit and its like fail the job, not the worker
            self._failed(job, error)
        else:
            self._done(slot, job, result)
        slot.current = None

    def _done(self, slot: _Slot, job: Job, result: Any) -> None:
        data = None
        if result is not None:
            try:
                data = self._backend.encode(result)
            except BaseException as error:  # a serializer may raise anything
                # the work is done: running it again would repeat its side effects
                self._failed(job, error, unrecoverable=True)
                return
        slot.held.append((job, data))
        if not slot.queued or self._backend.is_watched(job.id):
            self._flush(slot)

    def _failed(self, job: Job, error: BaseException, *, unrecoverable: bool = False) -> None:
        outcome, will_retry = self._backend.fail_run(
            job.id,
            job.token,
            error,
            unrecoverable=unrecoverable or isinstance(error, UnrecoverableError),
        )
        if outcome.applied and self._listeners:
            self._tell("failed", job, error, will_retry)

    def _flush(self, slot: _Slot) -> None:
        """Acks what is held; safe from the slot's thread and the beat's at once."""
        batch = []
        held = slot.held
        while held:
            try:
                batch.append(held.popleft())
            except IndexError:  # the other thread took the last one
                break
        if not batch:
            return
        items = [(job._id, job.token, data) for job, data in batch]
        outcomes = self._backend.settle(items)
        if self._listeners:
            for (job, data), outcome in zip(batch, outcomes, strict=True):
                if outcome.applied:
                    self._tell("completed", job, data)

    def _return_queued(self, slot: _Slot) -> None:
        """Gives back the jobs that the slot has not started, the last one first."""
        while slot.queued:
            try:
                job = slot.queued.pop()
            except IndexError:  # the slot took the last one
                return
            self._backend.give_back(job.id, job.token)

    # -- the beat ----------------------------------------------------------------------------

    def _beat(self) -> tuple[int, int | None]:
        """Heartbeats, held outcomes, hoarded jobs; runs on the manager's beat thread."""
        backend = self._backend
        now = backend.clock.timeline_ms()
        due: int | None = None
        renewals: list[tuple[str, str | None]] = []
        renewing = now >= self._next_beat_ms
        for slot in self._slots:
            current = slot.current
            if current is None and not slot.queued and not slot.held:
                continue
            due = self._next_beat_ms
            if slot.held and (now - slot.since_ms >= BATCH_MS or self._awaited(slot)):
                self._flush(slot)
            if slot.queued and now - slot.since_ms >= HOARD_MS and backend.others_wait(self._queue):
                self._return_queued(slot)
            if renewing:
                if current is not None:
                    renewals.append((current.id, current.token))
                renewals += [(job.id, job.token) for job in tuple(slot.queued)]
        if renewals:
            backend.renew(renewals)
        if renewing:
            self._next_beat_ms = now + self._beat_ms
            due = None if due is None else self._next_beat_ms
        if any(slot.held or slot.queued for slot in self._slots):
            due = now + BATCH_MS
        return len(renewals), due

    def _awaited(self, slot: _Slot) -> bool:
        return any(self._backend.is_watched(job.id) for job, _ in tuple(slot.held))


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


def _beat_ms(interval: Duration | None, lease_ms: int) -> int:
    if interval is None:
        return max(1, lease_ms // 3)
    beat_ms = to_ms(interval, "heartbeat_interval", zero=False)
    if beat_ms * 2 >= lease_ms:
        raise ValidationError(
            f"heartbeat_interval must be under half of lock_duration ({lease_ms / 1000:g} s), "
            f"not {shown(interval)}"
        )
    return beat_ms
