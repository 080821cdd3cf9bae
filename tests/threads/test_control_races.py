"""Verbs from outside against pull and ack, on real threads: each job ends one way, once."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue_py import (
    Job,
    JobNotFoundError,
    JobStateError,
    LockError,
    ManagerConfig,
    Queue,
    QueueManager,
    Worker,
)
from bunqueue_py.ops.query import check

TIMEOUT = 30


@pytest.fixture(autouse=True)
def busy_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def queue() -> Iterator[Queue]:
    with QueueManager(background=False, config=ManagerConfig(shards=1)) as manager:
        yield Queue("q", manager)
        check(manager._state)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Runs each on a thread of its own, all from one moment; returns what they return or raise."""
    start = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        start.wait(TIMEOUT)
        try:
            answers[i] = calls[i]()
        except Exception as error:
            answers[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    return answers


def run_one(queue: Queue) -> str | None:
    """Pulls a job and acks it; its id if the ack was applied."""
    manager: Any = queue.manager
    job = manager.pull(queue)
    if job is None:
        return None
    return job.id if manager.ack(job, "done").applied else "not applied"


def ended_by(queue: Queue, job: Job, ran: str | None, answer: Any) -> str:
    """Who had the job; asserts that it was one alone and that the books say so."""
    assert not isinstance(ran, Exception), ran
    state = queue.manager.get_job(job.id)
    if ran is not None:
        assert ran == job.id, "an ack was lost"
    if isinstance(answer, JobStateError):
        assert ran == job.id or "active" in str(answer)
        return "worker"
    assert not isinstance(answer, Exception), answer
    return "both" if ran is not None and state is None else "verb"


@pytest.mark.parametrize("rounds", [pytest.param(150), pytest.param(1000, marks=pytest.mark.slow)])
def test_a_job_that_is_removed_while_it_is_pulled_and_acked_is_never_both(
    queue: Queue, rounds: int
) -> None:
    """B136: refused while active; removed before (and never run) or after (as a completed job)."""
    ends: Counter[str] = Counter()
    for _ in range(rounds):
        job = queue.add("job")
        ran, answer = together(lambda: run_one(queue), lambda job=job: queue.remove(job))  # type: ignore[misc]
        who = ended_by(queue, job, ran, answer)
        ends[who] += 1
        if who == "worker":
            assert queue.manager.get_job(job.id).state == "completed"  # type: ignore[union-attr]
            assert queue.remove(job)
        assert queue.counts().total == 0
        if who == "verb" and ran is None:
            with pytest.raises(JobNotFoundError):
                job.result(timeout=0)
        else:
            assert job.result(timeout=0) == "done"
    assert ends.total() == rounds


@pytest.mark.parametrize("rounds", [pytest.param(150), pytest.param(1000, marks=pytest.mark.slow)])
def test_a_job_that_is_discarded_while_it_is_pulled_has_run_or_is_a_dead_letter(
    queue: Queue, rounds: int
) -> None:
    for _ in range(rounds):
        job = queue.add("job")
        ran, answer = together(lambda: run_one(queue), lambda job=job: queue.discard(job))  # type: ignore[misc]
        assert (ran == job.id) is isinstance(answer, JobStateError)
        assert (ran is None) is (answer is True)
        state = queue.manager.get_job(job.id).state  # type: ignore[union-attr]
        assert state == ("completed" if ran else "failed")
        queue.remove(job)


@pytest.mark.parametrize("rounds", [pytest.param(150), pytest.param(1000, marks=pytest.mark.slow)])
def test_a_job_that_is_cleaned_while_it_is_pulled_has_run_or_is_gone(
    queue: Queue, rounds: int
) -> None:
    for _ in range(rounds):
        job = queue.add("job")
        ran, answer = together(lambda: run_one(queue), lambda: queue.clean(0, state="waiting"))
        assert (ran == job.id) is (answer == [])
        assert (ran is None) is (answer == [job.id])
        queue.clean(0, state="completed")
        assert queue.counts().total == 0


def test_a_job_is_promoted_once_however_many_try(queue: Queue) -> None:
    for _ in range(60):
        job = queue.add("job", delay=3600)
        answers = together(*[lambda job=job: queue.promote(job)] * 3, lambda: queue.promote_all())  # type: ignore[misc]
        assert sum(map(int, answers)) == 1
        assert run_one(queue) == job.id
        assert run_one(queue) is None


@pytest.mark.parametrize("wake", ["promote", "promote_all", "change_delay"])
def test_a_promoted_job_reaches_a_thread_that_waits(queue: Queue, wake: str) -> None:
    """SPEC 4: promote and change of delay wake as many as there are jobs."""
    manager: Any = queue.manager
    got: list[Job | None] = []
    threads = [
        threading.Thread(target=lambda: got.append(manager.pull(queue, timeout=TIMEOUT)))
        for _ in range(3)
    ]
    jobs = [queue.add("job", delay=3600) for _ in threads]
    for n, thread in enumerate(threads, 1):
        thread.start()
        while len(manager._state.queues["q"].waiters) < n:
            threading.Event().wait(0)
    if wake == "promote_all":
        assert queue.promote_all() == 3
    else:
        for job in jobs:
            assert queue.promote(job) if wake == "promote" else queue.change_delay(job, 0)
    for thread in threads:
        thread.join(TIMEOUT)
    assert sorted(job.id for job in got if job) == sorted(job.id for job in jobs)


@pytest.mark.parametrize("jobs", [pytest.param(300), pytest.param(3000, marks=pytest.mark.slow)])
def test_verbs_at_random_lose_and_double_no_job(queue: Queue, jobs: int) -> None:
    """B107, B136: everything at once, and a walk that must not see a job twice."""
    manager: Any = queue.manager
    added = queue.add_bulk([("job", n) for n in range(jobs)])
    ids = [job.id for job in added]
    left = threading.Event()
    ran: Counter[str] = Counter()
    gone: set[str] = set()

    def work() -> None:
        while not left.is_set():
            job = manager.pull(queue)
            if job is not None:
                try:
                    job.update_data(["seen by", job.attempt])
                    assert manager.ack(job, 1).applied
                    ran[job.id] += 1
                except LockError as error:
                    raise AssertionError("a delivery was taken away") from error

    def meddle() -> None:
        dice = random.Random(1)
        verbs: list[Callable[[str], Any]] = [
            queue.promote,
            lambda job_id: queue.change_delay(job_id, dice.choice([0, 0.001, 9999])),
            lambda job_id: queue.change_priority(job_id, dice.randint(-3, 3)),
            queue.discard,
            lambda job_id: queue.remove(job_id) and gone.add(job_id),
            lambda job_id: gone.update(queue.clean(9999, state="completed")),
            lambda job_id: queue.promote_all(limit=5),
        ]
        for _ in range(3 * jobs):
            try:
                dice.choice(verbs)(dice.choice(ids))
            except (JobStateError, JobNotFoundError):
                pass

    def look() -> None:
        while not left.is_set():
            seen = Counter(job.id for job in queue.iter_jobs())
            assert not seen or max(seen.values()) == 1
            assert queue.counts().total <= jobs

    def conduct() -> None:
        meddle()
        queue.promote_all()
        while len(queue) or queue.counts().active:
            queue.promote_all()
        left.set()

    def safely(call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                call()
            except BaseException:
                left.set()
                raise

        return run

    answers = together(*map(safely, (work, work, look, conduct)))
    assert answers == [None] * 4
    assert not ran or max(ran.values()) == 1
    counts = queue.counts()
    assert counts.total == counts.completed + counts.failed == jobs - len(gone)
    assert {job.id for job in queue.iter_jobs("completed")} <= set(ran)


def pause_at_random(seed: int) -> None:
    """Three threads pause, resume, and close and start workers, while handlers are under way."""
    with QueueManager(config=ManagerConfig(shards=1)) as manager:
        queue = Queue("q", manager)
        ran: Counter[int] = Counter()
        gate = threading.Event()

        def handler(job: Job) -> None:
            if job.name == "long":
                gate.wait(TIMEOUT)
            ran[job.data] += 1

        def disturb(number: int) -> None:
            dice = random.Random(seed * 3 + number)
            worker = Worker(queue, handler, concurrency=2).start()
            for _ in range(dice.randrange(4, 12)):
                act = dice.choice(("pause", "resume", "close", "look"))
                if act == "pause":
                    queue.pause()
                elif act == "resume":
                    queue.resume()
                elif act == "look":
                    assert queue.is_paused in (True, False)
                else:
                    # its handlers may be under way: those are given back, and run once more
                    worker.close(force=True)
                    assert worker.is_closed
                    assert not worker.is_running
                    worker = Worker(queue, handler, concurrency=2).start()
            worker.close(force=True)

        jobs = [queue.add("long" if i % 4 == 0 else "short", i) for i in range(12)]
        answers = together(*(lambda number=number: disturb(number) for number in range(3)))
        assert answers == [None] * 3, answers
        gate.set()
        queue.pause()
        assert queue.is_paused
        queue.resume()
        assert not queue.is_paused
        with Worker(queue, handler):
            for job in jobs:
                job.result(timeout=TIMEOUT)
        assert set(ran) == set(range(12))
        check(manager._state)


def test_after_the_last_resume_jobs_flow_whoever_paused_and_closed_before() -> None:
    # B098
    for seed in range(3):
        pause_at_random(seed)


@pytest.mark.slow
def test_after_the_last_resume_jobs_flow_in_every_order(
    slow_rounds: Callable[[int, int], int],
) -> None:
    # B098, its 500 seeds
    for seed in range(slow_rounds(20, 500)):
        pause_at_random(seed)
