"""The process of a worker, seen from within: it runs the handler, one job at a time.

The main thread runs handlers; a second one reads what the parent says meanwhile. When the parent
is gone, so is this process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextvars import Context
from datetime import datetime
from inspect import iscoroutine
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

from .. import errors
from ..clock import Clock, SystemClock
from ..durations import ms_to_moment, shown, to_ms
from ..errors import BunqueueError, LockError, ValidationError
from ..model.cancel import CANCELLED, LOCK_LOST, TIMEOUT, Cancellation
from ..model.failure import describe
from ..model.job_logs import checked_line
from ..serializers import Serializer
from ..sync import CONNECTION, MANAGER, make_lock, spawn
from ..types import Duration
from .batches import results_of
from .handlers import not_awaited, routed
from .job import Job
from .job_log_filter import CURRENT_JOB
from .wire import (
    NO_BLOB,
    End,
    Message,
    await_end,
    checked_size,
    found,
    pack_ends,
    receive,
    send,
    tokens_of,
    unpack_jobs,
    unpack_serializer,
)

PROGRESS_MS = 100
"""Progress is told no more often than this; the last is always told."""


class Orders(NamedTuple):
    """What a process of a worker is told at its start. `handler` is a path, or a list of (name,
    path); `instrument` the path of what is done to it before it serves, if anything."""

    handler: Any
    serializer: list[Any]
    max_bytes: int
    takes_batches: bool
    instrument: str | None


def main(pipe: Connection, orders: Orders) -> None:
    """What a process of a worker does."""
    # Ctrl-C reaches every process of the terminal: what becomes of it is the parent's business
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        made = unpack_serializer(orders.serializer)
        given = orders.handler
        known = found(given) if isinstance(given, str) else {n: found(p) for n, p in given}
        call = routed(known).call
        if orders.instrument is not None:
            call = found(orders.instrument)(call)
    except BaseException as error:  # an import runs code of the application's
        text, stack = describe(error)
        send(pipe, "unusable", [text, list(stack)])
        return
    Child(pipe, call, made, orders).serve()


class Run:
    """A run under way: what it is told of its end, and the progress that is yet to be told."""

    __slots__ = ("cancellation", "progress", "token", "told_ms")

    def __init__(self, token: str, clock: Clock) -> None:
        self.token = token
        self.cancellation = Cancellation(clock)
        self.progress: list[Any] | None = None
        self.told_ms = 0


class Child:
    """The handler, and the pipe to the parent."""

    def __init__(
        self, pipe: Connection, call: Callable[[Any], Any], serializer: Serializer, orders: Orders
    ) -> None:
        self._pipe = pipe
        self._call = call
        self._serializer = serializer
        self._max_bytes = orders.max_bytes
        self._takes_batches = orders.takes_batches
        self._lock = make_lock("pipe to the parent", CONNECTION)
        self._asking = make_lock("questions to the parent", MANAGER)
        self._jobs: SimpleQueue[Message] = SimpleQueue()
        self._replies: SimpleQueue[Message] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.clock: Clock = SystemClock()
        #: by token; the thread that reads puts them in, the main thread takes them out
        self.runs: dict[str, Run] = {}

    def serve(self) -> None:
        """Runs jobs until the parent has no more."""
        spawn("child-reader", self._read)
        spawn("child-watch", self._watch)
        self.send("ready", [])
        while (message := self._jobs.get()).kind == "jobs":
            self._run(message)

    def send(self, kind: str, values: list[Any], blob: bytes = NO_BLOB) -> None:
        """Tells the parent; ends the process if that is gone."""
        try:
            with self._lock:
                send(self._pipe, kind, values, blob)
        except OSError:
            os._exit(1)

    def ask(self, what: str, values: list[Any], blob: bytes = NO_BLOB) -> Any:
        """Has the parent make a call, and returns or raises what it does."""
        # a handler may have threads: each is to get its own answer
        with self._asking:
            self.send(what, values, blob)
            reply = self._replies.get()
        ok, *told = reply.values
        if ok:
            return self._serializer.loads(reply.blob) if reply.blob else told[0]
        cls = getattr(errors, told[0], BunqueueError)
        raise cls(told[1])

    def progressed(self, run: Run, percent: float, message: str | None) -> None:
        """Tells the parent of progress: now, or with the next that is due."""
        now = self.clock.timeline_ms()
        run.progress = [percent, message]
        if now - run.told_ms >= PROGRESS_MS or percent >= 100:
            run.told_ms = now
            self._tell_progress(run)

    def _tell_progress(self, run: Run) -> None:
        progress, run.progress = run.progress, None
        if progress is not None:
            self.send("progress", [run.token, *progress])

    def _watch(self) -> None:
        """Ends with the parent, also where another process that it has forked holds the pipe."""
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid is not None:
            await_end(parent.pid)
            if not parent.is_alive():
                os._exit(0)

    def _read(self) -> None:
        while True:
            try:
                message = receive(self._pipe)
            except (EOFError, OSError):
                # the parent is gone, or wants no more of this process: nobody hears of what
                # still runs here
                os._exit(0)
            if message.kind == "cancel":
                token, reason = message.values
                run = self.runs.get(token)
                if run is not None:
                    run.cancellation.set(reason)
            elif message.kind == "reply":
                self._replies.put(message)
            else:
                if message.kind == "jobs":
                    # before the next message, which may be about them
                    self.runs.update((t, Run(t, self.clock)) for t in tokens_of(message))
                self._jobs.put(message)

    def _run(self, message: Message) -> None:
        jobs = unpack_jobs(ChildManager(self), message)
        argument = jobs if self._takes_batches else jobs[0]
        # nothing that a handler sets reaches the next one
        context = Context()
        context.run(CURRENT_JOB.set, jobs[0])
        try:
            result = context.run(self._result, argument)
            ends = self._ends(result, len(jobs))
        except BaseException as error:  # SystemExit and its like fail the job, not the process
            # also what hit this very line: the process outlives it
            ends = [End(None, error)]
        for job in jobs:
            run = self.runs.pop(str(job.token), None)
            if run is not None:
                self._tell_progress(run)
        values, blob = pack_ends(ends, self._serializer)
        self.send("ends", [resident_mib(), *values], blob)

    def _result(self, argument: Any) -> Any:
        result = self._call(argument)
        if iscoroutine(result):
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            result = self._loop.run_until_complete(result)
        return result

    def _ends(self, result: Any, jobs: int) -> list[End]:
        """How each run ended; one `End` may stand for all of them."""
        if not self._takes_batches:
            return [self._end(result)]
        try:
            results = results_of(result, jobs)
        except ValidationError as error:
            # the work is done: running it again would repeat its side effects
            return [End(None, error, work_done=True)]
        return [
            End(None, value) if isinstance(value, BaseException) else self._end(value)
            for value in results
        ]

    def _end(self, result: Any) -> End:
        if result is None:
            return End(None)
        try:
            return End(checked_size(self._serializer.dumps(result), self._max_bytes))
        except BaseException as error:  # a serializer may raise anything
            return End(None, not_awaited(result) or error, work_done=True)


class ChildManager:
    """What a job's verbs reach in a process: the parent does what concerns this run; the rest is
    not to be had here, and says so."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.decode = child._serializer.loads
        self.backend = self

    @property
    def now(self) -> datetime:
        """The time."""
        return ms_to_moment(self._child.clock.timeline_ms())

    def cancellation(self, job_id: str, token: str | None) -> Cancellation:
        """What the run is told of its end."""
        run = self._child.runs.get(str(token))
        return Cancellation(self._child.clock, LOCK_LOST) if run is None else run.cancellation

    def update_progress(
        self, job: Job, percent: float, message: str | None = None, *, token: str | None = None
    ) -> None:
        """See `QueueManager.update_progress`. Coalesced: it says at once only that the run has
        lost its lock, if that is known here."""
        if percent.__class__ not in (int, float) or not 0 <= percent <= 100:
            raise ValidationError(f"percent must be a number from 0 to 100, not {shown(percent)}")
        if message is not None and not isinstance(message, str):
            raise ValidationError(f"message must be text, not {shown(message)}")
        self._child.progressed(self._held(job, "its progress was not kept"), percent, message)

    def add_log(
        self, job: Job, text: str, level: str = "info", *, token: str | None = None
    ) -> None:
        """See `QueueManager.add_log`. It says only that the run has lost its lock, if that is
        known here."""
        line = checked_line(text, level)
        self._child.send("log", [self._held(job, "its log was not kept").token, *line])

    def _held(self, job: Job, what: str) -> Run:
        run = self._child.runs.get(str(job.token))
        if run is None or run.cancellation.reason in (CANCELLED, LOCK_LOST, TIMEOUT):
            raise LockError(f"this run of job {job.id} has lost its lock; {what}", job_id=job.id)
        return run

    def extend_lock(self, job: Job, duration: Duration, *, token: str | None = None) -> bool:
        """See `QueueManager.extend_lock`."""
        duration_ms = to_ms(duration, "duration", zero=False)
        return bool(self._child.ask("extend_lock", [job.token, duration_ms]))

    def update_data(self, job: Job, data: Any) -> bool:
        """See `QueueManager.update_data`."""
        blob = checked_size(self._child._serializer.dumps(data), self._child._max_bytes)
        return bool(self._child.ask("update_data", [job.token], blob))

    def children_values(
        self, job_id: str, offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        """See `Job.children_values`."""
        return self._ask_of("children_values", job_id, offset, limit)  # type: ignore[no-any-return]

    def failed_children(self, job_id: str) -> dict[str, str]:
        """See `Job.failed_children`."""
        return self._ask_of("failed_children", job_id)  # type: ignore[no-any-return]

    def ignored_failures(self, job_id: str) -> dict[str, str]:
        """See `Job.ignored_failures`."""
        return self._ask_of("ignored_failures", job_id)  # type: ignore[no-any-return]

    def unprocessed_children(self, job_id: str) -> list[str]:
        """See `Job.unprocessed_children`."""
        return self._ask_of("unprocessed_children", job_id)  # type: ignore[no-any-return]

    def _ask_of(self, what: str, job_id: str, *values: Any) -> Any:
        return self._child.ask("children", [None, what, job_id, *values])

    def __getattr__(self, name: str) -> NoReturn:
        raise BunqueueError(
            f"{name}() is not to be had in a process of a worker: only the parent has the queue. "
            "Return what is needed as the result, or run this handler on threads"
        )


def resident_mib() -> int | None:
    """How much memory this process takes now; `None` where that cannot be told."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    except (OSError, ValueError, AttributeError):
        return _peak_mib()


def _peak_mib() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    # bytes on macOS, which alone of those with `resource` has no /proc
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
