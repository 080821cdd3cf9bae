"""The runs of a worker whose handlers are coroutine functions: tasks of one event loop.

It is over 400 lines because what the loop does and what other threads do to it is one story.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any

from ..errors import ManagerClosedError, ValidationError
from ..model.cancel import CLOSING
from ..model.throttle import LogThrottle
from ..model.window import RateWindow
from ..offload import Offload
from ..sync import spawn
from .async_runs import GRACE_MS, AsyncRuns, Run, cancel_strays
from .batches import Batch
from .card import RunsCard
from .job import Job
from .job_log_filter import CURRENT_JOB
from .protocol import Backend
from .verdicts import Verdicts

MAX_CLAIM = 256
"""So many jobs are taken in one hold of the queue's lock at the most."""
FIRST_PAUSE_MS, LAST_PAUSE_MS = 100, 30_000
LOOK_S = 0.25
"""How often a close that waits looks whether the loop that it waits for is closed."""


class AsyncCrew(AsyncRuns):
    """All runs of one worker, on an event loop: its own, on one thread, or the caller's.

    But for `beat`, `stop`, `wind_up`, `pause` and `resume`, all of it runs on the loop. Claims
    and outcomes touch memory only there; what may wait for a disk is handed to other threads.
    """

    def __init__(
        self,
        backend: Backend,
        queue: str,
        name: str,
        route: Callable[[Any], Any],
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
        batch: Batch | None = None,
        hands: Offload | None = None,
    ) -> None:
        if prefetch not in (None, 1):
            raise ValidationError(
                "prefetch is for handlers on threads: a coroutine handler has each of its "
                "`concurrency` jobs running, and none waits"
            )
        super().__init__(
            *(backend, queue, name, route, batch),
            tell=tell,
            report=report,
            ended=ended,
            verdicts=verdicts,
        )
        self._room = concurrency
        self._lease_ms = lease_ms
        self._beat_ms = beat_ms
        self._window = window
        self._throttle = LogThrottle("bunqueue_py.worker", backend.clock.timeline_ms)
        self._paused = False
        self.card = RunsCard(
            *(name, concurrency, lease_ms, beat_ms), self._holds, self._under_way, self._lives
        )
        self._asked_ms: int | None = None
        self._ident: int | None = None
        self._thread: threading.Thread | None = None
        self._context: Context = Context()
        self._server: asyncio.Task[None] | None = None
        self._winding: asyncio.Task[Any] | None = None
        self._over = threading.Event()
        #: the threads of the plain functions among its handlers
        self._hands = hands

    # -- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts it on an event loop of its own."""
        ready = threading.Event()
        self._thread = spawn(f"{self._name}-loop", lambda: self._own_loop(ready))
        # before the first interrupt can come
        ready.wait()

    def start_here(self) -> None:
        """Starts it on the running event loop, whose things its handlers may use."""
        self._context = copy_context()
        self._begin(asyncio.get_running_loop())

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ident = threading.get_ident()
        self._handle = self._backend.async_handle()
        self._changed = asyncio.Event()
        self._server = self._context.copy().run(loop.create_task, self._serve())
        self._loop = loop

    def _own_loop(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        try:
            try:
                loop.run_until_complete(self._begin_here())
            finally:
                ready.set()
            server = self._server
            while server is not None and not server.done():
                try:
                    loop.run_until_complete(server)
                except BaseException as error:  # SystemExit in a task that a handler left behind
                    self._report(error)
            cancel_strays(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        except BaseException as error:  # whatever a handler has done to the loop
            self._report(error)
        finally:
            loop.close()
            self._give_up()

    async def _begin_here(self) -> None:
        self._begin(asyncio.get_running_loop())

    def pause(self) -> None:
        """Takes no more jobs until `resume`."""
        self._paused = True
        self._call(self._look_up)

    def resume(self) -> None:
        """Ends a pause."""
        self._paused = False
        self._call(self._look_up)

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._paused

    def stop(self) -> None:
        """Takes no more jobs; the handlers under way are told."""
        first = not self.stopping
        self.stopping = True
        self._call(self._look_up)
        if first:
            for run in set(self._runs.copy().values()):
                self._tell_closing(run)

    def _tell_closing(self, run: Run) -> None:
        for token, job in run.left.copy().items():
            with contextlib.suppress(ManagerClosedError):
                self._backend.announce_closing(job.id, token)

    def wind_up(self, deadline: int | None) -> tuple[list[str], bool]:
        """After `stop`: waits for the handlers up to the deadline (timeline ms), then cancels
        them, and gives back what has not finished. Returns the ids of those, and whether all
        handlers returned in time. On its own loop it cannot wait: there it only goes on by itself,
        and says whether there was nothing to wait for."""
        if self._loop is None:
            return [], True
        if self.holds_me:
            self._call(lambda: self._wind_up_alone(deadline))
            return [], not self._running
        if self._is_still:
            # nobody runs it while this waits
            self._give_up()
            return self._given_back, not self._given_back
        if self._wait(deadline):
            self._close_hands(GRACE_MS / 1000)
            return self._given_back, not self._given_back
        self._call(self._cut_short)
        now = self._backend.clock.timeline_ms
        if not self._wait(now() + GRACE_MS):
            self._give_up()
        return self._given_back, False

    def _wind_up_alone(self, deadline: int | None) -> None:
        assert self._loop is not None
        if not self._over.is_set():
            self._winding = self._loop.create_task(self.wind_up_here(deadline))

    def _wait(self, deadline: int | None) -> bool:
        now = self._backend.clock.timeline_ms
        seconds = None if deadline is None else max(0, deadline - now()) / 1000
        if self._thread is not None:
            self._thread.join(seconds)
            return not self._thread.is_alive()
        while not self._over.wait(LOOK_S if seconds is None else min(seconds, LOOK_S)):
            # it tells nobody that it is closed
            if self._is_still:
                self._give_up()
            if seconds is not None:
                seconds -= LOOK_S
                if seconds <= 0:
                    return self._over.is_set()
        return True

    @property
    def _is_still(self) -> bool:
        """Whether the caller's loop is closed, or stands still because its thread is this one."""
        loop = self._loop
        if loop is None or self._thread is not None or self._over.is_set():
            return False
        mine = self._ident == threading.get_ident()
        return loop.is_closed() or (mine and not loop.is_running())

    async def wind_up_here(self, deadline: int | None) -> tuple[list[str], bool]:
        """`wind_up`, for a coroutine of the same loop."""
        server = self._server
        if server is None:
            return [], True
        now = self._backend.clock.timeline_ms
        seconds = None if deadline is None else max(0, deadline - now()) / 1000
        try:
            done, _ = await asyncio.wait([server], timeout=seconds)
            if done:
                return [], True
        finally:
            # also when the caller is cancelled: then nothing is waited for any more
            if not server.done():
                self._cut_short()
                done, _ = await asyncio.wait([server], timeout=GRACE_MS / 1000)
                if not done:
                    self._give_up()
        return self._given_back, False

    @property
    def holds_me(self) -> bool:
        """Whether the caller is called by its loop, or is a handler on one of its threads."""
        if self._hands is not None and self._hands.holds_me:
            return not self._over.is_set()
        try:
            return asyncio.get_running_loop() is self._loop and not self._over.is_set()
        except RuntimeError:  # no loop runs on this thread
            return False

    def _look_up(self) -> None:
        if self.stopping or self._paused:
            self._backend.cancel_wait(self._queue, self._handle)
        self._changed.set()

    def _cut_short(self) -> None:
        for run in set(self._runs.copy().values()):
            self._cancel(run, CLOSING)

    def _give_up(self) -> None:
        """Gives back whatever is left, and ends: the loop does not run any more, or a handler
        cannot be stopped."""
        self.stopping = True
        for run in set(self._runs.copy().values()):
            run.reason = run.reason or CLOSING
            for token, job in run.left.copy().items():
                self._release(run, job, token)
        self._close_hands()
        if not self._over.is_set():
            self._over.set()
            self._ended()

    def _close_hands(self, timeout: float = 0) -> None:
        """They end with what they are at; a handler that never returns is not waited for."""
        if self._hands is not None:
            self._hands.close(timeout)

    # -- the loop's part ---------------------------------------------------------------------

    async def _serve(self) -> None:
        pause_ms, collected = 0, False
        try:
            while not self.stopping:
                try:
                    await self._round()
                    pause_ms = 0
                except ManagerClosedError:
                    self._cut_short()
                    break
                except Exception as error:  # it outlives whatever goes wrong in it
                    self._report(error)
                    pause_ms = min(max(FIRST_PAUSE_MS, pause_ms * 2), LAST_PAUSE_MS)
                    await self._rest(pause_ms / 1000)
            while self._running or self._held:
                await self._until_changed()
        except asyncio.CancelledError:
            # the whole loop is being shut down: its tasks are cancelled, and what they ran goes
            # back
            self.stopping = True
            self._cut_short()
            while self._running:
                await self._until_changed()
            raise
        except GeneratorExit:
            # Collected with a loop that was closed: at any moment, in whatever thread, maybe under
            # a lock of ours. The heartbeat, or whoever closes the worker, finds the loop closed.
            collected = True
            raise
        finally:
            if not collected:
                self._flush()
                if self._running:
                    self._give_up()
                self._close_hands()
                self._over.set()
                self._ended()

    async def _rest(self, seconds: float) -> None:
        assert self._loop is not None
        alarm = self._loop.call_later(seconds, self._changed.set)
        try:
            await self._until_changed()
        finally:
            alarm.cancel()

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _round(self) -> None:
        """Takes what there is room for, and starts it."""
        room = self._room - self._running
        if self._paused or room <= 0:
            await self._until_changed()
            return
        window = self._window
        if window is not None:
            now = self._backend.clock.timeline_ms()
            if window.room(now) <= 0:
                await self._rest(max(1, window.next_ms() - now) / 1000)
                return
            room = min(room, window.room(now))
        batch = self._batch
        if batch is None:
            jobs = await self._claim(min(room, MAX_CLAIM))
            runs = [Run([job]) for job in jobs]
        else:
            jobs = await self._gather(batch)
            runs = [Run(jobs)] if jobs else []
        if window is not None:
            for job in jobs:
                window.take(job._started_ms or self._backend.clock.timeline_ms())
        for run in runs:
            self._launch(run)
        if runs:
            # after the first step of each
            assert self._loop is not None
            self._loop.call_soon(self._check_begun, runs)

    async def _claim(self, limit: int, timeout_ms: int | None = None) -> list[Job]:
        handle = self._handle
        if handle.cancelled:
            # paused and resumed since
            handle = self._handle = self._backend.async_handle()
            if self.stopping or self._paused:
                return []
        return await self._backend.claim_async(
            self._queue, limit, self._lease_ms, self._holder, handle, timeout_ms
        )

    async def _gather(self, batch: Batch) -> list[Job]:
        """The jobs of one batch. Those that wait for it to fill are beaten for already."""
        window, now = self._window, self._backend.clock.timeline_ms
        size = batch.size if window is None else min(batch.size, window.room(now()))
        first = await self._claim(size)
        if not first:
            return []
        waiting = Run(first)
        for token in waiting.left:
            self._runs[token] = waiting
        self._mind_beat()
        until = now() + batch.max_wait_ms
        jobs = list(first)
        try:
            while len(jobs) < size and now() < until and not self.stopping:
                more = await self._claim(size - len(jobs), until - now())
                for job in more:
                    token = str(job.token)
                    waiting.left[token] = job
                    self._runs[token] = waiting
                jobs += more
                if self._paused:
                    break
        except ManagerClosedError:
            pass  # what it has is run; its outcome will be refused
        except GeneratorExit:
            raise  # as in `_serve`
        except BaseException:
            for token in list(waiting.left):
                self._runs.pop(token, None)
            self._backend.give_back_unstarted([(job.id, job.token) for job in jobs])
            raise
        return [job for job in jobs if str(job.token) in waiting.left]

    def _launch(self, run: Run) -> None:
        assert self._loop is not None
        for token in run.left:
            self._runs[token] = run
        self._running += 1
        self._open.add(run)
        self._mind_beat()
        if "active" in self.heard:
            for job in run.jobs:
                self._tell("active", job)
        if self.stopping:
            self._tell_closing(run)
        context = self._context.copy()
        context.run(CURRENT_JOB.set, run.jobs[0])
        run.task = context.run(self._loop.create_task, self._run(run))

    def _mind_beat(self) -> None:
        now = self._backend.clock.timeline_ms()
        if self.card.next_beat_ms <= now:
            self.card.next_beat_ms = now + self._beat_ms
        self._backend.beat_at(self.card.next_beat_ms)

    def _holds(self) -> int:
        return len(self._runs.copy())

    def _under_way(self) -> list[Sequence[Job]]:
        return [run.jobs for run in self._open.copy()]

    def _lives(self) -> bool:
        return not self._over.is_set() and (self._loop is None or not self._loop.is_closed())

    # -- the beat ----------------------------------------------------------------------------

    def beat(self) -> tuple[int, int | None]:
        """Heartbeats; runs on the manager's beat thread, so that a handler which blocks the loop
        costs nobody his lock. Returns how many it renewed and when it is due again."""
        now = self._backend.clock.timeline_ms()
        loop = self._loop
        renewals = [
            (run.left[token].id, token)
            for token, run in self._runs.copy().items()
            if token in run.left
        ]
        renewals += [(job.id, str(job.token)) for job, _ in tuple(self._held)]
        if not renewals or loop is None:
            return 0, None
        if loop.is_closed():
            self._give_up()
            return 0, None
        if now >= self.card.next_beat_ms:
            self._backend.renew(renewals)
            self.card.next_beat_ms = now + self._beat_ms
            self._check_loop(now)
        return len(renewals), self.card.next_beat_ms

    def _check_loop(self, now: int) -> None:
        """Warns if the loop has not taken a turn since the last beat."""
        if self._asked_ms is not None:
            self._throttle.warning(
                f"worker {self._name!r}: a handler has blocked its event loop for "
                f"{(now - self._asked_ms) / 1000:g} s; the others wait. Await what blocks, or hand "
                "it to asyncio.to_thread()"
            )
            return
        self._asked_ms = now
        self._call(self._answer)

    def _answer(self) -> None:
        self._asked_ms = None
