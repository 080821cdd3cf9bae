"""Threads whose handler takes several jobs in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ManagerClosedError, ValidationError
from ..model.window import RateWindow
from .batches import Batch, results_of
from .crew import Crew
from .job import Job
from .protocol import Backend
from .turn import Slot


class BatchCrew(Crew):
    """A crew each of whose slots runs one batch at a time. All jobs of it begin when they are
    taken; those that the slot has while the batch fills, or runs, are beaten for together."""

    def __init__(
        self,
        backend: Backend,
        queue: str,
        name: str,
        route: Callable[[Any], Any],
        *,
        batch: Batch,
        prefetch: int | None,
        window: RateWindow | None,
        **usual: Any,
    ) -> None:
        if prefetch is not None:
            raise ValidationError("prefetch: with batch, a batch is what a thread takes")
        super().__init__(backend, queue, name, route, prefetch=1, window=window, **usual)
        self._batch = batch
        #: by slot, what it has and has not ended; each token has one that takes it out
        self._mine: dict[Slot, dict[str, Job]] = {slot: {} for slot in self.slots}
        self.card.held = lambda: sum(map(len, self._mine.values()))

    def _round(self, slot: Slot) -> None:
        paused = self._paused
        if paused is not None:
            self._pass_turn(slot)
            paused.wait()
            return
        if self._window is not None and not self._await_window(self._window):
            return
        jobs = self._gather(slot)
        if jobs:
            self._run_batch(slot, jobs)

    def _gather(self, slot: Slot) -> list[Job]:
        """The next batch: full, or as full as it got in `max_wait`. Slots fill theirs in turn, so
        that two do not get half a batch each."""
        batch, mine = self._batch, self._mine[slot]
        self._turn.take()
        slot.has_turn = True
        try:
            if self.stopping:
                return []
            jobs = self._claim(slot, batch.size, None)
            if not jobs:
                return []
            now = self._backend.clock.timeline_ms
            until = now() + batch.max_wait_ms
            while len(jobs) < batch.size and now() < until and not self.stopping:
                if self._window is not None and self._window.room(now()) <= 0:
                    break
                jobs += self._claim(slot, batch.size - len(jobs), until - now())
                if self._paused is not None:
                    break
        finally:
            slot.has_turn = False
            self._turn.give()
        return [job for job in jobs if job.token in mine]

    def _claim(self, slot: Slot, limit: int, timeout_ms: int | None) -> list[Job]:
        window = self._window
        now = self._backend.clock.timeline_ms
        if window is not None:
            limit = min(limit, window.room(now()))
            if limit <= 0:
                return []
        jobs = self._backend.claim_begun(
            self._queue, limit, timeout_ms, self._lease_ms, self._holder, slot.handle
        )
        mine = self._mine[slot]
        for job in jobs:
            if window is not None:
                window.take(job._started_ms or now())
            mine[str(job.token)] = job
        if jobs:
            if self.card.next_beat_ms <= now():
                self.card.next_beat_ms = now() + self._beat_ms
            self._backend.beat_at(self.card.next_beat_ms)
        return jobs

    def _run_batch(self, slot: Slot, jobs: Sequence[Job]) -> None:
        slot.current = jobs[0]
        if "active" in self.heard:
            for job in jobs:
                self._tell("active", job)
        try:
            results = self._results(slot, jobs)
        finally:
            slot.current = None
        done: list[tuple[Job, bytes | None]] = []
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, BaseException):
                self._end_one(slot, job, result)
                continue
            try:
                data = None if result is None else self._backend.encode(result)
            except BaseException as error:  # a serializer may raise anything
                self._end_one(slot, job, error, work_done=True)
                continue
            if self._mine[slot].pop(str(job.token), None) is not None:
                done.append((job, data))
        slot.held.extend(done)
        self._flush(slot)

    def _results(self, slot: Slot, jobs: Sequence[Job]) -> Sequence[Any]:
        try:
            returned = slot.call(self._route, list(jobs))
        except BaseException as error:  # SystemExit and its like fail the jobs, not the worker
            return [error] * len(jobs)
        try:
            return results_of(returned, len(jobs))
        except ValidationError as error:
            # the work is done: running it again would repeat its side effects
            for job in jobs:
                self._end_one(slot, job, error, work_done=True)
            return [error] * len(jobs)

    def _end_one(
        self, slot: Slot, job: Job, error: BaseException, *, work_done: bool = False
    ) -> None:
        if self._mine[slot].pop(str(job.token), None) is not None:
            self._failed(job, error, work_done=work_done)

    def _job_of(self, token: str) -> Job | None:
        for mine in self._mine.values():
            job = mine.get(token)
            if job is not None:
                return job
        return None

    def _tell_closing(self) -> None:
        for mine in self._mine.values():
            for token, job in mine.copy().items():
                try:
                    self._backend.announce_closing(job.id, token)
                except ManagerClosedError:
                    return

    def abandon(self, slot: Slot) -> list[str]:
        """Gives back the jobs of a handler that did not return in time; returns their ids."""
        self._flush(slot)
        back = []
        mine = self._mine[slot]
        for token, job in mine.copy().items():
            if mine.pop(token, None) is not None and self._backend.give_back(job.id, token):
                back.append(job.id)
        return back

    def beat(self) -> tuple[int, int | None]:
        """Heartbeats for all jobs of all batches; see `Crew.beat`."""
        now = self._backend.clock.timeline_ms()
        held = [(job, job.token) for mine in self._mine.values() for job in mine.copy().values()]
        held += [(job, job.token) for slot in self.slots for job, _ in tuple(slot.held)]
        if not held:
            return 0, None
        if now >= self.card.next_beat_ms:
            self._backend.renew([(job.id, token) for job, token in held])
            self.card.next_beat_ms = now + self._beat_ms
        return len(held), self.card.next_beat_ms
