"""What the harness plays on: one engine, its workers and its clock, one thing after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..client.job import Job
from ..client.listeners import Listeners
from ..client.protocol import Closable
from ..client.worker import Worker
from ..errors import BunqueueError, JobFailedError, StorageLockedError
from ..model.failure import describe
from ..model.job import Delivery
from ..shard.deadlines import LEASE, STALL, TIMEOUT, TTL, Entry, is_stale
from ..state import State
from ..stores.alarm import NEVER
from . import hints
from .history import History, Jobs
from .ids import SeededIds
from .stepped_manager import SteppedManager
from .stepping import CannotEnd, StageClock, SteppedCrew

RUNAWAY = 100_000
"""More runs than this at one moment, or in one call of `drain`, are a loop without end."""

_TEST_OUTCOMES = "_pytest.outcomes"


class _Runaway(BunqueueError):
    """More runs than there may be."""


class Stage:
    """Runs what is due and what is ready, in one order, and moves time from moment to moment."""

    def __init__(self, storage: Any, clock: StageClock, ids: SeededIds, *, immediate: bool) -> None:
        self.clock = clock
        self.immediate = immediate
        #: every event so far
        self.history = History()
        #: every job, as it was when it was added, or when it ran last
        self.jobs = Jobs(lambda: self.manager)
        self.errors: dict[str, BaseException] = {}
        self.workers: list[Worker] = []
        #: those of the workers that take jobs, in the order in which these started
        self.crews: tuple[SteppedCrew, ...] = ()
        self._listeners: tuple[Listeners, ...] = ()
        self.cast: list[tuple[Worker, str, Any, dict[str, Any]]] = []
        self.runs = 0
        self.depth = 0
        self.crashed_in_memory_at: int | None = None
        self._settling = False
        #: whether nothing has happened since the background's loop looked ahead, but time
        self._looked_ahead = False
        #: what the next runs in each queue raise
        self.planned: dict[str, deque[Any]] = {}
        self._interrupt: BaseException | None = None
        try:
            self.manager = SteppedManager(self, storage, clock, ids)
        except StorageLockedError as error:
            raise StorageLockedError(
                f"{error}. A Harness frees its file at the end of its `with` block, or by close()",
                pid=error.pid,
            ) from None
        except CannotEnd:
            raise StorageLockedError(
                f"{storage!r} is owned by another manager, and a Harness cannot wait for that to "
                "end, since its clock stands still: close that one first"
            ) from None
        clock.stage = self

    @property
    def state(self) -> State:
        """The engine's state, of the process that lives now."""
        return self.manager._state

    @property
    def busy(self) -> bool:
        """Whether the caller is a handler or a listener."""
        return self._settling

    # -- told by the engine and the workers --------------------------------------------------

    def joined(self, worker: Closable) -> None:
        """A worker starts."""
        assert isinstance(worker, Worker)
        self.workers.append(worker)
        self._look_round()

    def left(self, worker: Closable) -> None:
        """A worker has ended; its listeners hear the rest."""
        assert isinstance(worker, Worker)
        if worker in self.workers:
            self.workers.remove(worker)
            self._look_round()
        if worker._listeners.mailbox is not None:
            worker._listeners.mailbox.drain()

    def _look_round(self) -> None:
        self.crews = tuple(map(_crew, self.workers))
        self._listeners = tuple(worker._listeners for worker in self.workers)

    def added(self, jobs: Iterable[Job]) -> None:
        """Jobs were added, or found to be there."""
        for job in jobs:
            if not job.duplicate:
                self.jobs.put(job)
        if self.immediate and not self._settling:
            self.settle(RUNAWAY)

    def began(self, job: Job) -> None:
        """A handler is about to be called."""
        self.runs += 1
        self.depth += 1
        self.jobs.put(job)

    def raised(self, job: Job, error: BaseException) -> None:
        """What a handler raised; that which is meant for whoever runs the test goes on to him."""
        self.errors[job.id] = error
        ends_test = any(base.__module__ == _TEST_OUTCOMES for base in type(error).__mro__)
        if isinstance(error, KeyboardInterrupt) or ends_test:
            self._interrupt = error

    def plan_failures(self, queue: str, error: Any, times: int) -> None:
        """Has the next runs in that queue raise the error in place of their handler."""
        self.planned.setdefault(queue, deque()).extend([error] * times)

    def planned_failure(self, queue: str) -> None:
        """Raises what was planned for the next run, if anything was."""
        planned = self.planned.get(queue)
        if planned:
            error = planned.popleft()
            raise error() if isinstance(error, type) else error

    # -- what happens now --------------------------------------------------------------------

    def duties(self) -> bool:
        """What background threads would do now: heartbeats, deadlines, listeners. Says whether
        there was anything."""
        clock, state = self.clock, self.manager._state
        now, wall = clock.timeline_ms(), clock.wall_ms()
        did, heard = False, 0
        if wall - now != state.schedules.offset_ms and state.schedules.moved(now, wall):
            state.alarm.set(now)
        if state.beat.due_ms <= now:
            # first, since what is renewed now does not expire now
            self._looked_ahead = False
            self.manager._beat.run_pass()
            did = True
        if state.alarm.due_ms <= now:
            self.sweep()
            did = True
        # whatever comes next may be anything
        self._looked_ahead = False
        if len(state.events.entries) > 1:
            heard = self.manager.events.drain()
        for listeners in self._listeners:
            if listeners.mailbox is not None:
                heard += listeners.mailbox.drain()
        return did or heard > 0

    def sweep(self) -> None:
        """One pass over the deadlines; what it did is on disk then."""
        manager = self.manager
        looked_ahead, self._looked_ahead = self._looked_ahead, False
        # what an exception has broken off is put right in a whole pass
        if looked_ahead and not manager._state.shards.shards[0].gate:
            manager._loop.run_ahead()
        else:
            manager._loop.run_pass()
        storage = manager._state.storage
        if storage is not None:
            storage.step()

    def settle(self, most: int, *, raise_errors: bool = False) -> int:
        """Runs what is ready until nothing is, while time stands still; returns how many runs.
        Raises if those are more than `most`, or, if so asked, what a job failed for good with."""
        outer, self._settling = self._settling, True
        began, history = self.runs, self.history
        seen = [len(history)] if raise_errors else None
        try:
            busy = True
            did = self._look(seen)
            while busy:
                busy = False
                for crew in self.crews:
                    if not crew.may_run():
                        continue
                    if self.runs - began >= most:
                        raise self._runaway(self.runs - began, crew.queue)
                    if crew.step():
                        busy = True
                        did = self._look(seen)
                if not busy and did:
                    # what a listener or a sweep has done is looked at too
                    busy = did = self._look(seen)
        finally:
            self._settling = outer
            history.pack()
        return self.runs - began

    def _look(self, seen: list[int] | None) -> bool:
        """`duties`; raises what is meant for whoever runs the test, and, unless `seen` is `None`,
        what the first job failed for good with since that many events."""
        did = self.duties()
        if self._interrupt is not None:
            error, self._interrupt = self._interrupt, None
            raise error
        if seen is not None:
            for kind, _, job_id, _, _, carried in self.history.since(seen[0]):
                seen[0] += 1
                if kind == "failed" and carried is not None and carried["terminal"]:
                    assert job_id is not None
                    raise self.cause(job_id)
        return did

    def cause(self, job_id: str) -> BaseException:
        """What a job that failed for good failed with: its handler's own exception, if it did."""
        job = self.manager.get_job(job_id)
        error = self.errors.get(job_id)
        carried = next(e[5] for e in reversed(self.history) if e[2] == job_id and e[0] == "failed")
        assert carried is not None
        text = str(carried["error"])
        if error is None or describe(error)[0] != text:
            # a timeout, a lost lock, a ttl: no handler raised it
            stack = () if job is None else job.stacktrace
            return JobFailedError(job_id, str(carried["reason"]), text, stack)
        if hasattr(error, "add_note"):
            name = self.jobs[job_id].name if job_id in self.jobs else "job"
            error.add_note(f"{name!r} ({job_id}) failed for good: {carried['reason']}")
        return error

    def _endless(self, queue: str) -> BunqueueError:
        return BunqueueError(
            f"drain() comes to no end: after {RUNAWAY:,} runs and moments there are jobs left in "
            f"{queue!r}. A job with repeat, or a handler that adds or delays another job each "
            "time, goes on for ever: advance() to a moment instead\n" + hints.picture(self)
        )

    def _runaway(self, ran: int, queue: str) -> BunqueueError:
        return _Runaway(
            f"{ran:,} jobs ran and more are ready in {queue!r}: a handler seems to add another job "
            "each time. If so many are meant, give run_until_idle(max_jobs=...) a larger number\n"
            + hints.picture(self)
        )

    # -- time --------------------------------------------------------------------------------

    def next_stop(self) -> int | None:
        """The next moment after now at which something happens by itself."""
        now, wall = self.clock.timeline_ms(), self.clock.wall_ms()
        due, busy = NEVER, False
        for crew in self.crews:
            moment = crew.next_ms(now, wall)
            if moment is not None and moment < due:
                due = moment
            if not busy and crew.is_busy:
                busy = True
        manager = self.manager
        state = manager._state
        if not busy:
            # with empty hands there is nothing to keep alive
            state.beat.move(NEVER)
        # they may stand for what has ended since: a look tells
        if state.alarm.due_ms < due:
            moment = manager._loop.look_ahead()
            if moment < due:
                due = moment if moment > now else now + 1
            self._looked_ahead = True
        if state.beat.due_ms < due:
            due = min(due, max(manager._beat.look_ahead(), now + 1))
        return None if due >= NEVER else due

    def advance_to(
        self, target: int, most: int | None = None, *, raise_errors: bool = False
    ) -> int:
        """Moves time to that moment, stopping wherever something happens; returns the runs: at
        most `most` in all, or `RUNAWAY` at any one stop."""
        ran = self.settle(RUNAWAY if most is None else most, raise_errors=raise_errors)
        while True:
            stop = self.next_stop()
            if stop is None or stop > target:
                self._looked_ahead = False
                break
            self.clock.move_to(stop)
            room = RUNAWAY if most is None else most - ran
            ran += self.settle(room, raise_errors=raise_errors)
        self.clock.move_to(target)
        return ran

    def drain(self, *, raise_errors: bool) -> None:
        """Moves time on while there are jobs left to which it makes a difference."""
        left = RUNAWAY - self.settle(RUNAWAY, raise_errors=raise_errors)
        while True:
            busy = [name for name, queue in self.state.queues.items() if not queue.is_idle]
            stop = self._next_that_matters() if busy else None
            if stop is None:
                return
            if left <= 0:
                raise self._endless(busy[0])
            # a stop counts too, so that there is an end even if nothing ever runs
            try:
                left -= 1 + self.advance_to(stop, left, raise_errors=raise_errors)
            except _Runaway:
                raise self._endless(busy[0]) from None

    def _next_that_matters(self) -> int | None:
        """The next moment that brings a job further. A lock that its worker renews for ever, and
        what becomes of finished jobs, do not."""
        now, wall = self.clock.timeline_ms(), self.clock.wall_ms()
        crews = self.crews
        held = {job.token for crew in crews for job in crew.stuck}
        best = min((m for m in (crew.next_ms(now, wall) for crew in crews) if m), default=NEVER)
        for shard in self.state.shards.shards:
            with shard.lock:
                head = shard.deadlines.first()
                if head is None or head[0] >= best:
                    continue
                entries = [head] if _matters(head, held) else shard.deadlines.entries()
                first = min((e[0] for e in entries if _matters(e, held)), default=NEVER)
                best = min(best, first)
        return None if best >= NEVER else max(best, now + 1)

    # -- waiting -----------------------------------------------------------------------------

    def help_out(self, done: Callable[[], bool]) -> bool:
        """What the others would do while the caller waits, until that is done; says whether it
        is. Time stands still. Jobs run only if a handler waits: a test runs them itself."""
        while True:
            self.duties()
            if done():
                return True
            if not self.depth or not self._step_once():
                return False

    def _step_once(self) -> bool:
        return any(crew.may_run() and crew.step() for crew in self.crews)

    def no_outcome(self, job_id: str) -> BunqueueError:
        """Why waiting for that job's result would never end."""
        return hints.no_outcome(self, job_id)

    def no_job(self, queue: str) -> BunqueueError:
        """Why waiting for a job of that queue would never end."""
        return hints.no_job(self, queue)

    def not_empty(self, queue: str) -> BunqueueError:
        """Why waiting for that queue to be empty would never end."""
        return hints.not_empty(self, queue)

    # -- ends --------------------------------------------------------------------------------

    def lose(self, worker: Worker) -> None:
        """The process of that worker dies: it renews, acks and takes nothing any more."""
        crew = _crew(worker)
        crew.lose()
        with worker._lock:
            worker._stopping = True
            worker._ended.set()
        self.manager._backend.lose(worker)
        if worker._group_concurrency is not None:
            self.manager.backend.bound_groups(crew.queue, crew, None)

    def crash(self) -> None:
        """The process dies and is started again, with the workers that it had been given."""
        again = [entry for entry in self.cast if not entry[0].is_closed or _crew(entry[0]).lost]
        for worker in tuple(self.workers):
            _crew(worker).lose()
            worker._stopping = True
            worker._ended.set()
        self.workers.clear()
        self._look_round()
        if self.manager.kept is None:
            self.crashed_in_memory_at = self.clock.timeline_ms()
        self.manager.crash()
        self.cast = again
        for worker, queue, handler, options in again:
            listeners = worker._listeners.by_event
            Worker.__init__(worker, queue, handler, manager=self.manager, **options)
            for event, fns in listeners.items():
                for fn, once in fns:
                    (worker.once if once else worker.on)(event, fn)
            worker.start()


def _matters(entry: Entry, held: set[str | None]) -> bool:
    """Whether a deadline brings a job further that has not ended."""
    _, _, kind, subject = entry
    if kind not in (LEASE, TIMEOUT, TTL, STALL) or is_stale(entry):
        return False
    return not (kind == LEASE and isinstance(subject, Delivery) and subject.token in held)


def _crew(worker: Worker) -> SteppedCrew:
    crew = worker._crew
    assert isinstance(crew, SteppedCrew)
    return crew
