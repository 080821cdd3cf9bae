"""The verbs of the engine against a list of jobs that anybody can check by eye."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bunqueue_py import (
    Backoff,
    JobCounts,
    JobNotFoundError,
    JobStateError,
    Queue,
    QueueManager,
)
from bunqueue_py.client.job import Job
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"

QUEUES = ("red", "green")
LEASE_MS = 30_000
RETRY_MS = 2_500
MAX_STALLS = 3
NO_LOCK = 1 << 60
TOKENS_REMEMBERED = 5  # the engine promises eight
PENDING, ACTIVE, COMPLETED, FAILED = "pending", "active", "completed", "failed"


ENDS = ("ack", "fail", "fail for good", "release", "lose", "lose and ack late")
OPTIONS = st.fixed_dictionaries(
    {"attempts": st.integers(1, 4)},
    optional={
        "priority": st.sampled_from([-5, 0, 1, 9]),
        "delay": st.sampled_from([0, 0.007, 5, 40]),
        "lifo": st.booleans(),
        "custom_id": st.sampled_from(["a", "b"]),
        "remove_on_complete": st.booleans(),
        "remove_on_fail": st.booleans(),
    },
)


def some(*states: str) -> Any:
    """The rule needs a job in one of those states."""
    return precondition(lambda self: any(job.state in states for job in self.jobs))


class ModelJob:
    """One job of the model. `tokens` are (token, how it was retired), the newest last."""

    def __init__(self, job: Job, number: int, options: dict[str, Any], now: int) -> None:
        self.id = job.id
        self.queue = job.queue
        self.number = number
        self.priority: int = options.get("priority", 0)
        self.lifo: bool = options.get("lifo", False)
        self.attempts: int = options["attempts"]
        self.custom_id: str | None = options.get("custom_id")
        self.remove_on_complete: bool = options.get("remove_on_complete", False)
        self.remove_on_fail: bool = options.get("remove_on_fail", False)
        self.run_at = now + round(options.get("delay", 0) * 1000)
        self.state = PENDING
        self.failures = 0
        self.stalls = 0
        self.token: str | None = None
        self.expires = self.beat = 0
        self.suspected: int | None = None
        self.tokens: list[tuple[str, str]] = []
        self.moved = self.run_at > now  # its place among equals is no longer that of admission

    def place(self) -> tuple[int, ...]:
        """SPEC 4's order, but for the number that decides between equals."""
        return (-self.priority, 0) if self.lifo else (-self.priority, 1, self.run_at)

    def retire(self, how: str) -> None:
        assert self.token is not None
        self.tokens = [*self.tokens, (self.token, how)][-TOKENS_REMEMBERED:]
        self.token = None


