"""The process of a worker, seen from within: it runs the handler, one job at a time.

The main thread runs handlers; a second one reads what the parent says meanwhile. When the parent
is gone, so is this process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from inspect import iscoroutine
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NoReturn

from .. import errors
from ..clock import Clock, SystemClock
from ..durations import ms_to_moment, shown, to_ms
from ..errors import BunqueueError, LockError, ValidationError
from ..model.cancel import Cancellation
from ..model.failure import describe
from ..model.import_path import ByPath
from ..model.job_logs import checked_line
from ..serializers import Serializer
from ..sync import CONNECTION, make_lock, spawn
from ..types import Duration
from .handlers import not_awaited, routed
from .job import Job
from .job_log_filter import CURRENT_JOB
from .wire import (
    NO_BLOB,
    Message,
    checked_size,
    found,
    pack_error,
    receive,
    send,
    unpack_job,
    unpack_serializer,
)

PROGRESS_MS = 100
"""Progress is told no more often than this; the last is always told."""


def main(pipe: Connection, handler: Any, serializer: list[Any], max_bytes: int) -> None:
    """What a process of a worker does. `handler` is a path, or a list of (name, path)."""
    # Ctrl-C reaches every process of the terminal: what becomes of it is the parent's business
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        made = unpack_serializer(serializer)
        known = found(handler) if isinstance(handler, str) else {n: found(p) for n, p in handler}
        call = routed(known, mixed=True).call
    except BaseException as error:  # an import runs code of the application's
        text, stack = describe(error)
        send(pipe, "unusable", [text, list(stack)])
        return
    Child(pipe, call, made, max_bytes).serve()


class Child:
    """The handler, and the pipe to the parent."""

    def __init__(
        self, pipe: Connection, call: Callable[[Job], Any], serializer: Serializer, max_bytes: int
    ) -> None:
        self._pipe = pipe
        self._call = call
        self._serializer = serializer
        self._max_bytes = max_bytes
        self._lock = make_lock("pipe to the parent", CONNECTION)
        self._jobs: SimpleQueue[Message] = SimpleQueue()
        self._replies: SimpleQueue[Message] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.clock: Clock = SystemClock()
        self.cancellation = Cancellation(self.clock)
        #: the token of the run under way, and the last that was to end, with the reason
        self._running: str | None = None
        self._cancelled: tuple[str | None, str] = (None, "")
        self._progress: list[Any] | None = None
        self._told_ms = 0

    def serve(self) -> None:
        """Runs jobs until the parent has no more."""
        spawn("child-reader", self._read)
        self.send("ready", [])
        while (message := self._jobs.get()).kind == "job":
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
        self.send(what, values, blob)
        ok, *values = self._replies.get().values
        if ok:
            return values[0]
        cls = getattr(errors, values[0], BunqueueError)
        raise cls(values[1])

    def progressed(self, percent: float, message: str | None) -> None:
        """Tells the parent of progress: now, or with the next that is due."""
        now = self.clock.timeline_ms()
        self._progress = [percent, message]
        if now - self._told_ms >= PROGRESS_MS or percent >= 100:
            self._told_ms = now
            self._tell_progress()

    def _tell_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            self.send("progress", progress)

    def _read(self) -> None:
        while True:
            try:
                message = receive(self._pipe)
            except (EOFError, OSError):
                # the parent is gone, or wants no more of this process: nobody hears of what
                # still runs here
                os._exit(0)
            if message.kind == "cancel":
                # it may come before the main thread has begun with the job
                token, reason = message.values
                self._cancelled = token, reason
                if token == self._running:
                    self.cancellation.set(reason)
            elif message.kind == "reply":
                self._replies.put(message)
            else:
                self._jobs.put(message)

    def _run(self, message: Message) -> None:
        self.cancellation = Cancellation(self.clock)
        self._told_ms = 0
        self._running = message.values[1]
        token, reason = self._cancelled
        if token == self._running:
            self.cancellation.set(reason)
        job = unpack_job(ChildManager(self), message)
        CURRENT_JOB.set(job)
        try:
            with _entered(message.values[5]):
                result = self._call(job)
                if iscoroutine(result):
                    result = self._awaited(result)
        except BaseException as error:  # SystemExit and its like fail the job, not the process
            self._failed(error)
        else:
            self._returned(result)
        finally:
            self._running = None
            CURRENT_JOB.set(None)

    def _returned(self, result: Any) -> None:
        blob = NO_BLOB
        if result is not None:
            try:
                blob = checked_size(self._serializer.dumps(result), self._max_bytes)
            except BaseException as error:  # a serializer may raise anything
                self._failed(not_awaited(result) or error, work_done=True)
                return
        self._tell_progress()
        self.send("result", [result is not None, resident_mib()], blob)

    def _failed(self, error: BaseException, *, work_done: bool = False) -> None:
        self._tell_progress()
        values, blob = pack_error(error, self._serializer)
        self.send("failed", [work_done, resident_mib(), *values], blob)

    def _awaited(self, coroutine: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)


def _entered(context: list[str] | None) -> AbstractContextManager[Any]:
    """What the parent has the handler run in."""
    if context is None:
        return nullcontext()
    path, text = context
    return ByPath(path)(text)  # type: ignore[no-any-return]


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
        """What the run under way is told of its end."""
        return self._child.cancellation

    def update_progress(
        self, job: Job, percent: float, message: str | None = None, *, token: str | None = None
    ) -> None:
        """See `QueueManager.update_progress`. Coalesced: it says at once only that the run has
        lost its lock, if that is known here."""
        if percent.__class__ not in (int, float) or not 0 <= percent <= 100:
            raise ValidationError(f"percent must be a number from 0 to 100, not {shown(percent)}")
        if message is not None and not isinstance(message, str):
            raise ValidationError(f"message must be text, not {shown(message)}")
        self._check_held(job, "its progress was not kept")
        self._child.progressed(percent, message)

    def add_log(
        self, job: Job, text: str, level: str = "info", *, token: str | None = None
    ) -> None:
        """See `QueueManager.add_log`. It says only that the run has lost its lock, if that is
        known here."""
        line = checked_line(text, level)
        self._check_held(job, "its log was not kept")
        self._child.send("log", list(line))

    def _check_held(self, job: Job, what: str) -> None:
        if self._child.cancellation.reason in ("cancelled", "lock_lost", "timeout"):
            raise LockError(f"this run of job {job.id} has lost its lock; {what}", job_id=job.id)

    def extend_lock(self, job: Job, duration: Duration, *, token: str | None = None) -> bool:
        """See `QueueManager.extend_lock`."""
        duration_ms = to_ms(duration, "duration", zero=False)
        return bool(self._child.ask("extend_lock", [duration_ms]))

    def update_data(self, job: Job, data: Any) -> bool:
        """See `QueueManager.update_data`."""
        blob = checked_size(self._child._serializer.dumps(data), self._child._max_bytes)
        return bool(self._child.ask("update_data", [], blob))

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
