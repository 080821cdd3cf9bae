"""What happens when the machine does not do its part: no job is lost, none runs twice because of
it, `health()` tells the truth, and all is well again by itself.

Each test has a short form (BUNQUEUE_SLOW=short), in which it lasts seconds instead of a minute.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Ack,
    Job,
    JobEvent,
    JobSpec,
    JobState,
    ManagerConfig,
    Queue,
    QueueManager,
    StorageError,
    Worker,
)
from bunqueue_py.clock import SystemClock
from bunqueue_py.ops.query import check
from bunqueue_py.stores.alarm import NEVER
from bunqueue_py.tasks.scheduler import Report
from bunqueue_py.testing import VirtualClock
from tests.faulty_disk import Disk, on_disk
from tests.threads.patience import until

pytestmark = pytest.mark.slow

Rounds = Callable[[int, int], int]
PATIENCE = 120


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "jobs.db"


class Runs:
    """Counts the runs of each job."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        with self._lock:
            self.of[job.id] += 1

    def all_once(self, jobs: list[Job]) -> None:
        assert set(self.of) == {job.id for job in jobs}, "a job never ran"
        assert set(self.of.values()) == {1}, "a job ran twice"


def untouched(jobs: list[Job]) -> None:
    """No attempt and no stall was charged, and every one has completed."""
    for job in jobs:
        seen = job.refresh()
        assert (seen.state, seen.attempts_made, seen.stall_count) == ("completed", 0, 0)


# -- a process that stands still -------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="PyDLL(None) is the C library")
def test_a_handler_that_holds_the_interpreter_for_long(
    storage: Path | None, slow_rounds: Rounds
) -> None:
    """B013: a C call that never lets go of the GIL freezes heartbeats, sweeps and everybody."""
    seconds, lease = slow_rounds(3, 40), slow_rounds(1, 30)
    library = ctypes.PyDLL(None)
    runs, begun, go = Runs(), threading.Semaphore(0), threading.Event()
    heard: list[JobEvent] = []
    config = ManagerConfig(scheduler_late_after=1)

    def handler(job: Job) -> None:
        runs.add(job)
        begun.release()
        if job.name == "greedy":
            library.sleep(seconds)
        else:
            assert go.wait(PATIENCE)

    with QueueManager(storage, config=config) as manager:
        manager.events.subscribe(heard.append, types="health")
        queue = Queue("q", manager)
        with Worker(queue, handler, concurrency=4, lock_duration=lease):
            jobs = [queue.add("patient") for _ in range(3)]
            for _ in jobs:
                assert begun.acquire(timeout=PATIENCE)
            jobs.append(queue.add("greedy"))
            jobs[-1].result(timeout=PATIENCE)
            time.sleep(lease * 1.5)  # nobody is lost afterwards either
            go.set()
            for job in jobs:
                job.result(timeout=PATIENCE)
        runs.all_once(jobs)
        untouched(jobs)
        until(lambda: manager.health().ok, "all is well again")
        assert all(task.failures == 0 for task in manager.health().tasks)
    assert [event.reason for event in heard][:1] == ["scheduler_late"]


STOPPED = r"""
    import sys, threading
    from bunqueue_py import Queue, QueueManager, Worker
    lease, path = float(sys.argv[1]), sys.argv[2] or None
    runs, go = [], threading.Event()

    def handler(job):
        runs.append(job.id)
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        assert go.wait(120)

    with QueueManager(path) as manager:
        queue = Queue("q", manager)
        jobs = [queue.add("n") for _ in range(4)]
        with Worker(queue, handler, concurrency=4, lock_duration=lease):
            sys.stdin.readline()
            threading.Event().wait(lease * 1.5)
            go.set()
            for job in jobs:
                job.result(timeout=120)
        seen = [job.refresh() for job in jobs]
        print("runs", len(runs), "stalls", sum(job.stall_count for job in seen))
        stale = [info.stale for info in manager.workers.list()]
        print("workers", stale, manager.health().problems)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_process_that_is_stopped_in_the_middle_of_its_jobs(
    storage: Path | None, slow_rounds: Rounds
) -> None:
    """A laptop that sleeps, a container that is frozen: whoever was silent was frozen too."""
    seconds, lease = slow_rounds(4, 60), slow_rounds(1, 30)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STOPPED), str(lease), str(storage or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(4):
            assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        child.send_signal(signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        said, _ = child.communicate(timeout=PATIENCE * 2)
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
    assert said.splitlines() == ["runs 4 stalls 0", "workers [] ()"]


class JumpingClock(SystemClock):
    """Its wall clock is set by hand; its timeline is the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.offset_ms = 0
        real = self.wall_ms
        self.wall_ms = lambda: real() + self.offset_ms


