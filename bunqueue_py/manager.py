"""`QueueManager`: the engine's front door. Converts at the edge and delegates to the verbs.

It is over 400 lines because it is the one façade of all verbs: no method has logic of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

from typing_extensions import Self, Unpack

from . import watchmen
from .aio import AsyncCalls
from .backend import EngineBackend
from .client.job import Ack, DlqEntry, Job, dlq_entry
from .client.protocol import Backend
from .client.schedulers import ManagerSchedulers
from .clock import Clock, SystemClock
from .config import ManagerConfig
from .durations import ms_to_moment, optional_moment, shown, timeout_to_ms, to_ms
from .errors import ForkedManagerError, LockError, StorageError, UnrecoverableError, ValidationError
from .event_hub import EventHub
from .ids import Ids, SystemIds
from .model.checks import check_clock, checked_iterable
from .model.failure import bounded, describe
from .model.figures import ManagerStats, MinuteCount, checked_ending
from .model.flow_node import FlowNode, FlowPlan, planned
from .model.health import HealthReport
from .model.job_logs import LogEntry, LogPage, checked_line
from .model.options import (
    MAX_BATCH,
    MAX_PRIORITY,
    JobSpec,
    OtherOptions,
    checked_bool,
    checked_int,
    checked_name,
    checked_queue_name,
)
from .model.schedule import MAX_RUNS, Scheduler
from .model.settings import (
    dlq_config,
    dlq_settings,
    letter_filter,
    stall_config,
    stall_settings,
)
from .model.timing import checked_timing
from .model.window import MAX_PER_WINDOW
from .observe import health
from .observe import stats as observe_stats
from .observe.checks import Checks
from .observe.metrics import Metrics
from .observe.webhooks import Webhooks
from .ops import ack as ops_ack
from .ops import (
    change,
    children,
    clean,
    control,
    cut,
    dead_letters,
    deduplicate,
    fail,
    flow,
    flow_add,
    leases,
    limits,
    logs,
    owners,
    pull,
    push,
    query,
    schedule,
    stalls,
    wait,
    walk,
)
from .ops import close as ops_close
from .ops.ack import ack as ack_job
from .ops.pull import pull_one
from .ops.pull_async import pull_async
from .ops.push import push as push_job
from .ops.push_batch import push_batch
from .readonly import ReadonlyManager, open_readonly
from .serializers import Serializer
from .shard.shard import FORKED, INERT
from .state import State, build_state
from .storage.base import Storage
from .storage.memory import MemoryStorage
from .storage.sqlite.paths import PathInput, absolute
from .storage.sqlite.storage import SqliteStorage
from .stores.alarm import NEVER
from .stores.duty import Duty
from .sync import MANAGER, in_child_of_worker, make_lock, spawn
from .tasks.scheduler import TaskLoop
from .types import (
    ANY,
    Deduplication,
    DlqConfig,
    DlqStats,
    Duration,
    GroupChoice,
    JobCounts,
    JobState,
    LimitStatus,
    Outcome,
    RateLimit,
    StallConfig,
)
from .types import Report as FileReport
from .watchmen import Workers

_log = logging.getLogger("bunqueue_py.manager")

EXIT_TIMEOUT = 5.0
FOR_STORAGE_MS = 2_000
"""Of the time that a close is given, what workers leave to the storage, or two fifths if less."""
LAST_FLUSH_MS = 1_000
"""What the last flush may take at the least."""
_LOCKING = frozenset(f"{__package__}.{room}" for room in ("ops", "shard", "stores", "tasks"))
DEFAULT_LOCK = 30
_AT_ONCE: int = 0
MAX_PREVIEW = 1_000
_STATE_NAMES = ", ".join(query.ALL_STATES)


class QueueManager:
    """Queues, their jobs and the threads that mind them, in this process.

    `storage`: `None` or `MemoryStorage()` keep everything in memory; a path keeps it in that SQLite
    file, where the next manager finds it; `SqliteStorage(path, ...)` does so with other settings.
    Raises `StorageError` if it cannot be opened. `config`: a `ManagerConfig`.
    `clock`: the time to live by. `background=False` starts no thread: the caller steps with
    `run_pending()`. Use it as a context manager, or call `close()`.

    >>> with QueueManager() as manager:
    ...     job = manager.push("sums", [1, 2, 3])
    ...     held = manager.pull("sums")
    ...     manager.ack(held, sum(held.data))
    ...     job.result()
    Outcome(applied=True, reason=None)
    6
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "jobs.db")
    ...     with QueueManager(path) as manager:
    ...         job = manager.push("sums", [1, 2, 3])
    ...     with QueueManager(path) as manager:
    ...         manager.pull("sums").data
    [1, 2, 3]
    """

    _calls_handlers: str | None = None
    """The package that calls handlers and listeners on a stack which holds no lock, though it may
    have come out of a wait of ours; `None` where that is done by threads."""

    def __init__(
        self,
        storage: MemoryStorage | Storage | str | os.PathLike[str] | None = None,
        *,
        config: ManagerConfig | None = None,
        clock: Clock | None = None,
        background: bool = True,
        _ids: Ids | None = None,
    ) -> None:
        inert = in_child_of_worker()
        kept = None if inert else _storage(storage)
        if config is not None and not isinstance(config, ManagerConfig):
            raise ValidationError(f"config must be a ManagerConfig, not {shown(config)}")
        checked_bool(background, "background")
        check_clock(clock)
        if background and getattr(clock, "is_virtual", False):
            raise ValidationError(
                "a virtual clock moves only by hand, and threads would wait on it for ever: "
                "give background=False and step with run_pending()"
            )
        state = build_state(
            config or ManagerConfig(),
            clock or SystemClock(),
            _ids or SystemIds(),
            Job,
            self,
            kept,
        )
        self._state: State = state
        if inert:
            background = False
            for shard in state.shards.shards:
                shard.gate = INERT
        #: Encoded data as a value: the serializer's own function, as every `job.data` calls it.
        self.decode: Callable[[bytes], Any] = state.loads
        self._background = background
        self._lifecycle = make_lock("manager lifecycle", MANAGER)
        self._closed: threading.Event | None = None
        self._loop = TaskLoop("scheduler", state.clock, state.alarm, threaded=background)
        self._beat = TaskLoop("beat", state.clock, state.beat, threaded=background)
        self._checks = checks = Checks(state, Duty(state.alarm))
        state.dependencies.drain = partial(flow.drain, state)
        self._backend = EngineBackend(state, self._beat, runs_threads=background)
        self._backend.pace = watchmen.hire(
            state,
            self._loop,
            self._beat,
            checks,
            self._backend.has_worker,
            threaded=background,
        )
        self.events = EventHub(state, threaded=background)
        if state.config.tracing is not False:
            from .observe import tracing  # needs an extra

            tracing.attach(self, state.config.tracing)
        self.metrics = Metrics(state, self._worker_count)
        self.workers = Workers(state)
        #: The calls that may block, as coroutines.
        self.aio = AsyncCalls(self)
        self._storage_left = kept is not None
        if kept is not None:
            cut.attach(state)
        try:
            if kept is not None:
                self._begin_to_write(kept)
            # when what the file has kept is known
            self.webhooks = Webhooks(state, threaded=background)
            self._at_exit = _AtExit(self)
            atexit.register(self._at_exit)
            _disown_in_children(state, self._backend)
        except BaseException:
            # Ctrl-C: nobody will ever close it
            self._break_off()
            raise

    def _begin_to_write(self, kept: Storage) -> None:
        state = self._state
        kept.start(
            partial(cut.collect, state),
            partial(cut.count, state),
            threaded=self._background,
            changed=partial(cut.storage_changed, state),
        )
        if state.queues:
            # what has expired since is put away, and what will tells when
            state.cleanup.arm(state.now() + state.periods.cleanup_interval)
        if not state.alarm.served and state.alarm.due_ms < NEVER:
            state.alarm.start()

    def _break_off(self) -> None:
        try:
            self._seal()
        finally:
            self._loop.stop(0)
            self._beat.stop(0)
            self._close_storage(None)

    def __repr__(self) -> str:
        where = "in memory" if self._state.storage is None else f"on {self._state.storage!r}"
        return f"<QueueManager {where}, {'open' if self._closed is None else 'closed'}>"

    # -- life --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StorageError as problem:
            if error is None:
                raise
            # what went wrong in the block comes first
            _log.error("%s", problem)
            if hasattr(error, "add_note"):
                error.add_note(f"And when the manager closed: {problem}")

    def close(self, timeout: Duration | None = None) -> bool:
        """Closes the workers (each waits for its handlers, up to `timeout`, else to its own
        `close_timeout`), then every queue, the listeners and the threads. Says whether all ended
        in time. Every later call raises `ManagerClosedError`. Idempotent, and safe from a handler
        or a listener; from a signal handler or finaliser that has interrupted another call it
        closes in the background and returns False at once."""
        timeout_ms = timeout_to_ms(timeout)
        self._refuse_in_child()
        if _inside_a_section(self._calls_handlers):
            # a signal handler or finaliser has interrupted a call of ours that may hold a lock:
            # waiting for it here would be waiting for ourselves
            spawn("closer", lambda: self._close_later(timeout))
            return False
        with self._lifecycle:
            first = self._closed is None
            if self._closed is None:
                self._closed = threading.Event()
            closed = self._closed
        if not first:
            # a handler or listener that closes its own manager must not wait for itself
            if threading.current_thread().name.startswith("bunqueue-"):
                return closed.is_set()
            if not closed.wait(None if timeout_ms is None else timeout_ms / 1000):
                return False
            # Ctrl-C or a hanging disk kept the first call from the end of the storage
            problem = self._close_storage(self._deadline(timeout_ms))
            if problem is not None:
                raise problem
            return True
        deadline = self._deadline(timeout_ms)
        # a handler that never returns must not use up the time of the disk
        for_workers = deadline
        if deadline is not None and timeout_ms is not None and self._state.storage is not None:
            for_workers = deadline - min(FOR_STORAGE_MS, timeout_ms * 2 // 5)
        ended = True
        try:
            for worker in self._backend.attached():
                ended = worker._close_with_manager(self._left(for_workers)) and ended
        except BaseException:
            # Ctrl-C while handlers finish: close at once what is left
            deadline = self._state.now()
            raise
        finally:
            try:
                self._seal()
            finally:
                try:
                    problem = self._close_storage(deadline)
                finally:
                    ended = self._loop.stop(self._left(deadline)) and ended
                    ended = self._beat.stop(self._left(deadline)) and ended
                    ended = self.events.close(self._left(deadline)) and ended
                    ended = self.webhooks.close(self._left(deadline)) and ended
                    ended = self._backend.close(self._left(deadline)) and ended
                    if not self._storage_left:
                        atexit.unregister(self._at_exit)
                    closed.set()
        if problem is not None:
            raise problem
        return ended

    def _seal(self) -> None:
        try:
            ops_close.seal(self._state)
        except BaseException:
            # Ctrl-C: what a shard that stayed open accepts now would not reach the disk any more
            ops_close.seal(self._state)
            raise

    def _close_storage(self, deadline: int | None) -> StorageError | None:
        """Writes what is left; what went wrong with it is raised when all else has ended."""
        storage = self._state.storage
        if storage is None or not self._storage_left:
            return None
        left = self._left(deadline)
        try:
            # what is accepted is written, however short the time was that handlers were given
            storage.close(None if left is None else max(round(left * 1000), LAST_FLUSH_MS))
        except StorageError as error:
            # a commit that hangs keeps the file
            self._storage_left = isinstance(storage, SqliteStorage) and storage._taken
            return error
        self._storage_left = False
        return None

    def flush(self, timeout: Duration | None = None) -> None:
        """Returns once everything accepted so far is on disk; at once with memory storage. Raises
        `StorageError` if it cannot be written (it is still to be, and tried again), and
        `WaitTimeoutError`."""
        timeout_ms = timeout_to_ms(timeout)
        self._check_open()
        if self._state.storage is not None:
            self._state.storage.flush(timeout_ms)

    def backup(self, path: PathInput) -> None:
        """Copies the file to `path`, whole and as it is at one moment, with everything accepted
        before the call, while jobs go on. Blocks until the copy is on disk. See
        `SqliteStorage.backup`, which needs no manager.

        Raises `StorageError`, and for a manager in memory `ValidationError`.

        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     copy = os.path.join(folder, "copy.db")
        ...     with QueueManager(os.path.join(folder, "jobs.db")) as manager:
        ...         job = manager.push("sums", [1, 2, 3])
        ...         manager.backup(copy)
        ...     with QueueManager(copy) as manager:
        ...         manager.counts("sums").waiting
        1
        """
        self._on_disk("backup").backup(path)

    def verify(self) -> FileReport:
        """Flushes, then reads all of the file and tells what is wrong with it; jobs go on
        meanwhile. See `SqliteStorage.verify`, which needs no manager.

        Raises `StorageError`, and for a manager in memory `ValidationError`.

        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with QueueManager(os.path.join(folder, "jobs.db")) as manager:
        ...         job = manager.push("sums", [1, 2, 3])
        ...         report = manager.verify()
        >>> report.ok, report.jobs.waiting
        (True, 1)
        """
        storage = self._on_disk("verify")
        storage.flush()
        return storage.verify()

    def _on_disk(self, verb: str) -> SqliteStorage:
        self._check_open()
        storage = self._state.storage
        if not isinstance(storage, SqliteStorage):
            raise ValidationError(
                f"{verb}() is about a file, and this manager has none: open it as "
                'QueueManager("jobs.db")'
            )
        return storage

    @classmethod
    def open_readonly(
        cls, path: PathInput, serializer: Serializer | None = None, *, clock: Clock | None = None
    ) -> ReadonlyManager:
        """A view of the file at `path` that changes nothing: for another process, beside the
        manager that has it open, or after that has ended. Every write raises `StorageError`; see
        `ReadonlyManager`.

        `serializer`: what the file was written with, if not `JsonSerializer`. `clock`: by which
        delayed jobs are judged. Raises `StorageError` if there is no such file, or it is not ours.

        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "jobs.db")
        ...     with QueueManager(path) as manager:
        ...         job = manager.push("sums", [1, 2, 3])
        ...         manager.flush()
        ...         with QueueManager.open_readonly(path) as view:
        ...             view.counts("sums").waiting
        1
        """
        return open_readonly(path, serializer, clock=clock)

    def _close_later(self, timeout: Duration | None) -> None:
        self.close(timeout)

    def _refuse_in_child(self) -> None:
        shard = self._state.shards.shards[0]
        if shard.gate == FORKED:
            shard.refuse()

    def _deadline(self, timeout_ms: int | None) -> int | None:
        return None if timeout_ms is None else self._state.now() + timeout_ms

    def _left(self, deadline: int | None) -> float | None:
        return None if deadline is None else max(0, deadline - self._state.now()) / 1000

    def run_pending(self) -> int:
        """With `background=False`: does what is due now (deadlines, listeners' callbacks) and
        returns how much that was."""
        self._check_open()
        done = self._loop.run_pass()
        if self._state.storage is not None:
            self._state.storage.step()
        return done + self.events.drain() + self.webhooks.step()

    def next_due(self) -> datetime | None:
        """The next moment at which time alone changes something (a deadline, a delayed job);
        `None` if there is none."""
        self._check_open()
        state = self._state
        moments = []
        for shard in state.shards.shards:
            with shard.lock:
                moments.append(shard.deadlines.next_ms())
                now, wall = state.now(), state.wall()
                moments += [queue.next_due(now, wall) for queue in shard.queues.values()]
        moments.append(state.schedules.next_ms(state.now(), state.wall()))
        return optional_moment(min((m for m in moments if m is not None), default=None))

    @property
    def backend(self) -> Backend:
        """What workers and the testing kit use; not meant for applications."""
        return self._backend

    @property
    def now(self) -> datetime:
        """The time of the engine's clock."""
        return ms_to_moment(self._state.now())

    # -- jobs in and out ---------------------------------------------------------------------

    def push(
        self,
        queue: Any,
        data: Any = None,
        *,
        name: str = "default",
        custom_id: str | None = None,
        deduplication: Deduplication | None = None,
        **options: Unpack[OtherOptions],
    ) -> Job:
        """Adds a job and returns it; the live job of its `custom_id`, or the owner of its
        `deduplication` key, if there is one (`duplicate` is then True).

        Raises `ValidationError`, `SerializationError`, `ManagerClosedError`, `TypeError` for an
        unknown option; nothing has changed then.
        """
        if custom_id is not None or deduplication is not None:
            if not options:
                return push.push_named(  # type: ignore[return-value]
                    self._state,
                    queue if queue.__class__ is str else _queue_name(queue),
                    data,
                    name,
                    custom_id,
                    deduplication,
                )
            options["custom_id"] = custom_id  # type: ignore[typeddict-unknown-key]
            options["deduplication"] = deduplication  # type: ignore[typeddict-unknown-key]
        return push_job(  # type: ignore[return-value]
            self._state,
            queue if queue.__class__ is str else _queue_name(queue),
            data,
            name,
            options,  # type: ignore[arg-type]
        )

    def push_batch(self, queue: Any, specs: Iterable[JobSpec | tuple[str, Any]]) -> list[Job]:
        """Adds up to 100,000 jobs in one unit and returns them in order; what is invalid refuses
        the batch whole, named `jobs[i]`."""
        return push_batch(self._state, _queue_name(queue), specs)  # type: ignore[return-value]

    def pull(
        self,
        queue: Any,
        timeout: Duration | None = _AT_ONCE,
        *,
        lock_duration: Duration | None = DEFAULT_LOCK,
        owner: str | None = None,
        group: GroupChoice = ANY,
    ) -> Job | None:
        """The next job, held by its `token` for `lock_duration` (`None`: without a lock), or
        `None` if there is none within `timeout`. `owner` is shown where the lock expires.
        `group`: `ANY`, `None` for ungrouped jobs only, or the name of a group."""
        return pull_one(  # type: ignore[return-value]
            self._state,
            queue if queue.__class__ is str else _queue_name(queue),
            0 if timeout is _AT_ONCE else timeout_to_ms(timeout),
            30_000 if lock_duration is DEFAULT_LOCK else _lease_ms(lock_duration),
            owner if owner is None else checked_name(owner, "owner"),
            group if group is ANY else _group(group),
        )

    def pull_batch(
        self,
        queue: Any,
        max_jobs: int,
        timeout: Duration | None = 0,
        *,
        lock_duration: Duration | None = 30,
        owner: str | None = None,
        group: GroupChoice = ANY,
    ) -> list[Job]:
        """Up to `max_jobs` (1 to 100,000) jobs at once; waits up to `timeout` for the first."""
        checked_int(max_jobs, "max_jobs", 1, MAX_BATCH)
        return pull.pull(  # type: ignore[return-value]
            self._state,
            _queue_name(queue),
            max_jobs,
            timeout_to_ms(timeout),
            _lease_ms(lock_duration),
            owner if owner is None else checked_name(owner, "owner"),
            group=group if group is ANY else _group(group),
        )

    def ack(self, job: Job | str, result: Any = None, *, token: str | None = None) -> Outcome:
        """Completes a pulled job with its result. Not applied where the lock was lost, the job
        is finished or gone (`reason` says which); a result that cannot be encoded fails the job
        for good instead (`reason="unserializable"`).

        Raises `LockError` for a token that is missing or was never issued for the job.
        """
        if job.__class__ is Job and token is None:
            job_id, token = job._id, job.token
        else:
            job_id, token = _identify(job, token)
        data = None
        if result is not None:
            try:
                data = self._state.dumps(result)
                if data.__class__ is not bytes or len(data) > self._state.max_data_bytes:
                    data = push.encode(self._state, result, "the result")
            except Exception as error:  # whatever serializer is in use may raise what it likes
                return self._unserializable(job_id, token, error)
        return ack_job(self._state, job_id, token, data)

    def ack_batch(self, items: Iterable[Ack]) -> list[Outcome]:
        """`ack` for up to 100,000 items, in order; never raises for one of them: a token that was
        never issued answers `not_issued`. Raises `StorageError` with `accepted` where all of it is
        done, but the outcome of a durable job could not be put on disk yet."""
        settled: list[tuple[str, str | None, bytes | None]] = []
        broken: list[tuple[int, str, str | None, Exception]] = []
        dumps, bound = self._state.dumps, self._state.config.max_data_bytes
        for item in _bounded(items):
            if not isinstance(item, tuple) or len(item) != 3:
                raise ValidationError(f"items must be Ack(job, result), not {shown(item)}")
            job, result, token = item
            if job.__class__ is Job and token is None:
                job_id, token = job._id, job.token
            else:
                job_id, token = _identify(job, token)
            data = None
            if result is not None:
                try:
                    data = dumps(result)
                    if data.__class__ is not bytes or len(data) > bound:
                        data = push.encode(self._state, result, "the result")
                except Exception as raised:  # as in ack
                    broken.append((len(settled), job_id, token, raised))
                    continue
            settled.append((job_id, token, data))
        outcomes, problem = ops_ack.ack_batch(self._state, settled)
        for shift, (i, job_id, token, error) in enumerate(broken):
            try:
                outcome = self._unserializable_in_batch(job_id, token, error)
            except StorageError as raised:
                outcome, problem = Outcome(False, "unserializable"), problem or raised
            outcomes.insert(i + shift, outcome)
        if problem is not None:
            raise problem
        return outcomes

    def _unserializable(self, job_id: str, token: str | None, error: Exception) -> Outcome:
        text, stack = describe(error)
        outcome, _ = fail.fail(
            self._state,
            job_id,
            token,
            text,
            stack,
            error,
            unrecoverable=True,
            work_done=True,
        )
        return Outcome(False, "unserializable") if outcome.applied else outcome

    def _unserializable_in_batch(self, job_id: str, token: str | None, error: Exception) -> Outcome:
        try:
            return self._unserializable(job_id, token, error)
        except LockError:
            return ops_ack.NOT_ISSUED

    def fail(
        self,
        job: Job | str,
        error: BaseException | str,
        *,
        token: str | None = None,
        unrecoverable: bool = False,
    ) -> Outcome:
        """Fails the run of a pulled job: it is retried while attempts remain, unless
        `unrecoverable` (or the error is an `UnrecoverableError`). Raises `LockError` as `ack`
        does."""
        job_id, token = _identify(job, token)
        if not isinstance(error, (str, BaseException)):
            raise ValidationError(f"error must be text or an exception, not {shown(error)}")
        checked_bool(unrecoverable, "unrecoverable")
        unrecoverable = unrecoverable or isinstance(error, UnrecoverableError)
        text, stack = describe(error)
        return fail.fail(
            self._state, job_id, token, text, stack, error, unrecoverable=unrecoverable
        ).outcome

    def release(self, job: Job | str, *, token: str | None = None, delay: Duration = 0) -> bool:
        """Gives a pulled job back, no attempt charged: to its old place, or after `delay`."""
        job_id, token = _identify(job, token)
        return leases.release(self._state, job_id, token, to_ms(delay, "delay"))

    def release_owner(self, owner: str) -> int:
        """Gives back every active job that was pulled with that `owner` (a worker's name, for its
        jobs), no attempt charged; returns how many. Their handlers find their locks lost."""
        return owners.release_owner(self._state, checked_name(owner, "owner"))

    def heartbeat(self, job: Job | str, *, token: str | None = None) -> bool:
        """Renews the lock of a pulled job, or says that one without a lock is alive; False if it
        was lost."""
        return leases.renew(self._state, *_identify(job, token), None)

    def heartbeat_batch(self, jobs: Iterable[Job | str]) -> list[bool]:
        """`heartbeat` for up to 100,000 pulled jobs; a token never issued answers False."""
        return leases.renew_batch(self._state, [_identify(job, None) for job in _bounded(jobs)])

    def extend_lock(self, job: Job | str, duration: Duration, *, token: str | None = None) -> bool:
        """Holds a pulled job for `duration` from now, and so at each heartbeat; False if its
        lock was lost."""
        job_id, token = _identify(job, token)
        return leases.renew(self._state, job_id, token, to_ms(duration, "duration", zero=False))

    def update_progress(
        self,
        job: Job | str,
        percent: float,
        message: str | None = None,
        *,
        token: str | None = None,
    ) -> None:
        """Stores how far a pulled job is, 0 to 100. Raises `LockError` if its lock was lost."""
        job_id, token = _identify(job, token)
        if percent.__class__ not in (int, float) or not 0 <= percent <= 100:
            raise ValidationError(f"percent must be a number from 0 to 100, not {shown(percent)}")
        if message is not None:
            if not isinstance(message, str):
                raise ValidationError(f"message must be text, not {shown(message)}")
            message = bounded(message)
        leases.update_progress(self._state, job_id, token, percent, message)

    def add_log(
        self, job: Job | str, text: str, level: str = "info", *, token: str | None = None
    ) -> None:
        """Writes a line into the log of a pulled job; see `Job.log`. Raises `LockError` if its
        lock was lost, `JobNotFoundError` if it is gone, `ValidationError`."""
        job_id, token = _identify(job, token)
        logs.add_log(self._state, job_id, token, *checked_line(text, level))

    # -- looking -----------------------------------------------------------------------------

    def get_job(
        self,
        job_id: Job | str | None = None,
        *,
        queue: Any = None,
        custom_id: str | None = None,
    ) -> Job | None:
        """The job by its id, or by queue and custom id; `None` if there is none. With
        `keep_completed=None` on a file, one that memory has let go is found there by its id."""
        if (job_id is None) == (custom_id is None) or (job_id is None) == (queue is None):
            raise ValidationError("give job_id alone, or queue and custom_id")
        if job_id is not None:
            found = query.get_job(self._state, _identify(job_id, None)[0])
        else:
            self._check_open()
            found = query.get_by_custom_id(
                self._state, _queue_name(queue), checked_name(custom_id, "custom_id")
            )
        if found is None:
            self._check_open()
        return found  # type: ignore[return-value]

    def get_state(self, job_id: Job | str) -> JobState:
        """The job's state; `JobState.UNKNOWN` if there is no such job."""
        self._check_open()
        return query.get_state(self._state, _identify(job_id, None)[0])

    def get_result(self, job_id: Job | str) -> Any:
        """The result of a completed job; `None` in any other state. Read from the file where
        memory has let it go; raises `ResultExpiredError` where that is gone too."""
        self._check_open()
        return query.get_result(self._state, _identify(job_id, None)[0])

    def wait_for(self, job_id: Job | str, timeout: Duration | None = None) -> Any:
        """Blocks until the job has completed and returns its result. Raises `JobFailedError`,
        `JobNotFoundError`, `ResultExpiredError`, `WaitTimeoutError`, `ManagerClosedError`."""
        self._check_open()
        return wait.wait_for(self._state, _identify(job_id, None)[0], timeout_to_ms(timeout))

    async def wait_for_async(self, job_id: Job | str, timeout: Duration | None = None) -> Any:
        """`wait_for` for coroutines; what `await job` does."""
        self._check_open()
        timeout_ms = timeout_to_ms(timeout)
        return await wait.wait_for_async(self._state, _identify(job_id, None)[0], timeout_ms)

    async def _pull_async(
        self,
        queue: Any,
        max_jobs: int,
        timeout: Duration | None,
        *,
        lock_duration: Duration | None,
        owner: str | None,
        group: GroupChoice,
    ) -> list[Job]:
        checked_int(max_jobs, "max_jobs", 1, MAX_BATCH)
        waiter = self._backend.async_handle(group if group is ANY else _group(group))
        return await pull_async(  # type: ignore[return-value]
            self._state,
            _queue_name(queue),
            max_jobs,
            timeout_to_ms(timeout),
            _lease_ms(lock_duration),
            owner if owner is None else checked_name(owner, "owner"),
            waiter,
            self._backend.off_loop,
        )

    def job_logs(self, job_id: Job | str, offset: int = 0, limit: int = 100) -> LogPage:
        """A page of the job's log, oldest line first; see `Queue.logs`."""
        checked_int(offset, "offset", 0, 1 << 40)
        checked_int(limit, "limit", 0, 1_000_000)
        lines, total = logs.page(self._state, _identify(job_id, None)[0], offset, limit)
        return LogPage([LogEntry(x.level, ms_to_moment(x.at_ms), x.text) for x in lines], total)

    def stats(self) -> ManagerStats:
        """What the manager does and holds: jobs by state, totals, throughput, latencies, storage,
        memory. Each queue is read in its own moment, a few dozen at a time.

        >>> with QueueManager() as manager:
        ...     job = manager.push("sums", [1, 2, 3])
        ...     stats = manager.stats()
        >>> stats.counts.waiting, stats.queues["sums"].totals.added
        (1, 1)
        """
        return observe_stats.read(self._state)

    def minute_counts(self, queue: Any, kind: str) -> list[MinuteCount]:
        """How many jobs of the queue "completed" or "failed" in each minute that has any; see
        `Queue.metrics`."""
        which = checked_ending(kind)
        return observe_stats.minutes(self._state, _queue_name(queue), which)

    def _worker_count(self) -> int:
        return len(self._backend.attached())

    def get_jobs(
        self,
        queue: Any,
        states: JobState | str | Iterable[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        with_data: bool = True,
    ) -> list[Job]:
        """A page of the queue's jobs in those states (`None`: all), of those in memory; see
        `Queue.get_jobs`."""
        checked_int(offset, "offset", 0, 1 << 40)
        checked_int(limit, "limit", 0, 1_000_000)
        self._check_open()
        return query.get_jobs(  # type: ignore[return-value]
            self._state,
            _queue_name(queue),
            _states(states),
            offset,
            limit,
            newest_first=checked_bool(newest_first, "newest_first"),
            with_data=checked_bool(with_data, "with_data"),
        )

    def iter_jobs(
        self, queue: Any, states: JobState | str | Iterable[JobState | str] | None = None
    ) -> Iterator[Job]:
        """Every job of the queue in those states (`None`: all); see `Queue.iter_jobs`."""
        self._check_open()
        return walk.iter_jobs(  # type: ignore[return-value]
            self._state, _queue_name(queue), _states(states)
        )

    def counts_per_priority(self, queue: Any) -> dict[int, int]:
        """How many jobs wait, of each priority; see `Queue.counts_per_priority`."""
        self._check_open()
        return query.counts_per_priority(self._state, _queue_name(queue))

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        self._check_open()
        return sorted(self._state.queues)

    def health(self) -> HealthReport:
        """How the manager is doing now: its background tasks, storage and workers, handlers that
        are overdue, and what is wrong, in sentences. Blocks for nothing."""
        self._check_open()
        behind = self._loop.behind_ms(self._state.now()) if self._background else 0
        return health.report(self._state, behind, self._checks.problems())

    def counts(self, queue: Any = None) -> JobCounts:
        """How many jobs are in each state, of one queue or of all. `completed` are those that are
        in memory; `keep_completed=None` may leave more in the file."""
        self._check_open()
        if queue is None:
            return query.total_counts(self._state)
        return query.counts(self._state, _queue_name(queue))

    def known_queue(self, name: str) -> str:
        """The checked name of a queue, which exists from now on."""
        if self._backend.is_inert:
            # in a process of a worker, modules are imported that make queues
            return checked_queue_name(name)
        return query.queue_of(self._state, checked_queue_name(name)).name

    # -- control: what `Queue` and its parts call --------------------------------------------

    def pause(self, queue: Any) -> None:
        """See `Queue.pause`."""
        control.set_paused(self._state, _queue_name(queue), True)

    def resume(self, queue: Any) -> None:
        """See `Queue.resume`."""
        control.set_paused(self._state, _queue_name(queue), False)

    def is_paused(self, queue: Any) -> bool:
        """See `Queue.is_paused`."""
        self._check_open()
        return query.is_paused(self._state, _queue_name(queue))

    def drain(self, queue: Any, delayed: bool = True) -> int:
        """See `Queue.drain`."""
        checked_bool(delayed, "delayed")
        return control.drain(self._state, _queue_name(queue), delayed=delayed)

    def obliterate(self, queue: Any, force: bool = False) -> int:
        """See `Queue.obliterate`."""
        checked_bool(force, "force")
        return control.obliterate(self._state, _queue_name(queue), force=force)

    def remove(self, job: Job | str, queue: str | None = None) -> bool:
        """See `Queue.remove`; of that queue only, if one is given."""
        control.remove(self._state, _identify(job, None)[0], queue)
        return True

    def retry(self, job: Job | str, queue: str | None = None) -> bool:
        """See `Queue.retry`; of that queue only, if one is given."""
        control.retry(self._state, _identify(job, None)[0], queue)
        return True

    def clean(
        self, queue: Any, older_than: Duration, *, state: JobState | str, limit: int = 1000
    ) -> list[str]:
        """See `Queue.clean`."""
        return clean.clean(
            self._state,
            _queue_name(queue),
            to_ms(older_than, "older_than"),
            _one_state(state, clean.CLEANABLE),
            checked_int(limit, "limit", 0, MAX_BATCH),
        )

    def retry_all(
        self, queue: Any, state: JobState | str = JobState.FAILED, limit: int | None = None
    ) -> int:
        """See `Queue.retry_all`."""
        finished = _one_state(state, (JobState.COMPLETED, JobState.FAILED))
        return clean.retry_all(self._state, _queue_name(queue), finished, _limit(limit))

    def promote(self, job: Job | str, queue: str | None = None) -> bool:
        """See `Queue.promote`; of that queue only, if one is given."""
        return change.promote(self._state, _identify(job, None)[0], queue)

    def promote_all(self, queue: Any, limit: int | None = None) -> int:
        """See `Queue.promote_all`."""
        return change.promote_all(self._state, _queue_name(queue), _limit(limit))

    def discard(self, job: Job | str, queue: str | None = None) -> bool:
        """See `Queue.discard`; of that queue only, if one is given."""
        return change.discard(self._state, _identify(job, None)[0], queue)

    def update_data(
        self, job: Job | str, data: Any, queue: str | None = None, *, token: str | None = None
    ) -> bool:
        """See `Queue.update_data`; of that queue only, if one is given. `token`: that of the
        delivery under way, if `job` is an id."""
        job_id, token = _identify(job, token)
        encoded = push.encode(self._state, data, "data")
        return change.update_data(self._state, job_id, queue, token, encoded)

    def change_priority(
        self,
        job: Job | str,
        priority: int,
        lifo: bool | None = None,
        queue: str | None = None,
    ) -> bool:
        """See `Queue.change_priority`; of that queue only, if one is given."""
        checked_int(priority, "priority", -MAX_PRIORITY, MAX_PRIORITY)
        if lifo is not None:
            checked_bool(lifo, "lifo")
        job_id, _ = _identify(job, None)
        return change.change_priority(self._state, job_id, queue, priority, lifo)

    def change_delay(self, job: Job | str, delay: Duration, queue: str | None = None) -> bool:
        """See `Queue.change_delay`; of that queue only, if one is given."""
        job_id, _ = _identify(job, None)
        return change.change_delay(self._state, job_id, queue, to_ms(delay, "delay"))

    def wait_until_empty(self, queue: Any, timeout: Duration | None = None) -> None:
        """See `Queue.wait_until_empty`."""
        wait.wait_until_empty(self._state, _queue_name(queue), timeout_to_ms(timeout))

    def dlq_configure(
        self,
        queue: Any,
        auto_retry: bool = False,
        retry_interval: Duration = 3600,
        max_retries: int = 3,
        max_age: Duration | None = 604_800,
        max_entries: int = 10_000,
    ) -> None:
        """See `DeadLetterQueue.configure`."""
        given = dlq_settings(auto_retry, retry_interval, max_retries, max_age, max_entries)
        dead_letters.configure(self._state, _queue_name(queue), given)

    def dlq_config(self, queue: Any) -> DlqConfig:
        """See `DeadLetterQueue.config`."""
        self._check_open()
        return dlq_config(dead_letters.settings_of(self._state, _queue_name(queue)))

    def dlq_entries(
        self,
        queue: Any,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> list[DlqEntry]:
        """See `DeadLetterQueue.entries`."""
        checked_int(offset, "offset", 0, 1 << 40)
        checked_int(limit, "limit", 0, 1_000_000)
        wanted = letter_filter(reason, older_than, newer_than, retriable, self._state.now())
        jobs = dead_letters.entries(self._state, _queue_name(queue), wanted, offset, limit)
        return [dlq_entry(job) for job in jobs]  # type: ignore[arg-type]

    def dlq_len(self, queue: Any) -> int:
        """How many dead letters the queue has."""
        return dead_letters.count(self._state, _queue_name(queue))

    def dlq_stats(self, queue: Any) -> DlqStats:
        """See `DeadLetterQueue.stats`."""
        found = dead_letters.stats(self._state, _queue_name(queue))
        return DlqStats(
            found.by_reason.total(),
            dict(found.by_reason.most_common()),
            found.retriable,
            found.retried,
            optional_moment(found.oldest_ms),
            optional_moment(found.newest_ms),
        )

    def dlq_retry(self, queue: str, job: Job | str) -> bool:
        """See `DeadLetterQueue.retry`."""
        dead_letters.retry(self._state, _identify(job, None)[0], queue)
        return True

    def dlq_retry_all(
        self,
        queue: Any,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
    ) -> int:
        """See `DeadLetterQueue.retry_all`."""
        wanted = letter_filter(reason, older_than, newer_than, retriable, self._state.now())
        return dead_letters.retry_all(self._state, _queue_name(queue), wanted)

    def dlq_remove(self, queue: str, job: Job | str) -> bool:
        """See `DeadLetterQueue.remove`."""
        dead_letters.remove(self._state, _identify(job, None)[0], queue)
        return True

    def deduplication_owner(self, queue: Any, key: str) -> str | None:
        """See `DeduplicationKeys.owner`."""
        name = _queue_name(queue)
        return deduplicate.owner(self._state, name, checked_name(key, "key"))

    def deduplication_release(self, queue: Any, key: str) -> bool:
        """See `DeduplicationKeys.release`."""
        name = _queue_name(queue)
        return deduplicate.release(self._state, name, checked_name(key, "key"))

    def dlq_purge(
        self,
        queue: Any,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
    ) -> int:
        """See `DeadLetterQueue.purge`."""
        wanted = letter_filter(reason, older_than, newer_than, retriable, self._state.now())
        return dead_letters.purge(self._state, _queue_name(queue), wanted)

    def stalls_configure(
        self,
        queue: Any,
        enabled: bool = True,
        interval: Duration = 30,
        max_stalls: int = 3,
        grace: Duration = 5,
    ) -> None:
        """See `StallCheck.configure`."""
        given = stall_settings(enabled, interval, max_stalls, grace)
        stalls.configure(self._state, _queue_name(queue), given)

    def stalls_config(self, queue: Any) -> StallConfig:
        """See `StallCheck.config`."""
        self._check_open()
        return stall_config(stalls.settings_of(self._state, _queue_name(queue)))

    def set_concurrency(self, queue: str, bound: int | None, group: str | None = None) -> None:
        """See `QueueLimits.set_concurrency` and `QueueGroup.set_concurrency`."""
        if bound is not None:
            checked_int(bound, "concurrency", 1, MAX_PER_WINDOW)
        limits.set_concurrency(self._state, queue, group, bound)

    def set_rate_limit(
        self,
        queue: str,
        max: int,
        per: Duration,
        ttl: Duration | None = None,
        group: str | None = None,
    ) -> None:
        """See `QueueLimits.set_rate_limit` and `QueueGroup.set_rate_limit`."""
        checked_int(max, "max", 1, MAX_PER_WINDOW)
        per_ms = to_ms(per, "per", zero=False)
        ttl_ms = None if ttl is None else to_ms(ttl, "ttl", zero=False)
        limits.set_rate(self._state, queue, group, max, per_ms, ttl_ms)

    def clear_rate_limit(self, queue: str, group: str | None = None) -> None:
        """See `QueueLimits.clear_rate_limit`."""
        limits.clear_rate(self._state, queue, group)

    def cool_down(self, queue: str, duration: Duration, group: str | None = None) -> None:
        """See `QueueLimits.cool_down`."""
        limits.cool_down(self._state, queue, group, to_ms(duration, "duration"))

    def limit_status(self, queue: str) -> LimitStatus:
        """See `QueueLimits.status`."""
        view = limits.limits_of(self._state, queue)
        return LimitStatus(
            concurrency=view.concurrency,
            active=view.active,
            rate_limit=None if view.max is None else RateLimit(view.max, view.per_ms / 1000),
            rate_limit_ends_at=optional_moment(view.ends_ms),
            used=view.used,
            cooling_until=optional_moment(view.cool_until_ms),
            opens_at=optional_moment(view.opens_ms),
        )

    def pause_group(self, queue: str, group: str, paused: bool) -> None:
        """See `QueueGroup.pause` and `QueueGroup.resume`."""
        limits.set_group_paused(self._state, queue, group, paused)

    def group_view(self, queue: str, group: str) -> tuple[dict[int, int], int, bool]:
        """Waiting jobs by priority, running jobs, and whether the group is paused."""
        return limits.group_of(self._state, queue, group)

    def group_names(self, queue: str) -> list[str]:
        """The names of the queue's groups that have jobs or settings, sorted."""
        return limits.group_names(self._state, queue)

    @property
    def schedulers(self) -> ManagerSchedulers:
        """The schedulers of all queues."""
        return ManagerSchedulers(self)

    cron = schedulers
    """The same under its other name."""

    def scheduler_upsert(
        self,
        queue: Any,
        schedule_id: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        limit: int | None = None,
        immediately: bool = False,
        catch_up: bool = False,
        skip_if_no_worker: bool = False,
        prevent_overlap: bool = True,
        job: JobSpec | None = None,
    ) -> Scheduler:
        """See `QueueSchedulers.upsert`."""
        name, known = _queue_name(queue), checked_name(schedule_id, "id")
        flags = (
            checked_bool(immediately, "immediately"),
            checked_bool(catch_up, "catch_up"),
            checked_bool(skip_if_no_worker, "skip_if_no_worker"),
            checked_bool(prevent_overlap, "prevent_overlap"),
        )
        if limit is not None:
            checked_int(limit, "limit", 1, MAX_RUNS)
        timing = checked_timing(every, cron, tz)
        spec = JobSpec(known) if job is None else job
        self._check_open()
        definition, template = schedule.define(self._state, timing, limit, flags, spec)
        return schedule.upsert(self._state, name, known, definition, template)

    def scheduler_get(self, queue: Any, schedule_id: str) -> Scheduler | None:
        """See `QueueSchedulers.get`."""
        return schedule.get(self._state, _queue_name(queue), checked_name(schedule_id, "id"))

    def scheduler_remove(self, queue: Any, schedule_id: str) -> bool:
        """See `QueueSchedulers.remove`."""
        return schedule.remove(self._state, _queue_name(queue), checked_name(schedule_id, "id"))

    def scheduler_list(self, queue: Any = None) -> list[Scheduler]:
        """See `ManagerSchedulers.list`."""
        return schedule.all_of(self._state, None if queue is None else _queue_name(queue))

    def scheduler_preview(self, queue: Any, schedule_id: str, n: int) -> list[datetime]:
        """See `QueueSchedulers.preview`."""
        checked_int(n, "n", 0, MAX_PREVIEW)
        name, known = _queue_name(queue), checked_name(schedule_id, "id")
        found = schedule.preview(self._state, name, known, n)
        if found is None:
            raise ValidationError(f"queue {name!r} has no scheduler {known!r}")
        return found

    # -- flows: what `FlowProducer` and `Job` call -------------------------------------------

    def add_flows(self, plan: FlowPlan, *, chain: bool = False) -> list[Job]:
        """Adds planned nodes in one unit, each behind its children; see `FlowProducer`."""
        self._check_open()
        if not len(plan):
            return []
        return flow_add.add_flows(self._state, plan, chain=chain)  # type: ignore[return-value]

    def add_child(self, job: Job | str, node: FlowNode) -> Job:
        """See `Job.add_child`."""
        self._check_open()
        job_id, token = _identify(job, None)
        parent = flow_add.Parent(job_id, token, token is not None)
        found = flow_add.add_flows(self._state, planned([node], "node"), parent=parent)
        return found[-1]  # type: ignore[return-value]

    def children_values(
        self, job: Job | str, offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        """See `Job.children_values`."""
        checked_int(offset, "offset", 0, 1 << 40)
        if limit is not None:
            checked_int(limit, "limit", 0, 1 << 40)
        return children.values(self._state, _identify(job, None)[0], offset, limit)

    def failed_children(self, job: Job | str) -> dict[str, str]:
        """See `Job.failed_children`."""
        return children.failed(self._state, _identify(job, None)[0])

    def ignored_failures(self, job: Job | str) -> dict[str, str]:
        """See `Job.ignored_failures`."""
        return children.ignored(self._state, _identify(job, None)[0])

    def unprocessed_children(self, job: Job | str) -> list[str]:
        """See `Job.unprocessed_children`."""
        return children.unprocessed(self._state, _identify(job, None)[0])

    def remove_dependency(self, job: Job | str, other: Job | str) -> bool:
        """See `Job.remove_dependency`."""
        return children.drop(self._state, _identify(job, None)[0], _identify(other, None)[0])

    def remove_unprocessed_children(self, job: Job | str) -> list[str]:
        """See `Job.remove_unprocessed_children`."""
        return children.remove_unprocessed(self._state, _identify(job, None)[0])

    def _check_open(self) -> None:
        shard = self._state.shards.shards[0]
        if shard.gate:
            shard.refuse()


class _AtExit:
    """Closes a manager that is still open when the interpreter exits; holds it weakly."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = weakref.ref(manager)

    def __call__(self) -> None:
        manager = self._manager()
        if manager is not None:
            with contextlib.suppress(ForkedManagerError):
                manager.close(EXIT_TIMEOUT)


def _inside_a_section(calls_handlers: str | None) -> bool:
    """Whether the calling thread is already inside a verb or a store of ours, further up its
    stack, but not beyond a frame of the package that calls handlers: then a signal handler or a
    finaliser is calling."""
    frame = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__package__")
        if package in _LOCKING:
            return True
        if package == calls_handlers:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _storage(given: object) -> Storage | None:
    """The storage that is meant; `None` for memory."""
    if given is None or isinstance(given, MemoryStorage):
        return None
    if isinstance(given, (str, os.PathLike)):
        return SqliteStorage(absolute(given, "storage"))
    if isinstance(given, type) or not hasattr(given, "wait_committed"):
        raise ValidationError(
            "storage must be None or MemoryStorage() for memory, a path or SqliteStorage(path), "
            f"not {shown(given)}"
        )
    return given  # type: ignore[return-value]


def _disown_in_children(state: State, backend: EngineBackend) -> None:
    if not hasattr(os, "register_at_fork"):
        return
    reference, workers = weakref.ref(state), weakref.ref(backend)

    def disown() -> None:
        inherited, inherited_backend = reference(), workers()
        if inherited is None:
            return
        ops_close.disown(inherited)
        if inherited.storage is not None:
            inherited.storage.disown()
        if inherited_backend is not None and inherited_backend.attached():
            names = ", ".join(repr(worker) for worker in inherited_backend.attached())
            _log.warning(
                "%s: not in this process, which was forked after the start; workers run in the "
                "parent only. A child that is to work opens its own manager and workers",
                names,
            )

    os.register_at_fork(after_in_child=disown)


def _queue_name(queue: Any) -> str:
    """The checked name of a queue given as a name or as a `Queue`."""
    # a Job has a name too, and is no queue
    return checked_queue_name(queue.name if hasattr(queue, "add_bulk") else queue)


def _group(group: GroupChoice) -> GroupChoice:
    """The checked choice of a group: `ANY`, `None` or a name."""
    return group if group is None or group is ANY else checked_name(group, "group")


def _identify(job: Any, token: str | None) -> tuple[str, str | None]:
    """The id, and the token: the one given, else the one that the `Job` brings."""
    if job.__class__ is Job:
        return job._id, job.token if token is None else token
    if isinstance(job, Job):
        return job.id, job.token if token is None else token
    if not isinstance(job, str):
        raise ValidationError(f"job must be a Job or a job id, not {shown(job)}")
    return job, token


def _lease_ms(duration: Duration | None) -> int | None:
    if duration.__class__ is int and 0 < duration <= 86_400:
        return duration * 1000
    return None if duration is None else to_ms(duration, "lock_duration", zero=False)


def _bounded(items: Iterable[Any]) -> list[Any]:
    found = list(checked_iterable(items, "items"))
    if len(found) > MAX_BATCH:
        raise ValidationError(f"a batch takes at most {MAX_BATCH:,} items, not {len(found):,}")
    return found


def _states(states: Any) -> tuple[JobState, ...]:
    if states is None:
        return query.ALL_STATES
    if isinstance(states, str):
        states = (states,)
    wanted: list[JobState] = []
    for state in checked_iterable(states, "states"):
        if state not in query.ALL_STATES:
            raise ValidationError(f"states must be among {_STATE_NAMES}, not {shown(state)}")
        if JobState(state) not in wanted:
            wanted.append(JobState(state))
    return tuple(wanted)


def _one_state(state: Any, allowed: tuple[JobState, ...]) -> JobState:
    if not isinstance(state, str) or state not in allowed:
        raise ValidationError(f"state must be among {', '.join(allowed)}, not {shown(state)}")
    return JobState(state)


def _limit(limit: int | None) -> int | None:
    return None if limit is None else checked_int(limit, "limit", 0, 1 << 40)
