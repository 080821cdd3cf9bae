"""Threads that push one key at once: at most one live owner at any moment, and never no job."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue_py import Deduplication, JobSpec, ManagerConfig, Queue, QueueManager, ValidationError
from bunqueue_py.ops.query import check

THREADS = 16
TIMEOUT = 30.0


@pytest.fixture(autouse=True)
def busy_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def all_at_once(fn: Callable[[int], Any], threads: int = THREADS) -> None:
    """Runs `fn(0)`, `fn(1)`, ... each on a thread of its own; raises the first error."""
    barrier = threading.Barrier(threads)
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            barrier.wait(TIMEOUT)
            fn(i)
        except BaseException as error:
            errors.append(error)

    crew = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def live_jobs(queue: Queue, key: str) -> list[str]:
    """The pending jobs of that key, as one look under the lock tells."""
    jobs = queue.get_jobs(["waiting", "prioritized", "delayed"], limit=10_000)
    return [job.id for job in jobs if job.deduplication_key == key]


@pytest.mark.parametrize("hold", ["live", "ttl"])
@pytest.mark.parametrize("mode", ["skip", "extend", "replace"])
def test_sixteen_threads_that_push_one_key_leave_one_job(mode: Any, hold: Any) -> None:
    """B103: never zero jobs; and never two that wait."""
    key = Deduplication("k", 3600, mode, hold)
    with QueueManager(config=ManagerConfig(shards=1)) as manager:
        queue = Queue("q", manager)
        queue.add("first", -1, deduplication=key)
        looks: list[list[str]] = []

        def push(i: int) -> None:
            for n in range(20):
                job = queue.add("job", (i, n), deduplication=key)
                assert job.duplicate is (mode != "replace")
                looks.append(live_jobs(queue, "k"))

        all_at_once(push)
        check(manager._state)
        assert {len(look) for look in looks} == {1}
        assert queue.counts().total == 1
        assert queue.deduplication.owner("k") == live_jobs(queue, "k")[0]


@pytest.mark.parametrize("mode", ["skip", "extend", "replace"])
def test_what_is_pushed_while_owners_run_is_run_or_has_a_live_owner(mode: Any) -> None:
    """Half of the threads push, half run what comes; every pusher that was told `duplicate` saw an
    owner that had not ended, and no two jobs of the key wait at once."""
    rounds = 40
    with QueueManager() as manager:
        queue = Queue("q", manager)
        key = Deduplication("k", mode=mode)
        admitted: list[str] = []
        finished = threading.Event()
        left = [THREADS // 2]
        counting = threading.Lock()

        def work(i: int) -> None:
            if i % 2:
                while not finished.is_set() or queue.counts().waiting:
                    job = manager.pull(queue, timeout=0.01)
                    if job is not None:
                        manager.ack(job)
                return
            for n in range(rounds):
                job = queue.add("job", (i, n), deduplication=key)
                assert not (job.duplicate and mode == "replace")
                assert job.state in ("waiting", "active")
                if not job.duplicate:
                    admitted.append(job.id)
                assert len(live_jobs(queue, "k")) <= 1
            with counting:
                left[0] -= 1
                if not left[0]:
                    finished.set()

        all_at_once(work)
        check(manager._state)
        assert admitted
        assert queue.deduplication.owner("k") is None
        ended = {job_id for job_id in admitted if manager.get_state(job_id) == "completed"}
        gone = {job_id for job_id in admitted if manager.get_state(job_id) == "unknown"}
        assert ended | gone == set(admitted)
        assert ended, "no job ran"
        assert not gone or mode == "replace", "a job that was let in is gone"


def test_a_batch_that_is_refused_never_makes_a_duplicate_of_another_push() -> None:
    """B103, as it stands there: one thread's batch with the key is refused, another adds the key
    at the same moment and must get in."""
    with QueueManager() as manager:
        queue = Queue("q", manager)
        bad = [JobSpec("a", deduplication=Deduplication("k")), JobSpec("b", priority=True)]
        gate = threading.Barrier(2)

        def meet(i: int) -> None:
            for _ in range(300):
                gate.wait(TIMEOUT)
                if i:
                    with pytest.raises(ValidationError):
                        queue.add_bulk(bad)
                else:
                    assert not queue.add("c", deduplication=Deduplication("k")).duplicate
                gate.wait(TIMEOUT)
                if not i:
                    assert queue.drain() == 1

        all_at_once(meet, 2)
        check(manager._state)