class EngineMachine(RuleBasedStateMachine):
    """Each rule does one thing to the engine and to the list, at a millisecond of its own."""

    @initialize(seed=st.integers(0, 1000), batch=st.lists(OPTIONS, min_size=4, max_size=12))
    def start(self, seed: int, batch: list[dict[str, Any]]) -> None:
        self.clock = VirtualClock()
        self.manager = QueueManager(clock=self.clock, background=False, _ids=SeededIds(seed))
        self.queues = {name: Queue(name, self.manager) for name in QUEUES}
        self.jobs: list[ModelJob] = []
        self.gone: list[str] = []
        self.paused: set[str] = set()
        self.admitted = 0
        for n, options in enumerate(batch):
            self.push_one(QUEUES[n % 2], options)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()

    # -- the model ---------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.timeline_ms()

    def tick(self) -> None:
        self.clock.advance(milliseconds=1)
        self.expire()

    def expire(self) -> None:
        """Deliveries whose lock has run out are lost: an attempt and a stall."""
        self.manager.run_pending()
        for job in list(self.jobs):
            if job.state == ACTIVE and (job.expires <= self.now or self.stays_silent(job)):
                job.stalls += 1
                self.fail_run(job, "sweep", at_once=job.stalls >= MAX_STALLS)

    def stays_silent(self, job: ModelJob) -> bool:
        """SPEC 6: without a lock, silent for 30 s and then for 5 s more."""
        if job.expires < NO_LOCK:
            return False
        if job.suspected is not None:
            return self.now >= job.suspected + 5_000
        if self.now >= job.beat + 30_000:
            job.suspected = self.now
        return False

    def fail_run(self, job: ModelJob, how: str, *, at_once: bool = False) -> None:
        job.failures += 1
        if at_once or job.failures >= job.attempts:
            job.retire("failed")
            job.state = FAILED
            if job.remove_on_fail:
                self.forget(job)
        else:
            job.retire(how)
            job.state, job.run_at, job.moved = PENDING, self.now + RETRY_MS, True

    def complete(self, job: ModelJob) -> None:
        if job.token is not None:
            job.retire("acked")
        job.state = COMPLETED
        if job.remove_on_complete:
            self.forget(job)

    def forget(self, job: ModelJob) -> None:
        self.jobs.remove(job)
        self.gone.append(job.id)

    def of(self, queue: str, *states: str) -> list[ModelJob]:
        return [job for job in self.jobs if job.queue == queue and job.state in states]

    def ready(self, queue: str) -> list[ModelJob]:
        return [job for job in self.of(queue, PENDING) if job.run_at <= self.now]

    def next_ones(self, queue: str) -> list[ModelJob]:
        """Those of which one must come next: one alone, unless equals have been moved about."""
        ready = self.ready(queue)
        if not ready:
            return []
        best = min(job.place() for job in ready)
        equals = [job for job in ready if job.place() == best]
        if any(job.moved for job in equals):
            return equals
        newest_first = equals[0].lifo
        return [(max if newest_first else min)(equals, key=lambda job: job.number)]

    def draw(self, data: st.DataObject, *states: str) -> ModelJob | None:
        choice = [job for job in self.jobs if job.state in states]
        return data.draw(st.sampled_from(choice)) if choice else None

    def by_id(self, job_id: str) -> ModelJob:
        return next(job for job in self.jobs if job.id == job_id)

    # -- rules -------------------------------------------------------------------------------

    @rule(queue=st.sampled_from(QUEUES), batch=st.lists(OPTIONS, min_size=1, max_size=6))
    def push(self, queue: str, batch: list[dict[str, Any]]) -> None:
        self.tick()
        for options in batch:
            self.push_one(queue, options)

    def push_one(self, queue: str, options: dict[str, Any]) -> None:
        custom_id = options.get("custom_id")
        holder = next(
            (job for job in self.jobs if custom_id and (job.queue, job.custom_id) ==
             (queue, custom_id)), None,
        )  # fmt: skip
        job = self.manager.push(queue, backoff=Backoff.fixed(RETRY_MS / 1000, jitter=0), **options)
        if holder is not None and holder.state in (PENDING, ACTIVE):
            assert job.duplicate
            assert job.id == holder.id
            return
        assert not job.duplicate
        if holder is not None:
            self.forget(holder)
        self.admitted += 1
        self.jobs.append(ModelJob(job, self.admitted, options, self.now))

    @some(PENDING)
    @rule(queue=st.sampled_from(QUEUES), locked=st.sampled_from([True, True, True, False]))
    def pull(self, queue: str, locked: bool) -> None:
        self.take(queue, locked=locked)

    def take(self, queue: str, *, locked: bool) -> ModelJob | None:
        self.tick()
        allowed = [] if queue in self.paused else self.next_ones(queue)
        job = self.manager.pull(queue, lock_duration=LEASE_MS / 1000 if locked else None)
        if not allowed:
            assert job is None
            return None
        assert job is not None
        assert job.id in [one.id for one in allowed]
        taken = self.by_id(job.id)
        assert job.attempt == taken.failures + 1
        taken.state, taken.token = ACTIVE, job.token
        taken.expires = self.now + LEASE_MS if locked else NO_LOCK
        taken.beat, taken.suspected = self.now, None
        return taken

    @some(PENDING)
    @rule(
        queue=st.sampled_from(QUEUES),
        end=st.sampled_from(ENDS),
        rounds=st.integers(1, 4),
    )
    def run(self, queue: str, end: str, rounds: int) -> None:
        """Pulls and ends the run, a few times over, so that jobs get on in their lives."""
        for _ in range(rounds):
            job = self.take(queue, locked=True)
            if job is None:
                self.advance(RETRY_MS)
            elif end == "ack":
                self.end_well(job)
            elif end.startswith("lose"):
                self.advance(LEASE_MS)
                if end == "lose and ack late" and job in self.jobs:
                    self.act_late("ack", job, *job.tokens[-1])
            elif end == "release":
                self.give_back(job, 0)
            else:
                self.end_badly(job, unrecoverable=end == "fail for good")

    @some(ACTIVE)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self.tick()
        job = self.draw(data, ACTIVE)
        if job is not None:
            self.end_well(job)

    def end_well(self, job: ModelJob) -> None:
        assert self.manager.ack(job.id, job.number, token=job.token).applied
        self.complete(job)
        assert self.manager.get_result(job.id) == job.number

    @some(ACTIVE)
    @rule(data=st.data(), unrecoverable=st.booleans())
    def fail(self, data: st.DataObject, unrecoverable: bool) -> None:
        self.tick()
        job = self.draw(data, ACTIVE)
        if job is not None:
            self.end_badly(job, unrecoverable=unrecoverable)

    def end_badly(self, job: ModelJob, *, unrecoverable: bool) -> None:
        outcome = self.manager.fail(job.id, "no", token=job.token, unrecoverable=unrecoverable)
        assert outcome.applied
        self.fail_run(job, "failed", at_once=unrecoverable)

    @some(ACTIVE)
    @rule(data=st.data(), delay=st.sampled_from([0, 0, 3]))
    def release(self, data: st.DataObject, delay: int) -> None:
        self.tick()
        job = self.draw(data, ACTIVE)
        if job is not None:
            self.give_back(job, delay)

    def give_back(self, job: ModelJob, delay: int) -> None:
        assert self.manager.release(job.id, token=job.token, delay=delay)
        job.retire("released")
        job.state = PENDING
        if delay:
            job.run_at, job.moved = self.now + delay * 1000, True

    @some(ACTIVE)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        self.tick()
        job = self.draw(data, ACTIVE)
        if job is not None:
            assert self.manager.heartbeat(job.id, token=job.token)
            job.beat, job.suspected = self.now, None
            if job.expires < NO_LOCK:
                job.expires = self.now + LEASE_MS

    @precondition(lambda self: any(job.tokens for job in self.jobs))
    @rule(data=st.data(), verb=st.sampled_from(["ack", "fail", "heartbeat", "release"]))
    def come_back_late(self, data: st.DataObject, verb: str) -> None:
        """SPEC 5: what a token of an earlier delivery may still do."""
        self.tick()
        choice = [job for job in self.jobs if job.tokens]
        if not choice:
            return
        job = data.draw(st.sampled_from(choice))
        token, how = data.draw(st.sampled_from(job.tokens))
        self.act_late(verb, job, token, how)

    def act_late(self, verb: str, job: ModelJob, token: str, how: str) -> None:
        if verb == "heartbeat":
            assert self.manager.heartbeat(job.id, token=token) is False
        elif verb == "release":
            assert self.manager.release(job.id, token=token) is False
        elif verb == "ack" and how == "sweep" and job.state == PENDING:
            assert self.manager.ack(job.id, "late", token=token).applied
            self.complete(job)
        else:
            call = self.manager.ack if verb == "ack" else self.manager.fail
            outcome = call(job.id, "late", token=token)
            finished = job.state in (COMPLETED, FAILED)
            assert outcome.reason == ("already_finalized" if finished else "lock_lost")

    @rule(ms=st.sampled_from([1, 6, 400, 2_500, 5_000, 20_000, 45_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(milliseconds=ms)
        self.expire()

    @rule(queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, queue: str) -> None:
        self.tick()
        if queue in self.paused:
            self.queues[queue].resume()
            self.paused.discard(queue)
        else:
            self.queues[queue].pause()
            self.paused.add(queue)

    @some(PENDING, ACTIVE, COMPLETED, FAILED)
    @rule(data=st.data(), state=st.sampled_from([PENDING, ACTIVE, COMPLETED, FAILED]))
    def remove(self, data: st.DataObject, state: str) -> None:
        self.tick()
        job = self.draw(data, state)
        if job is None:
            return
        if job.state == ACTIVE:
            with pytest.raises(JobStateError):
                self.queues[job.queue].remove(job.id)
        else:
            assert self.queues[job.queue].remove(job.id)
            self.forget(job)

    @some(PENDING, ACTIVE, COMPLETED, FAILED)
    @rule(data=st.data(), finished=st.sampled_from([True, True, False]))
    def retry(self, data: st.DataObject, finished: bool) -> None:
        self.tick()
        job = self.draw(data, *((COMPLETED, FAILED) if finished else (PENDING, ACTIVE)))
        if job is None:
            return
        if job.state in (PENDING, ACTIVE):
            with pytest.raises(JobStateError):
                self.queues[job.queue].retry(job.id)
        else:
            assert self.queues[job.queue].retry(job.id)
            job.state, job.run_at, job.moved = PENDING, self.now, True
            job.failures = job.stalls = 0

    @some(PENDING)
    @rule(queue=st.sampled_from(QUEUES), delayed=st.booleans())
    def drain(self, queue: str, delayed: bool) -> None:
        self.tick()
        going = self.of(queue, PENDING) if delayed else self.ready(queue)
        assert self.queues[queue].drain(delayed) == len(going)
        for job in going:
            self.forget(job)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def ask_for_what_is_gone(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.gone))
        assert self.manager.get_job(job_id) is None
        assert self.manager.get_state(job_id) == "unknown"
        assert self.manager.ack(job_id, token="t").reason == "gone"
        with pytest.raises(JobNotFoundError):
            self.manager.retry(job_id)

    # -- what must agree after each ------------------------------------------------------------

    def counts(self, queue: str) -> JobCounts:
        ready = self.ready(queue)
        high = sum(job.priority > 0 for job in ready)
        paused = queue in self.paused
        return JobCounts(
            waiting=0 if paused else len(ready) - high,
            prioritized=0 if paused else high,
            paused=len(ready) if paused else 0,
            delayed=len(self.of(queue, PENDING)) - len(ready),
            active=len(self.of(queue, ACTIVE)),
            completed=len(self.of(queue, COMPLETED)),
            failed=len(self.of(queue, FAILED)),
        )

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "manager"):
            return
        check(self.manager._state)
        for name, queue in self.queues.items():
            expected = self.counts(name)
            assert queue.counts() == expected
            assert len(queue) == len(self.of(name, PENDING))
            assert len(queue.dlq) == expected.failed
        for job in self.jobs:
            seen = self.manager.get_job(job.id)
            assert seen is not None
            assert seen.attempts_made == job.failures
            assert seen.stall_count == job.stalls
            if job.state == PENDING:
                due = job.run_at <= self.now
                ready = "prioritized" if job.priority > 0 else "waiting"
                assert seen.state == (ready if due else "delayed")
            else:
                assert seen.state == job.state


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=6, stateful_step_count=20)


