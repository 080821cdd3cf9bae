"""The runs of a worker whose handlers have processes of their own."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ..durations import shown
from ..errors import BunqueueError, ManagerClosedError, ValidationError
from ..model.cancel import CANCELLED, CLOSING
from ..model.failure import HandlerError, Remote, remote_of
from ..model.import_path import import_path
from ..serializers import Serializer
from ..sync import CHILD_NAME
from ..types import FailureReason, Recycle
from .child import KILL_S, Child
from .crew import Crew
from .handlers import Route
from .job import Job
from .protocol import Backend
from .turn import Pace, Slot
from .wire import Message, pack_job, pack_serializer, unpack_error

CANCEL_GRACE_MS = 5_000
"""How long a handler that was cancelled may take to return before its process is killed."""
AT_EXIT_MS = 3_000
"""How long a program that ends without closing its worker waits for handlers in processes."""
MAX_DEATHS = 3
"""So many processes in a row that die before they are ready stop the worker."""


class _EvenPace(Pace):
    """Processes do not fight for one interpreter: no slot keeps the turn."""

    __slots__ = ()

    def keeps_turn(self, took: int) -> bool:
        """Never."""
        return False


class ProcessCrew(Crew):
    """A crew whose slots have a process each. The thread of a slot talks to it; token, lease and
    outcome stay here."""

    def __init__(
        self,
        backend: Backend,
        queue: str,
        name: str,
        handler: Any,
        route: Route,
        recycle: Recycle,
        stop_with: Callable[[BaseException], None],
        **usual: Any,
    ) -> None:
        super().__init__(backend, queue, name, route.call, **usual)
        if usual["prefetch"] is None and usual["window"] is None:
            self._pace = _EvenPace(None)
        self._arguments = (
            _paths_of(handler),
            pack_serializer(backend.serializer),
            backend.max_data_bytes,
        )
        self._recycle = recycle
        self._stop_with = stop_with
        self._children: dict[Slot, Child] = {}
        self._deaths = 0
        #: by slot, when its process is killed unless its handler has returned
        self._kill_at: dict[Slot, tuple[int, str]] = {}
        self._farewell = _Farewell(self)

    def start(self) -> None:
        """Starts a thread for each slot, which starts its process."""
        atexit.register(self._farewell)
        super().start()

    def stop(self) -> None:
        """See `Crew.stop`; processes that are not ready yet are not waited for."""
        super().stop()
        for child in list(self._children.values()):
            if not child.is_ready:
                child.kill(CLOSING)

    def _tell_closing(self) -> None:
        super()._tell_closing()
        for slot, child in list(self._children.items()):
            job = slot.current
            if job is not None:
                child.send("cancel", [job.token, CLOSING])

    def wind_up(self, deadline: int | None) -> tuple[list[str], bool]:
        """See `Crew.wind_up`; what has not returned by then is killed before its job goes back."""
        wound_up = super().wind_up(deadline)
        if not wound_up[1]:
            self.join(self._backend.clock.timeline_ms() + round(KILL_S * 1000))
        return wound_up

    def abandon(self, slot: Slot) -> list[str]:
        """Kills the process of a handler that did not return in time, and gives its job back."""
        child = self._children.get(slot)
        if child is not None:
            child.kill(CLOSING)
        return super().abandon(slot)

    # -- a slot's thread ---------------------------------------------------------------------

    def _round(self, slot: Slot) -> None:
        if self._paused is None and not self._has_child(slot):
            return
        super()._round(slot)

    def _leave(self, slot: Slot) -> None:
        child = self._children.pop(slot, None)
        if child is not None:
            if child.doomed is None:
                child.dismiss()
            else:
                child.bury()
        super()._leave(slot)
        if self._live == 0:
            atexit.unregister(self._farewell)

    def _has_child(self, slot: Slot) -> bool:
        """Sees to it that the slot has a process that is ready; False where it cannot."""
        child = self._children.get(slot)
        if child is not None and child.doomed is not None:
            # killed for a run that had just returned
            self._bury(slot, child)
        elif child is not None and child.wears_out:
            del self._children[slot]
            child.dismiss()
        elif child is not None:
            return True
        number = self.slots.index(slot)
        child = self._children[slot] = Child(f"{CHILD_NAME}-{self._name}-{number}", self._arguments)
        if self.stopping:
            child.kill(CLOSING)
        try:
            message = child.receive()
        except EOFError:
            message = None
        if message is not None and message.kind == "ready":
            child.is_ready = True
            self._deaths = 0
            return True
        self._bury(slot, child)
        if message is not None:
            text, stack = message.values
            error = BunqueueError(
                f"a process of worker {self._name!r} cannot import its handler: {text}\n"
                + "\n".join(stack)
            )
            self._stop_with(error)
        elif child.doomed is None:
            self._deaths += 1
            if self._deaths >= MAX_DEATHS:
                self._stop_with(
                    BunqueueError(
                        f"the processes of worker {self._name!r} die before they are ready "
                        f"({MAX_DEATHS} in a row): see what they wrote to standard error"
                    )
                )
            else:
                raise BunqueueError(f"a process of worker {self._name!r} died while it started")
        # until the worker is closed
        self._rest(50)
        return False

    def _bury(self, slot: Slot, child: Child) -> None:
        if self._children.get(slot) is child:
            del self._children[slot]
        child.bury()

    def _run(self, slot: Slot, job: Job) -> None:
        slot.current = job
        try:
            if not self._has_child(slot):  # it died in the midst of a batch
                self._backend.give_back(job.id, job.token)
                return
            child = self._children[slot]
            if "active" in self.heard:
                self._tell("active", job)
            try:
                message = self._exchange(slot, child, job)
            except EOFError:
                self._died(slot, child, job)
                return
            self._kill_at.pop(slot, None)
            self._ended_well(slot, child, job, message)
        finally:
            self._kill_at.pop(slot, None)
            slot.current = None

    def _exchange(self, slot: Slot, child: Child, job: Job) -> Message:
        """Has the process run the job; returns what it says of the end. Raises `EOFError` if it
        dies."""
        ended: list[Message] = []

        def run(job: Job) -> None:
            # stands for the handler: what is done to handlers is done to this
            values, data = pack_job(job)
            child.send("job", [*values, self._backend.context()], data)
            if self.stopping:
                child.send("cancel", [job.token, CLOSING])
            try:
                message = self._talk(slot, child, job)
            except EOFError:
                raise EOFError(f"the process of worker {self._name!r} died") from None
            ended.append(message)
            if message.kind == "failed":
                raise _error_of(message, self._backend.serializer)

        try:
            self._backend.instrument(run)(job)
        except BaseException:
            if not ended:
                raise
        return ended[0]

    def _talk(self, slot: Slot, child: Child, job: Job) -> Message:
        """Answers the process until it says how the run ended. Raises `EOFError` if it dies."""
        while True:
            message = child.receive()
            if message.kind in ("result", "failed"):
                return message
            answer = REQUESTS[message.kind](job, message)
            if answer is not None:
                child.send("reply", answer)

    def _ended_well(self, slot: Slot, child: Child, job: Job, message: Message) -> None:
        """The run has ended, and the process lives."""
        # what is told of this run from now on is our own doing, and no reason to kill
        slot.current = None
        child.runs += 1
        flag, mib = message.values[:2]
        recycle = self._recycle
        child.wears_out = (recycle.jobs is not None and child.runs >= recycle.jobs) or (
            recycle.memory_mib is not None and mib is not None and mib > recycle.memory_mib
        )
        if message.kind == "failed":
            error = _error_of(message, self._backend.serializer)
            self._failed(job, error, work_done=flag)
            return
        data = message.blob if flag else None
        if job._options.durable:
            self._flush(slot, (job, data))
            return
        slot.held.append((job, data))
        if not slot.queued or job._id in self._watched:
            self._flush(slot)

    def _died(self, slot: Slot, child: Child, job: Job) -> None:
        """The process is gone. If somebody killed it, that has decided on the job already."""
        slot.current = None
        code = child.exit_code
        self._bury(slot, child)
        if child.doomed is not None:
            # does nothing where that has ended the delivery; but it may have been for the run
            # before this one
            self._backend.give_back(job.id, job.token)
            return
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        text = f"the process of worker {self._name!r} died while it ran the job ({how})"
        error = HandlerError(text)
        remote_of(error, Remote(text, (), frozenset()))
        self._verdicts.end(job, error, cause=FailureReason.WORKER_LOST)

    # -- what others do to its runs, told under the shard's lock -----------------------------

    def _told(self, job_id: str, token: str, reason: str) -> Callable[[], None] | None:
        super()._told(job_id, token, reason)
        for slot in self.slots:
            job = slot.current
            if job is not None and job.token == token:
                return lambda: self._interrupt(slot, job, reason)
        return None

    def _interrupt(self, slot: Slot, job: Job, reason: str) -> None:
        """Its run is over: a job that was cancelled is never run again, and its handler may still
        clean up; any other may run elsewhere at once."""
        child = self._children.get(slot)
        if child is None or slot.current is not job:
            return
        if reason == CANCELLED:
            child.send("cancel", [job.token, reason])
            until = self._backend.clock.timeline_ms() + CANCEL_GRACE_MS
            self._kill_at[slot] = until, job.id
            self._backend.beat_at(until)
        else:
            child.kill(reason)

    # -- the beat ----------------------------------------------------------------------------

    def beat(self) -> tuple[int, int | None]:
        """See `Crew.beat`; also ends the processes whose time is up."""
        renewed, due = super().beat()
        now = self._backend.clock.timeline_ms()
        for slot, (until, job_id) in list(self._kill_at.items()):
            if until > now:
                due = until if due is None else min(due, until)
                continue
            self._kill_at.pop(slot, None)
            child, job = self._children.get(slot), slot.current
            if child is not None and job is not None and job.id == job_id:
                child.kill(CANCELLED)
        return renewed, due


# -- what a process may ask for --------------------------------------------------------------------


def _progress(job: Job, message: Message) -> None:
    percent, text = message.values
    try:
        job.update_progress(percent, text)
    except BunqueueError:
        pass  # the run is over, as the process is told or has been told


def _log(job: Job, message: Message) -> None:
    text, level = message.values
    try:
        job.log(text, level)
    except BunqueueError:
        pass  # the same


def _extend_lock(job: Job, message: Message) -> list[Any]:
    return _answer(lambda: job._manager.backend.extend(job.id, job.token, message.values[0]))


def _update_data(job: Job, message: Message) -> list[Any]:
    return _answer(lambda: job.update_data(job._manager.decode(message.blob)))


def _answer(call: Callable[[], Any]) -> list[Any]:
    try:
        return [True, call()]
    except BunqueueError as error:
        return [False, type(error).__name__, str(error)]


REQUESTS: Mapping[str, Callable[[Job, Message], list[Any] | None]] = {
    "progress": _progress,
    "log": _log,
    "extend_lock": _extend_lock,
    "update_data": _update_data,
}
"""By the kind of message, what is done for a process; its answer, where it waits for one."""


class _Farewell:
    """Kills the processes of a crew that nobody has closed, before multiprocessing waits for them
    at exit; holds it weakly."""

    def __init__(self, crew: ProcessCrew) -> None:
        self._crew = weakref.ref(crew)

    def __call__(self) -> None:
        crew = self._crew()
        if crew is not None:
            try:
                crew.stop()
                crew.wind_up(crew._backend.clock.timeline_ms() + AT_EXIT_MS)
            except ManagerClosedError:
                pass
            for child in list(crew._children.values()):
                child.kill(CLOSING)


def _error_of(message: Message, serializer: Serializer) -> BaseException:
    """What a process says that its handler has raised."""
    return unpack_error(Message("failed", message.values[2:], message.blob), serializer)


def _paths_of(handler: Any) -> Any:
    """The handler as a process finds it: a path, or a list of (name, path)."""
    if isinstance(handler, Mapping):
        return [(name, _path_of(fn)) for name, fn in handler.items()]
    return _path_of(handler)


def _path_of(fn: Any) -> str:
    path = import_path(fn)
    if path is None:
        raise ValidationError(
            'executor="process": a process imports the handler by its name, so it must be a '
            "function at the top of a module (or a static method), or the path of one, "
            f'"package.module:function"; {shown(fn)} cannot be found that way'
        )
    return path