def test_a_wall_clock_that_is_set_a_year_forward_and_back(
    storage: Path | None, slow_rounds: Rounds
) -> None:
    rounds = slow_rounds(2, 20)
    clock, runs = JumpingClock(), Runs()
    begun, go = threading.Semaphore(0), threading.Event()
    year = 365 * 86_400_000
    stalls: list[JobEvent] = []

    def handler(job: Job) -> None:
        runs.add(job)
        begun.release()
        assert job.name == "quick" or go.wait(PATIENCE)

    with QueueManager(storage, clock=clock) as manager:
        manager.events.subscribe(stalls.append, types=("stalled", "failed", "health"))
        queue = Queue("q", manager)
        # long enough for a machine that does other things: half a second is lost beside them
        lease = slow_rounds(1, 3)
        with Worker(queue, handler, concurrency=4, lock_duration=lease):
            jobs = [queue.add("long", timeout=600) for _ in range(2)]
            jobs += [queue.add("quick", delay=0.2 * i, ttl=600) for i in range(5)]
            later = queue.add("later", delay=3600)
            for _ in range(rounds):
                for clock.offset_ms in (year, 0, -year, 0):
                    jobs.append(queue.add("quick"))
                    time.sleep(0.3)
            go.set()
            for job in jobs:
                job.result(timeout=PATIENCE)
        runs.all_once(jobs)
        untouched(jobs)
        assert later.refresh().state == "delayed"
        assert stalls == []
        assert manager.health().ok


# -- very many at once -----------------------------------------------------------------------------


def step(manager: QueueManager) -> None:
    """Passes of the scheduler until nothing is due now."""
    now = manager._state.now()
    manager.run_pending()
    while manager._state.alarm.due_ms <= now:
        manager.run_pending()


def test_ten_thousand_leases_that_expire_at_once(storage: Path | None) -> None:
    clock, n = VirtualClock(), 10_000
    with QueueManager(storage, clock=clock, background=False) as manager:
        queue = Queue("q", manager, defaults={"backoff": 5})
        jobs = queue.add_bulk([("n", i) for i in range(n)])
        assert len(manager.pull_batch(queue, n, lock_duration=30)) == n
        clock.advance(seconds=30)
        passes = 0
        while manager._state.alarm.due_ms <= clock.timeline_ms():
            manager.run_pending()
            passes += 1
            # others get their turn between two passes
            other = manager.push("other")
            held = manager.pull("other")
            assert held is not None
            assert held.id == other.id
            assert manager.ack(held).applied
        assert passes > 1, "one pass is bounded"
        counts = queue.counts()
        assert (counts.delayed, counts.active, counts.total) == (n, 0, n)
        clock.advance(seconds=10)
        again = manager.pull_batch(queue, n + 1)
        assert sorted(job.id for job in again) == sorted(job.id for job in jobs)
        assert {(job.attempts_made, job.stall_count) for job in again} == {(1, 1)}
        assert all(outcome.applied for outcome in manager.ack_batch(_acks(again)))
        assert queue.counts().completed == n
        check(manager._state)
        assert manager.health().ok


def _acks(jobs: list[Job]) -> Iterator[Any]:
    return (Ack(job) for job in jobs)


