"""What a worker has taken and not begun stays within everybody's reach."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Job,
    JobSpec,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueManager,
    Worker,
    get_default_manager,
)
from bunqueue_py.client.crew import GIVE_WAY_MS, Crew
from bunqueue_py.clock import SystemClock
from bunqueue_py.ops.query import check
from bunqueue_py.sync import LockOrderError
from bunqueue_py.testing import VirtualClock
from tests.threads.patience import until

TIMEOUT = 10.0


def warmed_up(queue: Queue, handler: Callable[[Job], Any], **options: Any) -> Worker:
    """A worker that has learned to take many jobs at once."""
    worker = Worker(queue, handler, **options)
    queue.add_bulk([("short", i) for i in range(4000)])
    worker.start()
    queue.wait_until_empty(timeout=TIMEOUT)
    return worker


def test_a_worker_alone_gives_back_what_its_slow_handler_keeps_waiting() -> None:
    """Nobody else waits for a job, and still drain, pause and priorities reach the unstarted."""
    with QueueManager() as manager:
        queue = Queue("q", manager)
        began, go = threading.Event(), threading.Event()

        def handler(job: Job) -> None:
            if job.name == "slow":
                began.set()
                go.wait(TIMEOUT)

        worker = warmed_up(queue, handler)
        queue.pause()
        queue.add_bulk([("slow", 0), *(("low", i) for i in range(100))])
        queue.resume()
        assert began.wait(TIMEOUT)
        back = threading.Event()
        manager.events.subscribe(lambda event: back.set(), types="released")
        for _ in range(1000):
            if queue.counts().active == 1 or back.wait(0.01):
                break
        for _ in range(1000):
            if queue.counts().active == 1:
                break
            threading.Event().wait(0.01)
        assert queue.counts().waiting == 100
        assert queue.drain() == 100
        go.set()
        assert worker.close()
        check(manager._state)


def test_a_paused_queue_begins_none_of_the_jobs_that_wait_in_a_batch() -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        manager.push_batch("q", [("n", i) for i in range(3)])
        backend = manager.backend
        first, second, third = backend.claim("q", 3, 30_000, "w", backend.wait_handle())
        assert backend.begin(second.id, second.token)
        manager.pause("q")
        assert not backend.begin(third.id, third.token)
        assert manager.counts("q").paused == 1
        manager.resume("q")
        again = manager.pull("q")
        assert again is not None
        assert again == third
        assert manager.ack(first).applied
        check(manager._state)


@pytest.mark.parametrize("option", ["ttl", "timeout"])
def test_a_job_whose_time_runs_does_not_wait_in_a_batch(option: str) -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        manager.push("q")
        manager.push("q", **{option: 5})  # type: ignore[arg-type]
        manager.push("q")
        backend = manager.backend
        first = backend.claim("q", 10, 30_000, "w", backend.wait_handle())
        second = backend.claim("q", 10, 30_000, "w", backend.wait_handle())
        assert len(first) == 1
        # it is the first of its batch, so it has begun
        assert backend.begin(second[0].id, second[0].token)
        assert second[0].started_at is not None
        check(manager._state)


class StandingClock(SystemClock):
    """A timeline that stands still, so that all happens in one millisecond; waits are real."""

    def __init__(self) -> None:
        super().__init__()
        now = self.timeline_ms()
        self.timeline_ms = lambda: now


def test_a_release_of_the_owner_knows_what_began_in_the_millisecond_of_its_claim() -> None:
    with QueueManager(clock=StandingClock()) as manager:
        queue = Queue("q", manager)
        began, go = threading.Event(), threading.Event()

        def handler(job: Job) -> None:
            if job.data == 1:
                began.set()
                go.wait(TIMEOUT)

        jobs = queue.add_bulk([("n", n) for n in range(3)])
        with Worker(queue, handler, name="ada", prefetch=3):
            assert began.wait(TIMEOUT)
            queue.pause()
            # the first is done, and its outcome is held back
            assert manager.release_owner("ada") >= 2
            assert jobs[1].refresh().started_at == manager.now, "its handler had begun"
            assert jobs[2].refresh().started_at is None, "nobody had begun it"
            go.set()
        check(manager._state)


def test_a_batch_lost_in_the_millisecond_of_its_claim_is_not_begun() -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        manager.push_batch("q", [("n", i) for i in range(4)])
        backend = manager.backend
        jobs = backend.claim("q", 4, 30_000, "w", backend.wait_handle())
        assert backend.begin(jobs[1].id, jobs[1].token)
        manager.release(jobs[2])
        assert not backend.begin(jobs[2].id, jobs[2].token)
        manager.close()
        with pytest.raises(ManagerClosedError):
            backend.begin(jobs[3].id, jobs[3].token)


@pytest.mark.parametrize("how", ["given back", "released with its owner", "paused"])
def test_a_job_that_had_started_before_its_batch_was_given_back_keeps_that_start(how: str) -> None:
    """Neither does its ttl apply again, which ended with the first start."""
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        jobs = manager.push_batch("q", [JobSpec("n", i, ttl=10) for i in range(2)])
        first = manager.pull_batch("q", 2)
        start = first[1].started_at
        manager.release(first[0])
        manager.release(first[1])
        clock.advance(seconds=5)
        backend = manager.backend
        claimed = backend.claim("q", 2, 30_000, "ada", backend.wait_handle())[1]
        if how == "given back":
            backend.give_back_unstarted([(claimed.id, claimed.token)])
        elif how == "paused":
            manager.pause("q")
            assert not backend.begin(claimed.id, claimed.token)
            manager.resume("q")
        else:
            manager.release_owner("ada")
        assert jobs[1].refresh().started_at == start
        clock.advance(seconds=6)
        manager.run_pending()
        assert jobs[1].refresh().state == "waiting"
        check(manager._state)


def test_what_a_batch_leaves_of_due_jobs_wakes_the_next_worker() -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        meet = threading.Barrier(2)
        workers = [Worker(queue, lambda job: meet.wait(TIMEOUT), prefetch=16) for _ in range(2)]
        for worker in workers:
            worker.start()
        jobs = queue.add_bulk([JobSpec("j", delay=0.05, timeout=TIMEOUT) for _ in range(2)])
        # neither handler returns before the other has begun
        for job in jobs:
            job.result(timeout=TIMEOUT)


def test_jobs_given_back_together_keep_their_order() -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        manager.push_batch("q", [JobSpec("n", i, priority=i) for i in range(10)])
        backend = manager.backend
        jobs = backend.claim("q", 10, 30_000, "w", backend.wait_handle())
        backend.give_back_unstarted([(job.id, job.token) for job in jobs[:0:-1]])
        order = [job.data for job in manager.pull_batch("q", 10)]
        assert order == list(range(8, -1, -1))
        check(manager._state)


def test_an_interrupted_head_hands_its_timer_on() -> None:
    """The next due job is delivered in time although whoever minded it is gone."""
    with QueueManager(config=ManagerConfig(shards=1)) as manager:
        queue = Queue("q", manager)
        got = threading.Event()

        class Stop(Exception):
            pass

        def stop(*_: object) -> None:
            raise Stop

        def other() -> None:
            if manager.pull(queue, timeout=None) is not None:
                got.set()

        thread = threading.Thread(target=other)
        before = signal.signal(signal.SIGALRM, stop)
        try:
            queue.add("due", delay=0.4)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            starter = threading.Timer(0.05, thread.start)
            starter.start()
            with pytest.raises(Stop):
                manager.pull(queue, timeout=None)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert got.wait(TIMEOUT)
        starter.join()
        thread.join(TIMEOUT)


def test_a_signal_handler_may_close_the_manager_in_the_middle_of_a_push() -> None:
    """It closes in the background: waiting here would be waiting for the interrupted call."""
    for _ in range(5):
        manager = QueueManager()
        queue = Queue("q", manager)
        before = signal.signal(signal.SIGALRM, lambda *_, manager=manager: manager.close(timeout=1))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(ManagerClosedError):
                for i in range(10_000_000):
                    queue.add("x", i)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert manager.close(timeout=TIMEOUT)


def test_a_worker_that_cannot_have_all_its_threads_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if "scarce" in thread.name:
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        real(thread)

    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker = Worker(queue, lambda job: None, name="scarce", concurrency=8)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", limited)
            with pytest.raises(RuntimeError, match="new thread"):
                worker.start()
        for thread in started:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        queue.add("nobody runs me")
        assert queue.counts().waiting == 1
        assert worker.is_closed


def test_a_subscription_that_races_with_close_leaves_no_thread() -> None:
    for _ in range(20):
        manager = QueueManager()
        begun = threading.Event()

        def subscribe(manager: QueueManager = manager, begun: threading.Event = begun) -> None:
            try:
                for _ in range(100_000):
                    manager.events.subscribe(lambda event: None)
                    begun.set()
            except ManagerClosedError:
                pass

        thread = threading.Thread(target=subscribe)
        thread.start()
        assert begun.wait(TIMEOUT)
        assert manager.close(timeout=TIMEOUT)
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def test_half_a_crew_counts_only_the_threads_that_run() -> None:
    with QueueManager() as manager:
        worker = Worker("q", lambda job: None, manager=manager, concurrency=3)
        crew: Crew = worker._crew
        worker.start()
        assert crew._live == 3
        assert worker.close(timeout=TIMEOUT)
        assert crew._live == 0


def test_the_default_manager_of_a_forked_child_is_its_own(tmp_path: Any) -> None:
    import subprocess
    import sys

    script = tmp_path / "fork.py"
    script.write_text(
        "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from bunqueue_py import Queue, configure, get_default_manager\n"
        "Queue('q').add('x')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    configure()\n"
        "    Queue('q').add('y')\n"
        "    os._exit(len(Queue('q')))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(Queue('q')))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "1 1\n", done.stderr
    assert get_default_manager is not None


def test_discarding_starts_the_scheduler_where_nothing_was_ever_pulled() -> None:
    """The dead letter has moments of its own, which somebody must mind."""
    with QueueManager() as manager:
        assert Queue("q", manager).add("unwanted").discard()
        assert "bunqueue-scheduler" in [thread.name for thread in threading.enumerate()]


def test_a_job_of_a_batch_begins_without_the_lock_unless_somebody_is_to_hear_of_it() -> None:
    """Or a worker and a thread that adds jobs would swap places at each."""
    with QueueManager(background=False) as manager:
        manager.push_batch("q", [("n", i) for i in range(4)])
        backend = manager.backend
        jobs = backend.claim("q", 4, 30_000, "w", backend.wait_handle())
        lock = manager._state.shards.of("q").lock
        with lock:
            assert backend.begin(jobs[1].id, jobs[1].token)
        assert jobs[1].refresh().started_at is not None
        manager.events.subscribe(print, types="active")
        with lock, pytest.raises(LockOrderError, match="twice"):
            backend.begin(jobs[2].id, jobs[2].token)


def test_that_a_job_of_a_batch_has_begun_comes_to_be_on_disk_while_it_runs(tmp_path: Path) -> None:
    """Should it kill the process, it is charged."""
    path = tmp_path / "jobs"
    with QueueManager(path) as manager:
        queue = Queue("q", manager)
        began, go = threading.Event(), threading.Event()

        def handler(job: Job) -> None:
            if job.name == "slow":
                began.set()
                go.wait(TIMEOUT)

        worker = warmed_up(queue, handler)
        queue.pause()
        slow = queue.add_bulk([("short", 0), ("slow", 1), *(("short", i) for i in range(9))])[1]
        queue.resume()
        assert began.wait(TIMEOUT)

        def active_on_disk() -> bool:
            manager.flush()
            with QueueManager.open_readonly(path) as view:
                return view.get_state(slow.id) == "active"

        until(active_on_disk, "on disk it is active")
        go.set()
        worker.close()


def test_a_worker_lets_the_thread_run_on_that_is_inside_the_lock() -> None:
    """It waits a moment instead of blocking on the lock, and takes all that came meanwhile."""
    with QueueManager() as manager:
        queue = Queue("q", manager)
        lock = manager._state.shards.of("q").lock
        inside, waited = threading.Event(), threading.Event()
        plain_wait = manager._state.clock.wait

        def wait(on: Any, timeout_ms: int | None) -> bool:
            if timeout_ms == GIVE_WAY_MS:
                waited.set()
            return plain_wait(on, timeout_ms)

        manager._state.clock.wait = wait  # type: ignore[method-assign]
        queue.add("n")

        def stay_inside() -> None:
            with lock:
                inside.set()
                waited.wait(TIMEOUT)

        thread = threading.Thread(target=stay_inside)
        thread.start()
        assert inside.wait(TIMEOUT)
        with Worker(queue, lambda job: None):
            queue.wait_until_empty(timeout=TIMEOUT)
        assert waited.is_set()
        thread.join(TIMEOUT)
