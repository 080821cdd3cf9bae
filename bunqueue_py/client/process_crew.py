"""The runs of a worker whose handlers have processes of their own."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..durations import shown
from ..errors import BunqueueError, ManagerClosedError, ValidationError
from ..model.cancel import CANCELLED, CLOSING
from ..model.failure import HandlerError, Remote, remote_of
from ..model.import_path import import_path
from ..sync import CHILD_NAME
from ..types import FailureReason, Recycle
from .child import KILL_S, Child
from .crew import Crew
from .handlers import Route
from .job import Job
from .process_child import Orders
from .process_requests import answered
from .protocol import Backend
from .turn import Pace, Slot
from .wire import End, Message, pack_jobs, pack_serializer, unpack_ends

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


class ChildDied(Exception):
    """The process that was to run a job is gone; with an argument, before it had the job."""


class ProcessCrew(Crew):
    """A crew whose slots have a process each. The thread of a slot talks to it; token, lease and
    outcome stay here."""

    takes_batches = False

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
        self._orders = Orders(
            _paths_of(handler),
            pack_serializer(backend.serializer),
            backend.max_data_bytes,
            self.takes_batches,
            backend.child_instrument,
        )
        #: by slot, what has its process run jobs
        instrument: Callable[[Callable[..., Any]], Callable[..., Any]] = backend.instrument
        self._calls = {slot: instrument(partial(self._in_child, slot)) for slot in self.slots}
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
            for token in self._tokens(slot):
                child.tell("cancel", [token, CLOSING])

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
        child = self._children[slot] = Child(f"{CHILD_NAME}-{self._name}-{number}", self._orders)
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
                (end,) = self._calls[slot]((job,))
            except ChildDied as death:
                slot.current = None
                self._died(slot, child, [job], death)
            except BaseException as error:  # what the handler raised
                self._failed(job, error, work_done=child.work_done)
            else:
                self._completed(slot, job, end)
        finally:
            self._kill_at.pop(slot, None)
            slot.current = None

    def _in_child(self, slot: Slot, jobs: Sequence[Job]) -> list[End]:
        """Has the slot's process run the jobs, and returns how each ended. Raises what the handler
        raised, and `ChildDied`."""
        child = self._children[slot]
        if not child.send("jobs", *pack_jobs(jobs, self._backend.trace_carrier())):
            # it has died between two jobs, which is no fault of these
            raise ChildDied("before it began")
        if self.stopping:
            for job in jobs:
                child.tell("cancel", [job.token, CLOSING])
        message = self._talk(child, {str(job.token): job for job in jobs})
        # what is told of these runs from now on is our own doing, and no reason to kill
        slot.current = None
        self._kill_at.pop(slot, None)
        mib, *values = message.values
        child.runs += len(jobs)
        recycle = self._recycle
        child.wears_out = (recycle.jobs is not None and child.runs >= recycle.jobs) or (
            recycle.memory_mib is not None and mib is not None and mib > recycle.memory_mib
        )
        ends = unpack_ends(values, message.blob, self._backend.serializer)
        child.work_done = ends[0].work_done
        if ends[0].error is not None and (len(ends) < len(jobs) or len(jobs) == 1):
            raise ends[0].error
        return ends

    def _talk(self, child: Child, jobs: Mapping[str, Job]) -> Message:
        """Answers the process until it says how the runs ended. Raises `ChildDied`."""
        while True:
            try:
                message = child.receive()
            except EOFError:
                raise ChildDied from None
            if message.kind == "ends":
                return message
            token, *values = message.values
            # what concerns no run in particular names none
            job = next(iter(jobs.values())) if token is None else jobs.get(token)
            answer = answered(message.kind, job, values, message.blob)
            if answer is not None:
                child.send("reply", *answer)

    def _completed(self, slot: Slot, job: Job, end: End) -> None:
        if job._options.durable:
            self._flush(slot, (job, end.data))
            return
        slot.held.append((job, end.data))
        if not slot.queued or job._id in self._watched:
            self._flush(slot)

    def _died(self, slot: Slot, child: Child, jobs: Sequence[Job], death: ChildDied) -> None:
        """The process is gone. If somebody killed it, that has decided on the job already."""
        code = child.exit_code
        self._bury(slot, child)
        if child.doomed is not None or death.args:
            # does nothing where that has ended the delivery; but it may have been for the run
            # before this one, or for another job of the batch
            for job in jobs:
                self._backend.give_back(job.id, job.token)
            return
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        text = f"the process of worker {self._name!r} died while it ran the job ({how})"
        for job in jobs:
            error = HandlerError(text)
            remote_of(error, Remote(text, (), frozenset()))
            self._verdicts.end(job, error, cause=FailureReason.WORKER_LOST)

    # -- what others do to its runs, told under the shard's lock -----------------------------

    def _tokens(self, slot: Slot) -> list[str]:
        """Of the deliveries that its process runs."""
        job = slot.current
        return [] if job is None else [str(job.token)]

    def _told(self, job_id: str, token: str, reason: str) -> Callable[[], None] | None:
        super()._told(job_id, token, reason)
        for slot in self.slots:
            if token in self._tokens(slot):
                return lambda: self._interrupt(slot, token, reason)
        return None

    def _interrupt(self, slot: Slot, token: str, reason: str) -> None:
        """Its run is over: a job that was cancelled is never run again, and its handler may still
        clean up; any other may run elsewhere at once."""
        child = self._children.get(slot)
        if child is None or token not in self._tokens(slot):
            return
        if reason == CANCELLED:
            child.tell("cancel", [token, reason])
            self._kill_later(slot, token)
        else:
            child.kill(reason)

    def _kill_later(self, slot: Slot, token: str) -> None:
        until = self._backend.clock.timeline_ms() + CANCEL_GRACE_MS
        self._kill_at[slot] = until, token
        self._backend.beat_at(until)

    # -- the beat ----------------------------------------------------------------------------

    def beat(self) -> tuple[int, int | None]:
        """See `Crew.beat`; also ends the processes whose time is up."""
        now = self._backend.clock.timeline_ms()
        if now >= self.card.next_beat_ms:
            for slot, busy in list(self._children.items()):
                if slot.current is not None and not busy.is_alive:
                    busy.hang_up()
        renewed, due = super().beat()
        for slot, (until, token) in list(self._kill_at.items()):
            if until > now:
                due = until if due is None else min(due, until)
                continue
            self._kill_at.pop(slot, None)
            child = self._children.get(slot)
            if child is not None and token in self._tokens(slot):
                child.kill(CANCELLED)
        return renewed, due


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
