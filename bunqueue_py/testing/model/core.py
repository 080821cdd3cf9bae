"""How jobs come in, run and end, in the reference model."""

from __future__ import annotations

from typing import Any

from ...clock import Clock
from ...durations import moment_to_ms, to_ms
from ...errors import GroupFullError, LockError
from ...types import ANY, GroupChoice, KeepJobs, Outcome
from .jobs import ACTIVE, COMPLETED, FAILED, GONE, PENDING, ModelJob, ModelQueue

LOST = 0
GONE_OUTCOME = Outcome(False, "gone")


class Core:
    """The jobs, in one list. `die` is what the next throw of the dice shows. `proofs` says of each
    finished job that left whether it had a result; `results` are the ones used last, in order."""

    def __init__(self, clock: Clock, keep_results: int) -> None:
        self.clock = clock
        self.keep_results = keep_results
        self.die = 0.5
        self.jobs: list[ModelJob] = []
        self.queues: dict[str, ModelQueue] = {}
        self.keys: dict[tuple[str, str], ModelJob] = {}
        self.results: list[tuple[str, Any]] = []
        self.proofs: dict[str, bool] = {}
        self.last_number = self.last_armed = 0
        self.in_recovery = False

    @property
    def now(self) -> int:
        """The timeline's moment."""
        return self.clock.timeline_ms()

    @property
    def wall(self) -> int:
        """The wall clock's."""
        return self.clock.wall_ms()

    def number(self) -> int:
        """The next number; of one recovery all jobs get the same, for their order is open."""
        self.last_number += not self.in_recovery
        return self.last_number

    def queue(self, name: str) -> ModelQueue:
        """The queue of that name."""
        return self.queues.setdefault(name, ModelQueue(name))

    def find(self, job_id: str) -> ModelJob | None:
        """The job of that id, if there is one."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def of(self, queue: str, *states: str) -> list[ModelJob]:
        """The queue's jobs in those states."""
        return [job for job in self.jobs if job.queue.name == queue and job.state in states]

    def arm(self, job: ModelJob, *what: str) -> None:
        """Deadlines of the job are set, in that order."""
        for each in what:
            self.last_armed += 1
            job.armed[each] = self.last_armed

    # -- push --------------------------------------------------------------------------------

    def push(self, queue: str, job_id: str, data: Any, options: dict[str, Any]) -> ModelJob:
        """The new job, or the one that is there already. Raises `GroupFullError`."""
        job = ModelJob(job_id, self.queue(queue), options, data, self.now)
        holder = self.by_custom_id(queue, job.custom_id)
        if holder is not None and holder.state in (PENDING, ACTIVE):
            return holder
        owner = self.key_owner(queue, job.key)
        replaces = job.key_mode == "replace" and owner and owner.state in (PENDING, ACTIVE)
        same_group = replaces and owner and owner.state == PENDING and owner.group == job.group
        limit = options.get("group_limit")
        if limit is not None and not same_group and (owner is None or replaces):
            waiting = [other for other in self.of(queue, PENDING) if other.group == job.group]
            if len(waiting) >= limit:
                raise GroupFullError("full")
        if owner is not None and not replaces:
            if job.key_mode == "extend":
                self._extend(owner, job.key_ttl)
            owner.moved_from = None
            return owner
        if holder is not None:
            self.forget(holder, remember=True)
        job.run_at = job.entered = self.now
        if "run_at" in options:
            moment = moment_to_ms(options["run_at"], "run_at")
            job.anchored = moment > self.wall
            job.run_at = moment if job.anchored else max(0, self.now - (self.wall - moment))
        elif "delay" in options:
            job.run_at += to_ms(options["delay"], "delay")
        self.jobs.append(job)
        self._take_key(job)
        job.number = self.number()
        self.arm(job, "ttl")
        return job

    def by_custom_id(self, queue: str, custom_id: str | None) -> ModelJob | None:
        """The job of the queue with that custom id."""
        if custom_id is None:
            return None
        there = self.of(queue, PENDING, ACTIVE, COMPLETED, FAILED)
        return next((job for job in there if job.custom_id == custom_id), None)

    # -- keys --------------------------------------------------------------------------------

    def key_owner(self, queue: str, key: str | None) -> ModelJob | None:
        """Who owns the key now: a live job, or one that is done and holds it on by time."""
        owner = None if key is None else self.keys.get((queue, key))
        return owner if owner is not None and owner.has_key(self.now) else None

    def release_key(self, queue: str, key: str) -> bool:
        """Frees the key; says whether it was taken."""
        taken = self.key_owner(queue, key) is not None
        owner = self.keys.pop((queue, key), None)
        if owner is not None:
            owner.key_until, owner.moved_from = LOST, None
        return taken

    def _take_key(self, job: ModelJob) -> None:
        """The key passes to the job; a pending owner is removed, an active one runs on."""
        if job.key is None:
            return
        prior = self.key_owner(job.queue.name, job.key)
        self.keys[job.queue.name, job.key] = job
        job.key_until = None if job.key_ttl is None else self.now + job.key_ttl
        if prior is not None and prior is not job:
            if prior.state == PENDING:
                self.forget(prior, remember=False)
            else:
                prior.key_until = LOST

    def _extend(self, owner: ModelJob, ttl: int | None) -> None:
        ttl = owner.key_ttl if ttl is None else ttl
        if ttl is not None and owner.key_until is not None:
            owner.key_until = max(owner.key_until, self.now + ttl)

    def _free_key(self, job: ModelJob) -> None:
        owns = job.key is not None and self.keys.get((job.queue.name, job.key)) is job
        if job.key is not None and owns and not job.key_held:
            del self.keys[job.queue.name, job.key]

    # -- pull --------------------------------------------------------------------------------

    def move_due(self, queue: str) -> None:
        """Somebody pulls: what has come due by the wall clock lives by the timeline from now."""
        for job in self.of(queue, PENDING):
            if job.anchored and job.is_ready(self.now, self.wall):
                job.moved_from = job.run_at
                # by a jump of the clock, if its moment was before it came in
                job.vague |= job.due_ms(self.now, self.wall) < job.entered
                job.entered = job.run_at = max(0, job.due_ms(self.now, self.wall))
                job.anchored = False

    def next_ones(self, queue: str, group: GroupChoice = ANY) -> list[ModelJob]:
        """The jobs of which one must come next; one alone, but for the turn of groups."""
        limits = self.queue(queue).limits
        if limits.room(len(self.of(queue, ACTIVE)), self.now) == 0:
            return []
        ready = self._startable(queue)
        plain = [job for job in ready if job.group is None]
        if group is not ANY:
            return _best([job for job in ready if job.group == group])
        if plain:
            return _best(plain)
        groups = {job.group for job in ready if job.group is not None}
        passed = self.queue(queue).passed_over
        turns = [
            name
            for name in groups
            if not any(name in passed.get(other, ()) for other in groups - {name})
        ]
        return [job for name in turns for job in _best([j for j in ready if j.group == name])]

    def _startable(self, queue: str) -> list[ModelJob]:
        """The ready jobs that neither their group nor their ttl holds back."""
        now, wall, found = self.now, self.wall, []
        rooms: dict[str | None, int] = {None: 1}
        for job in self.of(queue, PENDING):
            if not job.is_ready(now, wall) or job.is_expired(now):
                continue
            if job.group not in rooms:
                assert job.group is not None
                running = sum(other.group == job.group for other in self.of(queue, ACTIVE))
                rooms[job.group] = self.queue(queue).group(job.group).room(running, now)
            if rooms[job.group]:
                found.append(job)
        return found

    def mind_groups(self) -> None:
        """A group that cannot start a job now has no turn to lose."""
        for queue in self.queues.values():
            if queue.groups or queue.passed_over or any(job.group for job in self.jobs):
                able = {job.group for job in self._startable(queue.name) if job.group is not None}
                queue.passed_over = {name: queue.passed_over.get(name, set()) for name in able}

    def start(
        self, job: ModelJob, token: str, lease: int | None, owner: str | None, group: GroupChoice
    ) -> None:
        """The job is delivered."""
        now, queue = self.now, job.queue
        self.mind_groups()
        queue.limits.started(now)
        if job.group is not None:
            queue.group(job.group).started(now)
            if group is ANY:
                for name, had_turn in queue.passed_over.items():
                    if name == job.group:
                        had_turn.clear()
                    else:
                        had_turn.add(job.group)
        job.state, job.started, job.entered = ACTIVE, now, now
        job.token = job.last_token = token
        job.owner, job.lease, job.beat = owner, lease, now
        job.expires = job.looked_at = None if lease is None else now + lease
        job.times_out = None if job.timeout is None else now + job.timeout
        job.moved_from = None
        job.vague = False
        self.arm(job, "lease", "stall", "timeout")
        self.mind_groups()

    # -- ack, fail ---------------------------------------------------------------------------

    def refusal(
        self, job: ModelJob | None, token: str | None, *, late_ack: bool = False
    ) -> Outcome | None:
        """SPEC 5's table: `None` where the token holds. Raises `LockError`."""
        if job is None:
            return GONE_OUTCOME
        if job.state == ACTIVE and (token == job.token or (token is None and job.lease is None)):
            return None
        if not job.knows(token):
            raise LockError("never issued")
        if job.state in (COMPLETED, FAILED):
            return Outcome(False, "already_finalized")
        if late_ack and job.state == PENDING and job.lost_by_sweep(token):
            return None
        return Outcome(False, "lock_lost")

    def ack(self, job_id: str, token: str | None, result: Any) -> Outcome:
        """The run ended well."""
        job = self.find(job_id)
        refused = self.refusal(job, token, late_ack=True)
        if refused is not None or job is None:
            return refused or GONE_OUTCOME
        if result is not None:
            self._keep_result(job_id, result)
        job.token = None  # it is the last token still, and no former one
        job.retire(False)
        job.state, job.entered, job.result = COMPLETED, self.now, result
        self._move_to_end(job)
        job.dead_since, job.auto_retries, job.retry_count = None, 0, 0
        self._free_key(job)
        self._retain(job)
        return Outcome(True)

    def ack_broken(self, job_id: str, token: str | None) -> Outcome:
        """The run ended well, but with a result that cannot be kept: it fails for good."""
        job = self.find(job_id)
        refused = self.refusal(job, token, late_ack=True)
        if refused is not None or job is None:
            return refused or GONE_OUTCOME
        if job.state == ACTIVE:
            self.end_run(job, "unrecoverable", by_sweep=False)
        else:
            self.finalize(job, "unrecoverable")
        return Outcome(False, "unserializable")

    def fail(self, job_id: str, token: str | None, *, unrecoverable: bool) -> Outcome:
        """The run ended badly."""
        job = self.find(job_id)
        refused = self.refusal(job, token)
        if refused is not None or job is None:
            return refused or GONE_OUTCOME
        self.end_run(job, "unrecoverable" if unrecoverable else "unknown", by_sweep=False)
        return Outcome(True)

    def wait_before(self, job: ModelJob, retry: int) -> int:
        """The back-off before that retry."""
        rule = job.backoff
        wait: float = rule.delay_ms
        if rule.kind == "exponential":
            wait = rule.delay_ms * 2 ** (retry - 1)
        if rule.jitter:
            wait = round(wait * (1 - rule.jitter + 2 * rule.jitter * self.die))
        return int(min(wait, rule.max_delay_ms))

    def end_run(self, job: ModelJob, cause: str, *, by_sweep: bool) -> None:
        """A bad end of a run: it is charged, then the job is tried again, or fails for good."""
        job.attempts_made += 1
        job.stalls += by_sweep
        job.history.append(cause)
        bound = job.queue.stalls.max_stalls
        if cause == "unrecoverable":
            self.finalize(job, cause)
        elif job.attempts_made >= job.attempts:
            self.finalize(job, "max_attempts_exceeded" if cause == "unknown" else cause)
        elif by_sweep and bound and job.stalls >= bound:
            self.finalize(job, cause)
        else:
            job.retire(by_sweep)
            wait = self.wait_before(job, job.attempts_made)
            job.state, job.run_at, job.entered = PENDING, self.now + wait, self.now
            job.number = self.number()

    def finalize(self, job: ModelJob, reason: str) -> None:
        """The job has failed for good."""
        job.retire(False)
        job.state, job.entered, job.reason = FAILED, self.now, reason
        self._free_key(job)
        if job.keep() is not True:
            if job.dead_since is None:
                job.dead_since, job.auto_retries = self.now, 0
            self._move_to_end(job)
            self.arm_letter(job)
            dead = self.of(job.queue.name, FAILED)
            for oldest in dead[: max(0, len(dead) - job.queue.dlq.max_entries)]:
                self.forget(oldest, remember=True)
        self._retain(job)

    def _move_to_end(self, job: ModelJob) -> None:
        """So that those in one state stand in the list in the order in which they entered it."""
        self.jobs.remove(job)
        self.jobs.append(job)

    def arm_letter(self, job: ModelJob) -> None:
        """The moments of a dead letter, as the settings say."""
        settings, job.dead_until, job.next_retry = job.queue.dlq, None, None
        assert job.dead_since is not None
        if settings.max_age is not None:
            job.dead_until = job.dead_since + settings.max_age
            self.arm(job, "dead")
        wanted = job.reason not in ("discarded", "cancelled")
        if settings.auto_retry and wanted and job.auto_retries < settings.max_retries:
            job.next_retry = job.entered + settings.retry_interval * 2**job.auto_retries
            self.arm(job, "again")

    # -- leaving -----------------------------------------------------------------------------

    def _retain(self, job: ModelJob) -> None:
        """A job has finished: does it stay, and do others because of it?"""
        keep = job.keep()
        if keep is True:
            self.forget(job, remember=True)
        elif isinstance(keep, KeepJobs) and job in self.jobs:
            self.arm(job, "retention")
            if keep.count is not None:
                counted = job.queue.counted
                counted.append(job)
                for oldest in counted[: max(0, len(counted) - keep.count)]:
                    self.forget(oldest, remember=True)

    def forget(self, job: ModelJob, *, remember: bool) -> None:
        """The job is gone; `remember` leaves a proof of how a finished one ended."""
        if job not in self.jobs:
            return
        self.jobs.remove(job)
        if job in job.queue.counted:
            job.queue.counted.remove(job)
        self._free_key(job)
        has_result = job.state == COMPLETED and job.result is not None
        if remember and job.state in (COMPLETED, FAILED):
            self.proofs[job.id] = has_result
        elif has_result:
            self.drop_result(job.id)
        job.retire(False)
        job.state = GONE

    def _keep_result(self, job_id: str, result: Any) -> None:
        self.drop_result(job_id)
        self.results.append((job_id, result))
        del self.results[: -self.keep_results]

    def drop_result(self, job_id: str) -> None:
        """The result is no longer kept in memory."""
        self.results = [entry for entry in self.results if entry[0] != job_id]


def _best(jobs: list[ModelJob]) -> list[ModelJob]:
    first = min((job.place() for job in jobs), default=None)
    return [job for job in jobs if job.place() == first]