def test_very_many_jobs_that_fall_due_at_once_while_others_are_pulled(
    storage: Path | None, slow_rounds: Rounds
) -> None:
    """B140: no pull has to move them all."""
    n = slow_rounds(20_000, 1_000_000)
    clock = VirtualClock()
    config = ManagerConfig(shards=1, keep_completed=1000)
    with QueueManager(storage, clock=clock, background=False, config=config) as manager:
        queue, other = Queue("q", manager), Queue("other", manager)
        for first in range(0, n, 100_000):
            many = range(first, min(n, first + 100_000))
            manager.push_batch(queue, (JobSpec("n", i, delay=60) for i in many))
        other.add_bulk([("n", None)] * 200)
        clock.advance(seconds=60)
        state = manager._state.queues["q"]
        seen: set[str] = set()
        while True:
            before = len(state.delayed.members)
            jobs = manager.pull_batch(queue, 1 if len(seen) < 20 else 400)
            moved = before - len(state.delayed.members)
            assert moved <= 512 * (1 + len(jobs)), "a pull moves a bounded number"
            if not jobs:
                break
            assert seen.isdisjoint(job.id for job in jobs)
            seen.update(job.id for job in jobs)
            manager.ack_batch(_acks(jobs))
            held = manager.pull(other)
            assert held is None or manager.ack(held).applied
            step(manager)
        assert len(seen) == n
        assert queue.counts().total == queue.counts().completed
        check(manager._state)


# -- parts that break ------------------------------------------------------------------------------


def work(
    manager: QueueManager, n: int, *, concurrency: int = 4, result: Any = None
) -> tuple[Queue, list[Job], Runs]:
    """Runs n jobs on threads while they are added, and waits for all of them."""
    runs = Runs()

    def handler(job: Job) -> Any:
        runs.add(job)
        return result

    queue = Queue("work", manager)
    with Worker(queue, handler, concurrency=concurrency):
        jobs = [queue.add("n", i) for i in range(n)]
        queue.wait_until_empty(timeout=PATIENCE)
    return queue, jobs, runs


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_listener_that_raises_in_each_event(
    storage: Path | None, slow_rounds: Rounds, error: type[BaseException]
) -> None:
    heard: list[JobEvent] = []

    def raises(event: JobEvent) -> None:
        raise error("each time")

    n = slow_rounds(300, 20_000)
    with QueueManager(storage) as manager:
        manager.events.subscribe(raises)
        manager.events.subscribe(heard.append, types="completed")
        _, jobs, runs = work(manager, n)
        runs.all_once(jobs)
        until(lambda: len(heard) == n, "the other listener hears everything")
        assert manager.health().ok
        assert threading.active_count() < 20


@pytest.mark.parametrize("name", ["deadlines", "clean-up", "workers", "checks"])
def test_a_task_that_raises_for_ever(storage: Path | None, slow_rounds: Rounds, name: str) -> None:
    config = ManagerConfig(
        task_retry_delay=0.1, circuit_failures=3, circuit_retry_delay=0.2, check_interval=1
    )
    heard: list[JobEvent] = []
    with QueueManager(storage, config=config) as manager:
        manager.events.subscribe(heard.append, types="health")
        task = next(task for task in manager._loop._tasks if task.name == name)
        sound, broken = task.tick, threading.Event()
        broken.set()

        def tick() -> Report:
            if broken.is_set():
                raise RuntimeError("for ever")
            return sound()

        task.tick = tick
        if task.duty is not None:
            task.duty.arm(manager._state.now())
        _, jobs, runs = work(manager, slow_rounds(200, 20_000))
        runs.all_once(jobs)
        untouched(jobs[:50])
        lines = {line.name: line for line in manager.health().tasks}

        def opened() -> bool:
            lines.update({line.name: line for line in manager.health().tasks})
            return lines[name].circuit == "open"

        until(opened, "the circuit opens")
        assert not manager.health().ok
        assert all(line.failures == 0 for other, line in lines.items() if other != name)
        broken.clear()
        until(lambda: manager.health().ok, "it recovers by itself")
        until(lambda: len(heard) == 2, "both are told")
    assert [event.reason for event in heard] == ["task_failing", "task_recovered"]


