"""Many threads push, pull, ack, fail and give back at once: every job ends exactly once."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Ack,
    Backoff,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobStateError,
    LockError,
    ManagerConfig,
    Queue,
    QueueManager,
    WaitTimeoutError,
    Worker,
)
from bunqueue_py.ops.query import check

TIMEOUT = 10.0
PUSHERS = PULLERS = 8
QUICK = 500


@pytest.fixture(autouse=True)
def busy_switching() -> Iterator[None]:
    """Threads take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_together(jobs: Sequence[Callable[[], Any]], timeout: float) -> None:
    """Runs all at once, each on its thread; raises the first error, or says who hangs."""
    barrier = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def guarded(fn: Callable[[], Any]) -> None:
        try:
            barrier.wait(TIMEOUT)
            fn()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(fn,), daemon=True) for fn in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        if errors:
            raise errors[0]
        assert not thread.is_alive(), "a thread hangs"


class Rush:
    """`total` jobs, eight threads that push them and eight that work them off.

    `settled` has what each puller acked, `stopped` is set once all are, by whoever acks the last.
    """

    def __init__(self, total: int, *, queues: int = 1) -> None:
        self.total = total - total % PUSHERS
        self.manager = QueueManager(config=ManagerConfig(keep_completed=None, keep_results=total))
        self.queues = [f"q{i}" for i in range(queues)]
        self.pushed: list[list[str]] = [[] for _ in range(PUSHERS)]
        self.settled: list[list[tuple[str, int]]] = [[] for _ in range(PULLERS)]
        self.stopped = threading.Event()
        self._left = self.total
        self._lock = threading.Lock()

    def settle(self, puller: int, done: Sequence[tuple[str, int]]) -> None:
        self.settled[puller].extend(done)
        with self._lock:
            self._left -= len(done)
            if self._left <= 0:
                self.stopped.set()

    def run(
        self, push: Callable[[int, range], None], work: Callable[[int], None], timeout: float
    ) -> None:
        """`push(i, numbers)` pushes those numbers; `work(i)` goes on until `stopped`."""
        share = self.total // PUSHERS

        def pusher(i: int) -> Callable[[], None]:
            return lambda: push(i, range(i * share, (i + 1) * share))

        def puller(i: int) -> Callable[[], None]:
            return lambda: work(i)

        with self.manager:
            run_together(
                [pusher(i) for i in range(PUSHERS)] + [puller(i) for i in range(PULLERS)], timeout
            )
            self.balance()

    def balance(self) -> None:
        check(self.manager._state)
        pushed = [job_id for ids in self.pushed for job_id in ids]
        settled = [job_id for done in self.settled for job_id, _ in done]
        numbers = sorted(n for done in self.settled for _, n in done)
        assert len(pushed) == len(set(pushed)) == self.total
        assert not [job_id for job_id, n in Counter(settled).items() if n > 1], "acked twice"
        assert set(settled) == set(pushed)
        assert numbers == list(range(self.total)), "a payload is lost or doubled"
        counts = self.manager.counts()
        assert counts.completed == counts.total == self.total

    # -- ways to work ------------------------------------------------------------------------

    def push_singly(self, i: int, numbers: range) -> None:
        for n in numbers:
            queue = self.queues[n % len(self.queues)]
            job = self.manager.push(queue, n, priority=n % 3 - 1, lifo=n % 5 == 0)
            self.pushed[i].append(job.id)

    def push_in_batches(self, i: int, numbers: range) -> None:
        for start in range(numbers.start, numbers.stop, 50):
            batch = range(start, min(start + 50, numbers.stop))
            queue = self.queues[start // 50 % len(self.queues)]
            jobs = self.manager.push_batch(queue, [JobSpec("n", n, priority=n % 2) for n in batch])
            assert [job.data for job in jobs] == list(batch)
            self.pushed[i] += [job.id for job in jobs]

    def work_without_waiting(self, i: int) -> None:
        turn = i
        while not self.stopped.is_set():
            turn += 1
            job = self.manager.pull(self.queues[turn % len(self.queues)])
            if job is not None:
                assert self.manager.ack(job, job.data).applied
                self.settle(i, [(job.id, job.data)])

    def work_blocked(self, i: int) -> None:
        while not self.stopped.is_set():
            job = self.manager.pull(self.queues[0], timeout=0.05)
            if job is not None:
                assert self.manager.ack(job).applied
                self.settle(i, [(job.id, job.data)])

    def work_in_batches(self, i: int) -> None:
        turn = i
        while not self.stopped.is_set():
            turn += 1
            queue = self.queues[turn % len(self.queues)]
            jobs = self.manager.pull_batch(queue, 20, timeout=0.01)
            outcomes = self.manager.ack_batch([Ack(job, job.data) for job in jobs])
            assert all(outcome.applied for outcome in outcomes)
            self.settle(i, [(job.id, job.data) for job in jobs])

    def work_with_second_thoughts(self, i: int) -> None:
        """Gives some back, fails some once, and acks the rest."""
        turn = i
        while not self.stopped.is_set():
            job = self.manager.pull(self.queues[0], timeout=0.05)
            if job is None:
                continue
            turn += 1
            if turn % 7 == 0:
                assert self.manager.release(job)
                assert not self.manager.ack(job).applied
            elif turn % 5 == 0 and job.attempt == 1:
                assert self.manager.fail(job, "once").applied
                assert not self.manager.fail(job, "twice").applied
            else:
                assert self.manager.heartbeat(job)
                assert self.manager.ack(job).applied
                assert self.manager.ack(job).reason == "already_finalized"
                self.settle(i, [(job.id, job.data)])

    def push_retriable(self, i: int, numbers: range) -> None:
        for n in numbers:
            options = {"backoff": Backoff.fixed(0)} if n % 2 else {"backoff": Backoff.fixed(0.002)}
            job = self.manager.push("q0", n, attempts=3, **options)
            self.pushed[i].append(job.id)


def rush(total: int, push: str, work: str, *, queues: int = 1, timeout: float = TIMEOUT) -> None:
    race = Rush(total, queues=queues)
    race.run(getattr(race, push), getattr(race, work), timeout)


FORMS = [
    ("push_singly", "work_without_waiting", 1),
    ("push_singly", "work_without_waiting", 5),
    ("push_singly", "work_blocked", 1),
    ("push_in_batches", "work_in_batches", 1),
    ("push_in_batches", "work_in_batches", 5),
    ("push_in_batches", "work_blocked", 1),
    ("push_retriable", "work_with_second_thoughts", 1),
]
IDS = [f"{push}-{work}-{queues}" for push, work, queues in FORMS]


@pytest.mark.parametrize(("push", "work", "queues"), FORMS, ids=IDS)
def test_every_job_is_delivered_and_acked_exactly_once(push: str, work: str, queues: int) -> None:
    rush(QUICK, push, work, queues=queues)


def test_five_thousand_jobs_are_delivered_and_acked_exactly_once() -> None:
    rush(10 * QUICK, "push_in_batches", "work_without_waiting")


@pytest.mark.slow
@pytest.mark.parametrize(("push", "work", "queues"), FORMS, ids=IDS)
def test_every_one_of_very_many_jobs_is_delivered_and_acked_exactly_once(
    push: str, work: str, queues: int, slow_rounds: Callable[[int, int], int]
) -> None:
    rush(slow_rounds(20_000, 100_000), push, work, queues=queues, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [1, 7, "auto"])
def test_workers_run_every_job_exactly_once(
    prefetch: Any, slow_rounds: Callable[[int, int], int]
) -> None:
    """Three workers of four threads; some handlers fail once, pushers go on meanwhile."""
    total = slow_rounds(5_000, 20_000) // 8 * 8
    ran: list[tuple[int, int]] = []

    def handler(job: Any) -> int:
        ran.append((job.data, job.attempt))
        if job.data % 50 == 0 and job.attempt == 1:
            raise ValueError("once")
        return int(job.data)

    with QueueManager(config=ManagerConfig(keep_completed=None)) as manager:
        queue = Queue("q", manager, defaults={"backoff": Backoff.fixed(0)})

        def pusher(i: int) -> Callable[[], None]:
            return lambda: [queue.add("n", n) for n in range(i, total, 8)]

        workers = [Worker(queue, handler, concurrency=4, prefetch=prefetch) for _ in range(3)]
        for worker in workers:
            worker.start()
        run_together([pusher(i) for i in range(8)], 600)
        queue.wait_until_empty(timeout=600)
        for worker in workers:
            assert worker.close()
        check(manager._state)
        expected = [(n, 1) for n in range(total)] + [(n, 2) for n in range(0, total, 50)]
        assert sorted(ran) == sorted(expected)
        assert queue.counts().completed == queue.counts().total == total


@pytest.mark.parametrize("threads", [8, 16])
def test_one_custom_id_pushed_by_many_threads_at_once_is_one_job(threads: int) -> None:
    with QueueManager() as manager:
        jobs: list[Any] = []

        def push() -> None:
            for n in range(20):
                jobs.append(manager.push("q", n, custom_id=f"id-{n}"))

        run_together([push] * threads, TIMEOUT)
        assert len({job.id for job in jobs}) == 20
        assert sum(not job.duplicate for job in jobs) == 20
        assert manager.counts("q").waiting == 20
        check(manager._state)


def test_many_acks_of_one_delivery_apply_once() -> None:
    with QueueManager() as manager:
        outcomes: list[Any] = []
        for n in range(20):
            manager.push("q", n)
            job = manager.pull("q")
            assert job is not None
            run_together(
                [lambda job=job: outcomes.append(manager.ack(job, job.data))] * 4  # type: ignore[misc]
                + [lambda job=job: outcomes.append(manager.fail(job, "x"))] * 4,  # type: ignore[misc]
                TIMEOUT,
            )
            assert sum(outcome.applied for outcome in outcomes) == n + 1
        check(manager._state)


class Everything:
    """Every public method of a queue and its manager, in an order that depends on the thread."""

    def __init__(self, queue: Queue, manager: QueueManager) -> None:
        self.queue = queue
        self.manager = manager
        self.accepted = [0] * 16
        self.calls: list[Callable[[int], Any]] = [
            self.add,
            self.add_many,
            self.work,
            self.work_many,
            self.fail,
            self.look,
            self.control,
            self.letters,
            self.take_away,
            self.wait,
        ]

    def add(self, i: int) -> None:
        self.queue.add("one", i, priority=i % 3, attempts=1 + i % 2, backoff=0)
        self.queue.add("later", i, delay=0.001, tags=["t"])
        job = self.queue.add("named", i, custom_id=f"c{i % 4}")
        self.accepted[i] += 2 + (not job.duplicate)

    def add_many(self, i: int) -> None:
        self.queue.add_bulk([("a", 1), JobSpec("b", 2, lifo=True), JobSpec("c", 3, ttl=60)])
        self.manager.push_batch(self.queue, [("d", 4)])
        self.accepted[i] += 4

    def work(self, i: int) -> None:
        job = self.manager.pull(self.queue, timeout=0.001)
        if job is not None:
            self.manager.heartbeat(job)
            self.manager.extend_lock(job, 60)
            try:
                job.update_progress(50, "half")
            except (LockError, JobNotFoundError):
                pass
            self.manager.ack(job, {"by": i})

    def work_many(self, i: int) -> None:
        jobs = self.manager.pull_batch(self.queue, 3)
        self.manager.heartbeat_batch(jobs)
        self.manager.ack_batch([Ack(job, i) for job in jobs[1:]])
        for job in jobs[:1]:
            self.manager.release(job, delay=0.001)

    def fail(self, i: int) -> None:
        job = self.manager.pull(self.queue)
        if job is not None:
            self.manager.fail(job, ValueError("x"), unrecoverable=i % 2 == 0)

    def look(self, i: int) -> None:
        jobs = self.queue.get_jobs(limit=5, newest_first=True)
        for job in jobs:
            self.queue.get_job(job.id)
            self.manager.get_state(job)
            self.manager.get_result(job)
            try:
                job.refresh().to_dict()
            except JobNotFoundError:
                pass
        self.queue.get_job(custom_id=f"c{i % 4}")
        self.queue.get_jobs(["active", "failed"], with_data=False)
        assert len(self.queue) >= 0
        assert self.queue.counts().total >= 0
        assert self.manager.counts().total >= 0
        assert self.manager.queues() == ["q"]
        self.manager.next_due()

    def control(self, i: int) -> None:
        self.queue.pause()
        _ = self.queue.is_paused
        self.queue.resume()

    def letters(self, i: int) -> None:
        assert len(self.queue.dlq) >= 0
        for entry in self.queue.dlq.entries(limit=2):
            try:
                (self.queue.dlq.retry if i % 2 else self.queue.dlq.remove)(entry.job)
            except (JobNotFoundError, JobStateError):
                pass

    def take_away(self, i: int) -> None:
        for job in self.queue.get_jobs(limit=2):
            try:
                (self.queue.remove if i % 2 else self.queue.retry)(job)
            except (JobNotFoundError, JobStateError):
                pass
        if i == 0:
            self.queue.drain(delayed=False)
        if i == 1:
            try:
                self.queue.obliterate(force=False)
            except JobStateError:
                pass

    def wait(self, i: int) -> None:
        for job in self.queue.get_jobs("active", limit=1):
            try:
                job.result(timeout=0.001)
            except (WaitTimeoutError, JobNotFoundError, JobFailedError):
                pass
        try:
            self.queue.wait_until_empty(timeout=0.001)
        except WaitTimeoutError:
            pass


def use_everything(rounds: int, timeout: float) -> None:
    heard: list[int] = []
    with QueueManager() as manager:
        queue = Queue("q", manager, defaults={"backoff": Backoff.fixed(0)})
        everything = Everything(queue, manager)

        def listener(event: Any) -> None:
            heard.append(event.sequence)
            if event.type == "active":
                manager.get_job(event.job_id)

        unsubscribe = manager.events.subscribe(listener, queue)

        def user(i: int) -> Callable[[], None]:
            def run() -> None:
                for n in range(rounds):
                    for call in range(len(everything.calls)):
                        everything.calls[(call * 3 + i + n) % len(everything.calls)](i)

            return run

        run_together([user(i) for i in range(16)], timeout)
        check(manager._state)
        with Worker(queue, {"one": lambda job: queue.add("from a handler"), "*": lambda job: 1}):
            queue.wait_until_empty(timeout=timeout)
        check(manager._state)
        counts = queue.counts()
        assert counts.total == counts.completed + counts.failed
        unsubscribe()
    assert heard == list(range(1, len(heard) + 1)), "the listener missed an event"


def test_one_queue_object_serves_sixteen_threads_with_every_method() -> None:
    """B034, as far as memory goes: with a listener that reads and a handler that pushes."""
    use_everything(1, TIMEOUT)


@pytest.mark.slow
def test_one_queue_object_serves_sixteen_threads_with_every_method_for_long(
    slow_rounds: Callable[[int, int], int],
) -> None:
    """B034, the long form."""
    use_everything(slow_rounds(20, 100), 300)


@pytest.mark.slow
def test_24_threads_at_one_file_get_every_job_exactly_once(tmp_path: Path) -> None:
    # B011; one process owns a file, so all of them are threads of it
    with QueueManager(tmp_path / "jobs", config=ManagerConfig(keep_completed=None)) as manager:
        jobs = manager.push_batch("q", [("n", i) for i in range(5_000)])
        acked: list[list[str]] = [[] for _ in range(24)]

        def pull_and_ack(mine: list[str]) -> None:
            while (job := manager.pull("q")) is not None:
                assert manager.ack(job).applied
                mine.append(job.id)

        run_together([partial(pull_and_ack, mine) for mine in acked], 60)
        delivered = Counter(job_id for mine in acked for job_id in mine)
        assert delivered == Counter(job.id for job in jobs)
        manager.flush(timeout=60)
        check(manager._state)
    with QueueManager.open_readonly(tmp_path / "jobs") as view:
        assert view.counts("q").completed == 5_000
