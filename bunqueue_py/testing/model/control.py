"""What is done to queues and jobs from outside, in the reference model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import DuplicateJobError, JobNotFoundError, JobStateError, LockError
from .core import Core
from .jobs import ACTIVE, COMPLETED, FAILED, PENDING, Dlq, ModelJob, Stalls


class Control(Core):
    """Core, and the verbs that change what waits, runs or has ended."""

    def get(self, job_id: str) -> ModelJob:
        """The job of that id, or `JobNotFoundError`."""
        job = self.find(job_id)
        if job is None:
            raise JobNotFoundError("gone")
        return job

    def get_pending(self, job_id: str) -> ModelJob:
        """The job of that id, which must be waiting."""
        job = self.get(job_id)
        if job.state != PENDING:
            raise JobStateError("not pending")
        return job

    # -- leases ------------------------------------------------------------------------------

    def give_back(self, job: ModelJob, delay: int = 0) -> None:
        """The active job is pending again, uncharged: in its old place, or after that delay."""
        job.retire(False)
        job.state, job.entered = PENDING, self.now
        if delay:
            job.run_at, job.number = self.now + delay, self.number()

    def release(self, job_id: str, token: str | None, delay: int) -> bool:
        """`give_back` by whoever holds it."""
        job = self.find(job_id)
        if self.refusal(job, token) is not None or job is None:
            return False
        self.give_back(job, delay)
        return True

    def release_owner(self, owner: str) -> int:
        """`give_back` of all that the owner holds."""
        held = [job for job in self.jobs if job.state == ACTIVE and job.owner == owner]
        for job in held:
            self.give_back(job)
        return len(held)

    def heartbeat(self, job_id: str, token: str | None, duration: int | None = None) -> bool:
        """The lock is renewed, or is that long from now on."""
        job = self.find(job_id)
        if self.refusal(job, token) is not None or job is None:
            return False
        if duration is not None:
            job.lease = duration
            if job.looked_at is None or self.now + duration < job.looked_at:
                job.looked_at = self.now + duration
                self.arm(job, "lease")
        job.beat, job.suspected = self.now, None
        if job.lease is not None:
            job.expires = self.now + job.lease
        return True

    def update_progress(self, job_id: str, token: str | None, percent: float) -> None:
        """How far it is."""
        job = self.get(job_id)
        if self.refusal(job, token) is not None:
            raise LockError("lost")
        job.progress = percent

    def update_data(self, job_id: str, token: str | None, data: Any) -> bool:
        """Other data."""
        job = self.get(job_id)
        if token is not None or job.state == ACTIVE:
            if self.refusal(job, token) is not None:
                raise LockError("lost")
        elif job.state == COMPLETED:
            raise JobStateError("completed")
        if job.data == data:
            return False
        job.data, job.moved_from = data, None
        return True

    # -- what waits --------------------------------------------------------------------------

    def _move(self, job: ModelJob, run_at: int) -> None:
        job.run_at, job.entered, job.anchored = run_at, self.now, False
        job.moved_from, job.vague = None, False
        job.number = self.number()

    def promote(self, job_id: str) -> bool:
        """A delayed job is ready, behind those that are."""
        job = self.get_pending(job_id)
        if job.is_ready(self.now, self.wall):
            return False
        self._move(job, self.now)
        return True

    def promote_all(self, queue: str, limit: int | None) -> int:
        """The same for all, soonest first."""
        now, wall = self.now, self.wall
        delayed = [job for job in self.of(queue, PENDING) if not job.is_ready(now, wall)]
        delayed.sort(key=lambda job: (job.due_ms(now, wall), job.anchored, job.number))
        for job in delayed[:limit]:
            self._move(job, now)
        return len(delayed[:limit])

    def change_delay(self, job_id: str, delay: int) -> bool:
        """It runs that long from now."""
        job = self.get_pending(job_id)
        due, ready = self.now + delay, job.is_ready(self.now, self.wall)
        if (due == job.run_at and not job.anchored) or (ready and not delay):
            return False
        self._move(job, due)
        return True

    def change_priority(self, job_id: str, priority: int, lifo: bool | None) -> bool:
        """It stands where it would, had it been added so."""
        job = self.get_pending(job_id)
        lifo = job.lifo if lifo is None else lifo
        if (job.priority, job.lifo) == (priority, lifo):
            return False
        job.priority, job.lifo = priority, lifo
        if job.is_ready(self.now, self.wall):
            # whether one that has come due by time counts as ready from now on is left open
            job.vague = job.anchored or job.run_at > job.created or job.moved_from is not None
            job.entered = job.entered if job.vague else self.now
        job.moved_from = None
        return True

    def discard(self, job_id: str) -> bool:
        """It fails for good."""
        self.finalize(self.get_pending(job_id), "discarded")
        return True

    def drain(self, queue: str, delayed: bool) -> int:
        """What waits is removed."""
        self.move_due(queue)
        now, wall = self.now, self.wall
        gone = [j for j in self.of(queue, PENDING) if delayed or j.is_ready(now, wall)]
        for job in gone:
            self.forget(job, remember=False)
        return len(gone)

    # -- what has ended ----------------------------------------------------------------------

    def remove(self, job_id: str) -> bool:
        """It is gone."""
        job = self.get(job_id)
        if job.state == ACTIVE:
            raise JobStateError("active")
        self.forget(job, remember=job.state != PENDING)
        return True

    def obliterate(self, queue: str, force: bool) -> int:
        """All are gone."""
        if self.of(queue, ACTIVE) and not force:
            raise JobStateError("active")
        gone = self.of(queue, PENDING, ACTIVE, COMPLETED, FAILED)
        for job in gone:
            self.forget(job, remember=False)
        return len(gone)

    def retry(self, job_id: str, *states: str) -> bool:
        """One that has ended (so) runs again."""
        job = self.get(job_id)
        if job.state not in (states or (COMPLETED, FAILED)):
            raise JobStateError("not finished")
        if self.key_taken(job):
            raise DuplicateJobError("taken", job_id="", key="", owner="")
        if self.custom_id_taken(job):
            raise JobStateError("taken")
        self.revive(job)
        return True

    def key_taken(self, job: ModelJob) -> bool:
        """Whether another live job owns its key."""
        owner = self.key_owner(job.queue.name, job.key)
        return owner is not None and owner is not job and owner.state in (PENDING, ACTIVE)

    def custom_id_taken(self, job: ModelJob) -> bool:
        """Whether another job has its custom id."""
        same = self.by_custom_id(job.queue.name, job.custom_id)
        return same is not None and same is not job

    def revive(self, job: ModelJob, *, automatic: bool = False) -> None:
        """A finished job is pending again, with fresh attempts."""
        if job.state == COMPLETED:
            if job.result is not None:
                self.drop_result(job.id)
            job.result = None
            if job.last_token is not None:
                job.retired.append((job.last_token, False))
        else:
            job.retry_count += 1
        if job in job.queue.counted:
            job.queue.counted.remove(job)
        if automatic:
            job.auto_retries += 1
        else:
            job.dead_since, job.auto_retries = None, 0
        job.dead_until = job.next_retry = job.reason = None
        job.state, job.run_at, job.entered = PENDING, self.now, self.now
        job.attempts_made = job.stalls = 0
        job.progress, job.anchored, job.moved_from = 0, False, None
        job.started, job.last_retry = None, self.now
        self._take_key(job)
        job.number = self.number()
        self.arm(job, "ttl")

    def retry_some(self, jobs: list[ModelJob]) -> int:
        """Those run again that may."""
        done = 0
        for job in jobs:
            if not self.key_taken(job) and not self.custom_id_taken(job):
                self.revive(job)
                done += 1
        return done

    def retry_all(self, queue: str, state: str, limit: int | None) -> int:
        """The oldest run again, passing over those that may not."""
        done = 0
        for job in self.of(queue, state):
            if limit is not None and done >= limit:
                break
            done += self.retry_some([job])
        return done

    # -- dead letters ------------------------------------------------------------------------

    def letters(
        self,
        queue: str,
        reason: str | None = None,
        older: int | None = None,
        newer: int | None = None,
        retriable: bool | None = None,
    ) -> list[ModelJob]:
        """The dead letters that a filter means; ages in ms."""

        def means(job: ModelJob) -> bool:
            assert job.dead_since is not None
            return (
                reason in (None, job.reason)
                and (older is None or job.dead_since <= self.now - older)
                and (newer is None or job.dead_since > self.now - newer)
                and retriable in (None, job.next_retry is not None)
            )

        return [job for job in self.of(queue, FAILED) if means(job)]

    def remove_letter(self, job_id: str) -> bool:
        """It is gone."""
        job = self.get(job_id)
        if job.state != FAILED:
            raise JobStateError("no dead letter")
        self.forget(job, remember=True)
        return True

    def configure_dlq(self, queue: str, settings: Dlq) -> None:
        """Other settings, for those that are there too."""
        self.queue(queue).dlq = settings
        dead = self.of(queue, FAILED)
        for job in dead[: max(0, len(dead) - settings.max_entries)]:
            self.forget(job, remember=True)
        for job in self.of(queue, FAILED):
            self.arm_letter(job)

    def configure_stalls(self, queue: str, settings: Stalls) -> None:
        """Other settings, for the runs under way too."""
        self.queue(queue).stalls = settings
        for job in self.of(queue, ACTIVE):
            if job.lease is None:
                self.arm(job, "stall")
                job.suspected = job.suspected if settings.enabled else None

    # -- time --------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """When time alone changes something that a sweep must do."""
        return min((at for job in self.jobs for at, _, _ in job.moments()), default=None)

    def sweep(self) -> None:
        """What is due is judged, in the order of its moments."""
        now = self.now
        due = []
        for job in self.jobs:
            for at, number, what in job.moments():
                looked_at = job.looked_at if what == "lease" else at
                if looked_at is not None and looked_at <= now:
                    due.append((looked_at, number, what, job, job.token))
        for _, _, what, job, token in sorted(due, key=lambda entry: entry[:2]):
            if what == "lease" and job.token == token and (job.expires or 0) > now:
                # it was renewed, and is looked at again then
                job.looked_at = job.expires
                self.arm(job, "lease")
            elif job.token == token and what in [w for at, _, w in job.moments() if at <= now]:
                judge: Callable[[ModelJob], None] = getattr(self, f"_judge_{what}")
                judge(job)

    def _judge_lease(self, job: ModelJob) -> None:
        self.end_run(job, "stalled", by_sweep=True)

    def _judge_stall(self, job: ModelJob) -> None:
        if job.suspected is None:
            job.suspected = self.now
        else:
            self.end_run(job, "stalled", by_sweep=True)

    def _judge_timeout(self, job: ModelJob) -> None:
        self.end_run(job, "timeout", by_sweep=False)

    def _judge_ttl(self, job: ModelJob) -> None:
        self.finalize(job, "ttl_expired")

    def _judge_retention(self, job: ModelJob) -> None:
        self.forget(job, remember=True)

    def _judge_dead(self, job: ModelJob) -> None:
        self.forget(job, remember=True)

    def _judge_again(self, job: ModelJob) -> None:
        if job.dead_until is not None and job.dead_until <= self.now:
            self.forget(job, remember=True)
        elif self.key_taken(job) or self.custom_id_taken(job):
            job.next_retry = self.now + job.queue.dlq.retry_interval
            self.arm(job, "again")
        else:
            self.revive(job, automatic=True)

    # -- the process ends --------------------------------------------------------------------

    def restart(self, *, clean: bool) -> None:
        """The process ended, in good order or not, and another has opened the file. What only
        memory knows is gone: tokens, proofs, results beside those on disk. Runs that were under
        way are given back, or after a crash lost deliveries."""
        self.proofs, self.results = {}, []
        for queue in self.queues.values():
            queue.passed_over = {}
            of_queue = [job for job in self.jobs if job.queue is queue and job.started is not None]
            for limits in [queue.limits, *queue.groups.values()]:
                names = [name for name, group in queue.groups.items() if group is limits]
                starts = [
                    job.started or 0 for job in of_queue if not names or job.group == names[0]
                ]
                if limits.rate is not None:
                    most, per, _ = limits.rate
                    starts = sorted(start for start in starts if start + per > self.now)
                    limits.starts = starts[-most:]
        for job in sorted(self.jobs, key=lambda job: job.entered):
            self.arm(job, *("ttl", "retention"))
            if job.state == FAILED:
                self.arm_letter(job)
            if job.moved_from is not None and job.state == PENDING:
                # that it was moved was not worth a row
                job.run_at, job.moved_from, job.anchored = job.moved_from, None, True
        self.last_number += 1
        self.in_recovery = True
        for job in self.jobs[:]:
            lost = job.state == ACTIVE
            if lost and clean:
                self.give_back(job)
            elif lost:
                self.end_run(job, "worker_lost", by_sweep=True)
            job.retired, job.last_token = [], None
        self.in_recovery = False