@pytest.mark.slow
class TestEngineAtLength(EngineMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20 if SHORT else 150, stateful_step_count=60)


# -- who comes first among equals: what the model leaves open ------------------------------------


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(datetime(2030, 1, 1, tzinfo=timezone.utc))


def order(manager: QueueManager) -> list[str]:
    return [job.name for job in manager.pull_batch("mail", 100)]


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("priority", [0, 5])
def test_of_two_jobs_due_at_one_moment_the_one_admitted_first_runs_first(
    clock: VirtualClock, priority: int, anchored: bool
) -> None:
    """B058, B095; SPEC 4: FIFO by run_at, then admission."""
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        when: Any = {"run_at": clock.now + timedelta(seconds=5)} if anchored else {"delay": 5}
        queue.add("delayed", priority=priority, **when)
        clock.advance(seconds=5)
        queue.add("pushed", priority=priority)
        assert order(manager) == ["delayed", "pushed"]


def test_delayed_jobs_due_at_one_moment_run_in_the_order_of_their_admission(
    clock: VirtualClock,
) -> None:
    """B058: equal due times run FIFO."""
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        for n in range(5):
            queue.add(f"job{n}", delay=5 - n)
            clock.advance(seconds=1)
        clock.advance(seconds=60)
        assert order(manager) == [f"job{n}" for n in range(5)]