def test_a_storage_that_fails_for_a_minute(tmp_path: Path, disk: Disk, slow_rounds: Rounds) -> None:
    seconds = slow_rounds(2, 60)
    path, runs = tmp_path / "jobs.db", Runs()
    heard: list[JobEvent] = []
    with QueueManager(path) as manager:
        manager.events.subscribe(heard.append, types="health")
        queue = Queue("q", manager)
        jobs = []
        with Worker(queue, runs.add, concurrency=4):
            jobs += [queue.add("n") for _ in range(50)]
            manager.flush(timeout=PATIENCE)
            disk.fail()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                jobs.append(queue.add("n"))
                time.sleep(0.005)
            until(lambda: not manager.health().ok, "health tells")
            status = manager.health().storage
            assert status.failing_since is not None
            assert "disk I/O error" in str(status.error)
            assert status.rows_waiting > 0
            with pytest.raises(StorageError):
                queue.add("n", durable=True)
            queue.wait_until_empty(timeout=PATIENCE)  # jobs run on meanwhile
            disk.mend()
            manager.flush(timeout=PATIENCE)
        runs.all_once(jobs)
        untouched(jobs)
        assert manager.health().ok
        until(lambda: len(heard) == 2, "both turns are told")
        assert [event.reason for event in heard] == ["storage_failing", "storage_recovered"]
    assert set(on_disk(path)) == {job.id for job in jobs}


@pytest.mark.parametrize("keep", [100, 0, None])
def test_memory_bounds_that_are_reached_while_all_workers_run(
    storage: Path | None, slow_rounds: Rounds, keep: int | None
) -> None:
    config = ManagerConfig(
        keep_completed=keep, max_completed_bytes=20_000, keep_results=50, cleanup_interval=1
    )
    n = slow_rounds(1500, 50_000)
    with QueueManager(storage, config=config) as manager:
        queue, jobs, runs = work(manager, n, result={"padding": "x" * 100})
        runs.all_once(jobs)
        manager.flush(timeout=PATIENCE)

        def within() -> bool:
            return sum(s.finished_bytes for s in manager._state.shards.shards) <= 20_000

        until(within, "the clean-up has let go what the file had not yet taken")
        if keep is not None:
            assert queue.counts().completed <= keep
        if keep is None and storage is not None:
            assert all(manager.get_state(job) is JobState.COMPLETED for job in jobs[:200])
        assert len(manager._state.results) <= 50
        check(manager._state)
        assert manager.health().ok
        # not that of the job that was added last: other threads' batches may have ended after it
        last = next(reversed(manager._state.results._results))
        assert manager.get_result(last) == {"padding": "x" * 100}, "what was used last is there"


# -- workers that die ------------------------------------------------------------------------------


def test_a_worker_whose_threads_all_die_gives_back_what_it_holds_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing but a fault in the worker's own code could do it."""
    config = ManagerConfig(worker_stale_after=1, worker_removed_after=2)
    heard: list[JobEvent] = []
    with QueueManager(config=config) as manager:
        manager.events.subscribe(heard.append, types=("health", "worker_left"))
        queue = Queue("q", manager)
        job = queue.add("n")
        worker = Worker(queue, lambda job: None, name="ada", concurrency=2)

        def breaks(*arguments: Any, **options: Any) -> Any:
            raise RuntimeError("a fault")

        def takes(slot: Any) -> None:
            manager.pull(queue, owner="ada", lock_duration=3600)
            raise RuntimeError("a fault")

        crew: Any = worker._crew
        crew._round, crew._report = takes, breaks
        monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
        worker.start()
        until(lambda: not crew.card.alive, "both threads have died")
        until(lambda: job.refresh().state == "waiting", "it is given back")
        assert manager.workers.list()[0].name == "ada"
        until(lambda: not manager.workers.list(), "it has left")
        until(lambda: len(heard) >= 2, "it is told of")
        kinds = [(event.type, event.reason) for event in heard]
        assert kinds == [("health", "worker_stale"), ("worker_left", "silent")]
        held = manager.pull(queue)
        assert held is not None
        assert (held.id, held.attempts_made, held.stall_count) == (job.id, 0, 0)
        worker.close()
        assert manager._state.staff.due_ms == NEVER
