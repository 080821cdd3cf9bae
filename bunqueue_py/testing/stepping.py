"""The engine and its workers without threads: the same code, stepped by whoever calls."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final

from ..backend import EngineBackend
from ..client.crew import Crew
from ..client.job import Job
from ..client.protocol import Closable, WaitHandle
from ..client.turn import Slot
from ..errors import BunqueueError, StorageError
from ..model.events import RawEvent
from ..model.mailbox import Inbox, Mailbox
from ..ops import pull as ops_pull
from ..registry.workers import Card
from ..shard.queue_state import QueueState
from ..state import State
from ..tasks import workers
from ..tasks.scheduler import TaskLoop
from ..types import Outcome
from .clock import VirtualClock
from .coroutines import run_coroutine

if TYPE_CHECKING:
    from .stage import Stage


class _Hang:
    def __repr__(self) -> str:
        return "hang()"


HANG: Final = _Hang()


class NeverEnds(BaseException):
    """Leaves the code that runs a handler, where the thread would stay in it for ever."""


class CannotEnd(BunqueueError):
    """A wait that nothing ends while the caller is in it."""


class StageClock(VirtualClock):
    """A virtual clock whose waits ask the stage to do what other threads would do meanwhile."""

    stage: Stage | None = None

    def move_to(self, ms: int) -> None:
        """Moves the timeline, and the wall clock with it, forward to that moment."""
        moments = self._moments
        ahead = ms - moments[0]
        if ahead > 0:
            moments[0] = ms
            moments[1] += ahead

    def wait(self, lock: Any, timeout_ms: int | None) -> bool:
        """Takes the lock if it is free, or becomes so by what is due or can run now; raises
        `CannotEnd` otherwise, unless the time is up already."""
        if lock.acquire(False):
            return True
        if timeout_ms is not None and timeout_ms <= 0:
            return False
        stage = self.stage
        if stage is not None and stage.help_out(lambda: bool(lock.acquire(False))):
            return True
        raise CannotEnd(
            "this wait can never end: the virtual clock stands still and nobody else can act "
            "meanwhile. advance() or run_until_idle() before waiting"
        )


class Recorder(Mailbox):
    """Puts every event into that list, as it was published."""

    def __init__(self, kept: list[RawEvent]) -> None:
        super().__init__("harness", lambda item: None, lambda: 0)
        # in the place of `Mailbox.offer`, which it is called as: under a shard's lock
        self.offer = self.keep = kept.append  # type: ignore[method-assign,assignment]

    @property
    def buffer(self) -> Inbox | None:
        """None: nobody is late for what it keeps."""
        return None

    def drain(self) -> int:
        """Nothing: what it keeps is looked at where it is."""
        return 0


class SteppedCrew(Crew):
    """The crew of a worker whose slots take their turns on the calling thread.

    What a slot does is `Crew`'s own code. A slot whose handler never ends stays taken, as its
    thread would be, and its job is kept alive by the beat.
    """

    _backend: SteppedBackend

    def __init__(self, *args: Any, **options: Any) -> None:
        if options["prefetch"] is None:
            # handlers take no time here, so "auto" would take as many as there are
            options["prefetch"] = 1
        super().__init__(*args, **options)
        self.stage = self._backend.stage
        #: how many handlers are under way, in frames below
        self.running = 0
        #: its process is gone: nothing that it does arrives any more
        self.lost = False
        self._handler, self._route = self._route, self._play
        # nobody else is there to have the lock
        self._contended = _nobody
        self._never = False

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._queue

    @property
    def stuck(self) -> list[Job]:
        """The jobs whose handlers are under way, or never end."""
        return [slot.current for slot in self.slots if slot.current is not None]

    def start(self) -> None:
        """Nothing: no thread is needed."""

    def join(self, deadline: int | None) -> list[Slot]:
        """The slots whose handlers never end; there is nobody to wait for."""
        if self.lost or self.running:
            return []
        return [slot for slot in self.slots if slot.current is not None]

    @property
    def holds_me(self) -> bool:
        """Whether the caller is inside one of the handlers."""
        return self.running > 0

    @property
    def is_busy(self) -> bool:
        """Whether it has anything in hand."""
        for slot in self.slots:  # noqa: SIM110 - asked at every stop; a generator takes thrice that
            if slot.current is not None or slot.queued or slot.held:
                return True
        return False

    def may_run(self) -> bool:
        """Whether a step would find a job, as far as that can be told without taking it."""
        queue = self._backend.queues.get(self._queue)
        if queue is None:
            return False
        timed, ready = _is_timed(queue), queue.ready
        if not (timed or ready.lane.records or ready.heaped or ready.lanes is not None):
            return False
        if queue.paused or self._paused is not None or self.stopping or self._free() is None:
            return False
        if not timed and self._window is None and ready.lanes is None:
            # what stands in the lane may all be stale
            return ready.heaped > 0 or len(ready.lane.records) > ready.lane.stale
        clock = self._backend.clock
        now, wall = clock.timeline_ms(), clock.wall_ms()
        if self._window is not None and self._window.room(now) <= 0:
            return False
        with queue.lock:
            if queue.room(now) <= 0:
                return False
            if queue.ready_count:
                return True
            due = queue.next_due(now, wall)
            return due is not None and due <= now

    def next_ms(self, now: int, wall: int) -> int | None:
        """The next moment after now at which time alone may give it something to do."""
        queue = self._backend.queues.get(self._queue)
        if queue is None or (self._window is None and not _is_timed(queue)):
            return None
        if queue.paused or self.is_paused or self.stopping:
            return None
        with queue.lock:
            due = queue.next_due(now, wall)
            is_due = due is not None and due <= now
            window = self._window
            if window is not None and window.room(now) <= 0 and (is_due or queue.ready_count):
                return window.next_ms()
            if is_due and (queue.limits is not None or queue.groups is not None):
                # what is due is held up by a limit
                due = queue.opens_ms(now)
        return due if due is not None and due > now else None

    def step(self) -> bool:
        """One round of a free slot, if one is free and there is a job; says whether it ran."""
        slot = self._free()
        if slot is None or self.stopping or self._paused is not None:
            return False
        window = self._window
        if window is not None and window.room(self._backend.clock.timeline_ms()) <= 0:
            return False
        stage, seen = self.stage, -1
        before = stage.runs
        while True:
            try:
                self._round(slot)
            except NeverEnds:
                pass
            except BaseException:
                slot.current = None
                self._pass_turn(slot)
                raise
            if stage.runs > before:
                break
            # so many may be due that they become ready by and by
            last, seen = seen, self._ready()
            if seen <= last:
                break
        if self.stopping and not self.running:
            self._ended()
        return stage.runs > before

    def lose(self) -> None:
        """Its process dies: it holds nothing back for anybody."""
        self.lost = self.card.lost = self.stopping = True
        for slot in self.slots:
            slot.queued.clear()
            slot.held.clear()

    def _ready(self) -> int:
        queue = self._backend.queues.get(self._queue)
        return 0 if queue is None else queue.ready_count

    def _free(self) -> Slot | None:
        for slot in self.slots:
            if slot.current is None:
                return slot
        return None

    def _play(self, job: Job) -> Any:
        stage = self.stage
        self.running += 1
        stage.began(job)
        try:
            if stage.planned:
                stage.planned_failure(self._queue)
            result = self._handler(job)
            if result is not None and iscoroutine(result):
                result = run_coroutine(result)
        except BaseException as error:
            if not self.lost:
                stage.raised(job, error)
                raise
        else:
            if result is not HANG and not self.lost:
                return result
        finally:
            self.running -= 1
            # the handler was left
            stage.depth -= 1
        raise NeverEnds

    def _failed(self, job: Job, error: BaseException, *, work_done: bool = False) -> None:
        if isinstance(error, NeverEnds):
            self._never = True
            return
        if work_done:
            self.stage.raised(job, error)
        super()._failed(job, error, work_done=work_done)

    def _run(self, slot: Slot, job: Job) -> Job | None:
        following = super()._run(slot, job)
        if self._never:
            self._never = False
            slot.current = job
            raise NeverEnds
        return following


def _nobody() -> bool:
    return False


def _is_timed(queue: QueueState) -> bool:
    """Whether time alone may give the queue something to do: most have nothing of the kind."""
    if queue.delayed.members or queue.anchored.members:
        return True
    return queue.groups is not None or queue.limits is not None


class SteppedBackend(EngineBackend):
    """The backend of a `SteppedManager`: a claim never waits, and the stage knows the workers."""

    crew_class = SteppedCrew
    #: the same in every process, since events carry the ids of workers
    place = "harness"

    def __init__(self, state: State, beat: TaskLoop, stage: Stage) -> None:
        super().__init__(state, beat, runs_threads=False)
        self.stage = stage
        self.queues = state.queues

    def claim(
        self, queue: str, limit: int, lease_ms: int, owner: str, handle: WaitHandle
    ) -> list[Job]:
        """What there is now."""
        return ops_pull.pull(  # type: ignore[return-value]
            self._state, queue, limit, 0, lease_ms, owner, claim=True
        )

    def go_on(
        self,
        job_id: str,
        token: str | None,
        data: bytes | None,
        lease_ms: int,
        owner: str,
        handle: WaitHandle,
    ) -> tuple[Outcome, StorageError | None, Job | None]:
        """One job a step."""
        outcomes, problem = self.settle([(job_id, token, data)])
        return outcomes[0], problem, None

    def attach(
        self,
        worker: Closable,
        tick: Callable[[], tuple[int, int | None]],
        queue: str,
        card: Card,
    ) -> None:
        """Also puts the worker on the stage."""
        super().attach(worker, tick, queue, card)
        self.stage.joined(worker)

    def detach(self, worker: Closable, *, give_back: bool = False) -> None:
        """Also takes it off."""
        super().detach(worker, give_back=give_back)
        self.stage.left(worker)

    def lose(self, worker: Closable) -> None:
        """The worker is silent from now on; what it holds nobody gives back."""
        attached = self._attached.pop(id(worker), None)
        if attached is not None:
            _, task, entry = attached
            self._beat.remove(task)
            workers.died(self._state, entry)
        self.stage.left(worker)