def test_a_delayed_job_takes_its_place_by_its_run_at(clock: VirtualClock) -> None:
    """B095."""
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        queue.add("due at 5", delay=5)
        queue.add("at 0")
        clock.advance(seconds=4)
        queue.add("at 4")
        clock.advance(seconds=2)
        queue.add("at 6")
        assert order(manager) == ["at 0", "at 4", "due at 5", "at 6"]


def test_the_newest_lifo_job_runs_first_even_if_an_older_one_was_moved_only_now(
    clock: VirtualClock,
) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        queue.add("older, due at 5", delay=5, lifo=True)
        clock.advance(seconds=10)
        queue.add("newer", lifo=True)
        clock.advance(seconds=10)
        assert order(manager) == ["newer", "older, due at 5"]


def test_lifo_jobs_run_before_fifo_jobs_of_their_priority_newest_first(
    clock: VirtualClock,
) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        for name, options in (
            ("fifo1", {}),
            ("lifo1", {"lifo": True}),
            ("fifo2", {}),
            ("lifo2", {"lifo": True}),
            ("high fifo", {"priority": 1}),
            ("high lifo", {"priority": 1, "lifo": True}),
            ("low lifo", {"priority": -1, "lifo": True}),
            ("low fifo", {"priority": -1}),
        ):
            queue.add(name, **options)
        assert order(manager) == [
            "high lifo",
            "high fifo",
            "lifo2",
            "lifo1",
            "fifo1",
            "fifo2",
            "low lifo",
            "low fifo",
        ]


def test_released_jobs_take_their_old_places(clock: VirtualClock) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        for n in range(4):
            queue.add(f"fifo{n}")
            queue.add(f"lifo{n}", lifo=True)
            queue.add(f"high{n}", priority=3)
        expected = [job.name for job in manager.pull_batch("mail", 100)]
        for job in queue.get_jobs("active"):
            held = manager._state.index[job.id].delivery
            assert manager.release(job.id, token=held.token)
        queue.add("last")
        assert order(manager) == [*expected, "last"]
