"""The threads of a worker: how they take jobs, run them, ack them and keep their locks alive.

It is over 400 lines because the life of a slot is one story, told by two threads, that a reader
has to see whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import attrgetter

from ..errors import BunqueueError, ManagerClosedError, RateLimited
from ..model.snapshot import OPTIONS
from ..model.window import RateWindow
from ..sync import LEAF, make_lock, spawn
from .card import Card
from .crew_base import CrewBase
from .handlers import Handler, not_awaited
from .job import Job
from .protocol import Backend
from .turn import BATCH_MS, Pace, Slot, Turn
from .verdicts import Verdicts

_applied = attrgetter("applied")

GIVE_WAY_MS = 1
HOARD_MS = 10
"""A batch that takes longer than this goes back, as far as it has not been started."""
FIRST_PAUSE_MS, LAST_PAUSE_MS = 100, 30_000
"""The wait after a pull that failed, doubling."""


class Crew(CrewBase):
    """All slots of one worker, and the beat that minds them."""

    def __init__(
        self,
        backend: Backend,
        queue: str,
        name: str,
        route: Handler,
        *,
        concurrency: int,
        lease_ms: int,
        beat_ms: int,
        prefetch: int | None,
        window: RateWindow | None,
        tell: Callable[..., None],
        report: Callable[[BaseException], None],
        ended: Callable[[], None],
        verdicts: Verdicts,
    ) -> None:
        super().__init__(
            backend, queue, name, tell=tell, report=report, ended=ended, verdicts=verdicts
        )
        self._route = route
        self._lease_ms = lease_ms
        self._beat_ms = beat_ms
        self._pace = Pace(1 if window is not None else prefetch)
        self._window = window
        self._turn = Turn()
        self._watched = backend.watched(queue)
        self._contended = backend.contended(queue)
        self._lock = make_lock(f"crew {name}", LEAF)
        self._live = 0
        self._paused: threading.Event | None = None
        #: held until the crew stops; what waits for time waits for this
        self._stop_bell = threading.Lock()
        self._stop_bell.acquire()
        self.slots = [Slot(backend) for _ in range(concurrency)]
        self.card = Card(name, self.slots, lease_ms, beat_ms)

    # -- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts a thread for each slot."""
        # nobody begins before all are there: each start would have to fight for the interpreter
        # with the slots that are at work already
        with self._turn.line:
            for i, slot in enumerate(self.slots):
                self._start_slot(i, slot)

    def _start_slot(self, number: int, slot: Slot) -> None:
        with self._lock:
            self._live += 1
        try:
            slot.thread = spawn(f"{self._name}-{number}", self._serve_slot(slot))
        except BaseException:  # no more threads to be had: what runs already is stopped
            with self._lock:
                self._live -= 1
            raise

    def pause(self) -> None:
        """Takes no more jobs until `resume`; gives back what no slot has started."""
        with self._lock:
            if self._paused is not None:
                return
            self._paused = threading.Event()
        self._interrupt_claims()

    def resume(self) -> None:
        """Ends a pause."""
        with self._lock:
            paused, self._paused = self._paused, None
            if paused is not None and not self.stopping:
                # the old handles are cancelled for good
                for slot in self.slots:
                    slot.handle = self._backend.wait_handle()
        if paused is not None:
            paused.set()

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._paused is not None

    def stop(self) -> None:
        """Has every slot stop after the handler it is in, which is told; gives back what none has
        started."""
        with self._lock:
            first = not self.stopping
            self.stopping = True
        if first:
            self._stop_bell.release()
        self._interrupt_claims()
        paused = self._paused
        if paused is not None:
            paused.set()
        if first:
            self._tell_closing()

    def _interrupt_claims(self) -> None:
        for slot in self.slots:
            self._turn.wrest(slot)
            try:
                self._backend.cancel_wait(self._queue, slot.handle)
                self._return_queued(slot)
            except ManagerClosedError:
                return

    def _tell_closing(self) -> None:
        for slot in self.slots:
            job = slot.current
            if job is not None:
                try:
                    self._backend.announce_closing(job.id, job.token)
                except ManagerClosedError:
                    return

    def wind_up(self, deadline: int | None) -> tuple[list[str], bool]:
        """After `stop`: waits for the handlers, up to the deadline (timeline ms), and gives back
        what has not finished. Returns the ids of those jobs, and whether all handlers returned."""
        late = self.join(deadline)
        given_back: list[str] = []
        for slot in late:
            try:
                given_back += self.abandon(slot)
            except BunqueueError as error:
                self._report(error)
        return given_back, not late

    def join(self, deadline: int | None) -> list[Slot]:
        """Waits for the threads to end, but for the calling one; returns the slots of those that
        have not by the deadline (timeline ms)."""
        now = self._backend.clock.timeline_ms
        me = threading.current_thread()
        late = []
        for slot in self.slots:
            thread = slot.thread
            if thread is None or thread is me:
                continue
            thread.join(None if deadline is None else max(0, deadline - now()) / 1000)
            if thread.is_alive():
                late.append(slot)
        return late

    def abandon(self, slot: Slot) -> list[str]:
        """Gives back the job of a handler that did not return in time; returns its id, if so."""
        self._flush(slot)
        job = slot.current
        if job is not None and self._backend.give_back(job.id, job.token):
            return [job.id]
        return []

    @property
    def holds_me(self) -> bool:
        """Whether the calling thread is one of the slots."""
        me = threading.current_thread()
        return any(slot.thread is me for slot in self.slots)

    # -- a slot's thread ---------------------------------------------------------------------

    def _serve_slot(self, slot: Slot) -> Callable[[], None]:
        return lambda: self._serve(slot)

    def _serve(self, slot: Slot) -> None:
        # where `JobLogFilter` looks
        threading.current_thread().bunqueue_slot = slot  # type: ignore[attr-defined]
        pause_ms = 0
        try:
            while not self.stopping:
                try:
                    self._round(slot)
                    pause_ms = 0
                except ManagerClosedError:
                    return
                except BaseException as error:  # the thread outlives whatever goes wrong in it
                    slot.current = None
                    self._pass_turn(slot)
                    self._report(error)
                    pause_ms = min(max(FIRST_PAUSE_MS, pause_ms * 2), LAST_PAUSE_MS)
                    self._rest(pause_ms)
        finally:
            self._pass_turn(slot)
            self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        try:
            self._flush(slot)
            self._return_queued(slot)
        except BunqueueError:
            # the manager is closed: nothing that was held can be acked any more
            slot.held.clear()
        with self._lock:
            self._live -= 1
            last = self._live == 0
        if last and self.stopping:
            self._ended()
        elif last:
            self._backend.died(self.card)

    def _rest(self, pause_ms: int) -> None:
        bell = threading.Lock()
        bell.acquire()
        clock = self._backend.clock
        until = clock.timeline_ms() + pause_ms
        while not self.stopping and clock.timeline_ms() < until:
            clock.wait(bell, min(FIRST_PAUSE_MS, until - clock.timeline_ms()))

    def _pass_turn(self, slot: Slot) -> None:
        if slot.has_turn or self._turn.resume(slot):
            slot.has_turn = False
            self._turn.give()

    def _round(self, slot: Slot) -> None:
        """Takes what there is and runs it."""
        backend, pace = self._backend, self._pace
        paused = self._paused
        if paused is not None:
            self._pass_turn(slot)
            paused.wait()
            return
        if not slot.has_turn:
            self._turn.take()
            slot.has_turn = True
            if self.stopping:
                return
        if self._window is not None and not self._await_window(self._window):
            return
        wanted = pace.appetite
        if self._contended():
            self._give_way()
        jobs = backend.claim(self._queue, wanted, self._lease_ms, self._holder, slot.handle)
        alone = pace.learns and pace.keeps_turn(len(jobs))
        slot.has_turn = False
        if self._window is not None:
            for job in jobs:
                self._window.take(job._started_ms or backend.clock.timeline_ms())
        if alone:
            self._turn.keep(slot)
        else:
            self._turn.give()
        if not pace.learns:
            if jobs:
                self._run_all(slot, jobs)
        elif jobs:
            effort = backend.clock.effort
            wall, cpu = effort()
            ran = self._run_all(slot, jobs)
            wall_after, cpu_after = effort()
            pace.learn(ran, wall_after - wall, cpu_after - cpu, alone=alone)
        if alone:
            slot.has_turn = self._turn.resume(slot)

    def _give_way(self) -> None:
        """Lets whoever is inside the queue's lock run on. It waits for the interpreter, which this
        thread has; to block on the lock would hand it over for one step only, and from then on
        the two would swap places at every job."""
        self._backend.clock.wait(self._stop_bell, GIVE_WAY_MS)

    def _await_window(self, window: RateWindow) -> bool:
        """Waits until the worker's own rate limit lets it start a job; False when it stops. The
        slot has the turn, so it alone looks at the window."""
        clock = self._backend.clock
        while not self.stopping:
            now = clock.timeline_ms()
            if window.room(now) > 0:
                return True
            clock.wait(self._stop_bell, window.next_ms() - now)
        return False

    def _run_all(self, slot: Slot, jobs: list[Job]) -> int:
        """Runs them; one alone with what waited for it, and so on. Returns how many that were."""
        ran = len(jobs)
        backend = self._backend
        now = backend.clock.timeline_ms
        began = slot.began_ms = now()
        if self.card.next_beat_ms <= began:
            self.card.next_beat_ms = began + self._beat_ms
        backend.beat_at(self.card.next_beat_ms)
        following = None
        if ran == 1:
            following = self._run(slot, jobs[0])
        else:
            queued = slot.queued
            queued.extend(jobs)
            # unstarted jobs and held outcomes are minded by the beat thread
            backend.beat_at(began + BATCH_MS)
            first = True
            while queued and not self.stopping:
                try:
                    job = queued.popleft()
                except IndexError:  # the beat thread gave the last one back
                    break
                # the first has begun with its claim
                if first:
                    first = False
                elif backend.begin(job._id, job.token):
                    slot.begun = job
                else:
                    continue
                # only the last one may have one, should the beat thread have acked those before
                following = self._run(slot, job)
        while following is not None:
            ran += 1
            following = self._run(slot, following)
        if slot.held:
            self._flush(slot)
        return ran

    def _run(self, slot: Slot, job: Job) -> Job | None:
        """Runs the job; returns the one that the slot has taken with its end, if it has."""
        slot.current = job
        if "active" in self.heard:
            self._tell("active", job)
        try:
            result = slot.call(self._route, job)
        except BaseException as error:  # SystemExit and its like fail the job, not the worker
            self._failed(job, error)
        else:
            data = None
            if result is not None:
                try:
                    data = self._backend.encode(result)
                except BaseException as error:  # a serializer may raise anything
                    # the work is done: running it again would repeat its side effects
                    self._failed(job, not_awaited(result) or error, work_done=True)
                    slot.current = None
                    return None
            if job._fields[OPTIONS].durable:
                # not by way of what is held: the beat thread must not wait for a disk
                self._flush(slot, (job, data))
            elif slot.queued or slot.held or self._window is not None:
                slot.held.append((job, data))
                if not slot.queued or job._id in self._watched:
                    if self._contended():
                        self._give_way()
                    self._flush(slot)
            else:
                return self._go_on(slot, job, data)
        slot.current = None
        return None

    def _go_on(self, slot: Slot, job: Job, data: bytes | None) -> Job | None:
        """Acks the job, and takes the one that waited for it if there is nothing else."""
        if self._contended():
            self._give_way()
        try:
            outcome, problem, following = self._backend.go_on(
                job._id, job.token, data, self._lease_ms, self._holder, slot.handle
            )
        except BaseException:
            # the work is done: it is acked with the next batch
            slot.held.append((job, data))
            raise
        if following is None:
            # otherwise it is not idle for a moment: the beat would leave it, and come no more
            slot.current = None
        self.card.count(outcome.applied)
        if problem is not None:
            self._report(problem)
        if outcome.applied and "completed" in self.heard:
            self._tell("completed", job, data)
        return following

    def _failed(self, job: Job, error: BaseException, *, work_done: bool = False) -> None:
        self._verdicts.end(job, error, work_done=work_done)
        if error.__class__ is RateLimited:
            # what waits here would start in spite of that
            for slot in self.slots:
                self._return_queued(slot)

    def _flush(self, slot: Slot, last: tuple[Job, bytes | None] | None = None) -> None:
        """Acks what is held, and that; safe from the slot's thread and the beat's at once."""
        batch = []
        held = slot.held
        while held:
            try:
                batch.append(held.popleft())
            except IndexError:  # the other thread took the last one
                break
        if last is not None:
            batch.append(last)
        if not batch:
            return
        if len(batch) == 1:
            job, data = batch[0]
            items = [(job._id, job.token, data)]
        else:
            items = [(job._id, job.token, data) for job, data in batch]
        try:
            outcomes, problem = self._backend.settle(items)
        except BaseException:
            # the work is done: what is not acked now is acked with the next batch
            held.extendleft(reversed(batch))
            raise
        if len(outcomes) == 1:
            self.card.count(outcomes[0].applied)
        else:
            self.card.count(sum(map(_applied, outcomes)))
        if problem is not None:
            self._report(problem)
        if "completed" in self.heard:
            for (job, data), outcome in zip(batch, outcomes, strict=True):
                if outcome.applied:
                    self._tell("completed", job, data)

    def _return_queued(self, slot: Slot) -> None:
        """Gives back the jobs that the slot has not started, in one go, so that nobody takes a
        later one before an earlier one is back."""
        back = []
        while slot.queued:
            try:
                back.append(slot.queued.pop())
            except IndexError:  # the slot took the last one
                break
        if back:
            self._backend.give_back_unstarted([(job.id, job.token) for job in back])

    def _job_of(self, token: str) -> Job | None:
        for slot in self.slots:
            job = slot.current
            if job is not None and job.token == token:
                return job
        return None

    # -- the beat ----------------------------------------------------------------------------

    def beat(self) -> tuple[int, int | None]:
        """Heartbeats, held outcomes, hoarded jobs, kept turns; runs on the manager's beat thread.
        Returns how many locks it renewed and when it is due again."""
        now = self._backend.clock.timeline_ms()
        busy = [s for s in self.slots if s.current is not None or s.queued or s.held]
        if not busy:
            return 0, None
        for slot in busy:
            self._mind(slot, now)
        renewals: list[tuple[str, str | None]] = []
        if now >= self.card.next_beat_ms:
            for slot in busy:
                current = slot.current
                if current is not None:
                    renewals.append((current.id, current.token))
                renewals += [(job.id, job.token) for job in tuple(slot.queued)]
                renewals += [(job.id, job.token) for job, _ in tuple(slot.held)]
            self._backend.renew(renewals)
            self.card.next_beat_ms = now + self._beat_ms
        if self._turn.is_kept or any(
            slot.held or slot.queued or slot.begun is not slot.marked for slot in busy
        ):
            return len(renewals), min(now + BATCH_MS, self.card.next_beat_ms)
        return len(renewals), self.card.next_beat_ms

    def _mind(self, slot: Slot, now: int) -> None:
        since = now - slot.began_ms
        if slot.held and (since >= BATCH_MS or self._awaited(slot)):
            self._flush(slot)
        if since >= BATCH_MS:
            self._turn.wrest(slot)
            begun = slot.begun
            if begun is not slot.marked:
                if begun is not None and begun is slot.current:
                    self._backend.mark_begun(begun.id, begun.token)
                slot.marked = begun
        if since >= HOARD_MS:
            # what still waits here is out of reach of priorities, pauses, drains and other threads
            self._return_queued(slot)

    def _awaited(self, slot: Slot) -> bool:
        return any(job.id in self._watched for job, _ in tuple(slot.held))
