"""Schedulers with real threads, real clocks, forks and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from bunqueue_py import (
    ForkedManagerError,
    JobSpec,
    Queue,
    QueueManager,
    StorageLockedError,
    Worker,
)
from bunqueue_py.ops.query import check
from tests.threads.patience import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_scheduler_fires_by_itself_and_a_worker_runs_what_it_adds(
    tmp_path: Path, on_disk: bool
) -> None:
    seen = threading.Semaphore(0)
    with QueueManager(tmp_path / "jobs.db" if on_disk else None) as manager:
        queue = Queue("q", manager)
        with Worker(queue, lambda job: seen.release()):
            queue.schedulers.upsert("s", every=0.02, immediately=True)
            queue.schedulers.upsert("c", cron="* * * * * *")
            for _ in range(4):
                assert seen.acquire(timeout=20)
        assert queue.schedulers.remove("s")
        check(manager._state)


def test_an_idle_manager_with_a_scheduler_far_away_has_no_pass(tmp_path: Path) -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        queue.schedulers.upsert("s", cron="0 0 29 2 *")
        passes = []
        whole = manager._loop.run_pass
        manager._loop.run_pass = lambda: passes.append(1) or whole()  # type: ignore[method-assign,func-returns-value]
        time.sleep(0.2)
        assert len(passes) <= 1


def test_upserts_of_many_threads_at_once_leave_one_scheduler_and_no_second_job() -> None:
    """B052: one process owns the file, so "processes" are threads."""
    done: list[str] = []
    with QueueManager() as manager:
        queue = Queue("q", manager)
        live = []

        def handler(job: object) -> None:
            live.append(queue.counts().active + len(queue))
            done.append(job.id)  # type: ignore[attr-defined]

        def declare() -> None:
            for _ in range(100):
                queue.schedulers.upsert("s", every=0.005, job=JobSpec("x"))

        with Worker(queue, handler, concurrency=2):
            threads = [threading.Thread(target=declare) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            until(lambda: len(done) >= 5, "it goes on firing")
        found = queue.schedulers.get("s")
        assert found is not None
        assert found.runs >= 5
        assert max(live) == 1
        assert len(set(done)) == len(done)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    """B088"""
    fired = threading.Semaphore(0)
    with QueueManager() as manager:
        queue = Queue("q", manager)
        with Worker(queue, lambda job: fired.release()):
            queue.schedulers.upsert("s", every=0.02)
            assert fired.acquire(timeout=20)
            child = os.fork()
            if child == 0:
                told = 0
                for call in (
                    lambda: queue.schedulers.upsert("s", every=1),
                    lambda: queue.schedulers.list(),
                    lambda: queue.schedulers.remove("s"),
                    lambda: queue.add("x"),
                ):
                    try:
                        call()
                    except ForkedManagerError:
                        told += 1
                os._exit(0 if told == 4 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert fired.acquire(timeout=20)


def test_a_second_owner_that_imports_the_same_module_is_refused_by_name(tmp_path: Path) -> None:
    """B089: one process owns the file; the others are told, with no guess at the environment."""
    path = tmp_path / "jobs.db"
    with QueueManager(path) as manager:
        Queue("q", manager).schedulers.upsert("s", every=60)
        with pytest.raises(StorageLockedError):
            QueueManager(path)
        assert [s.runs for s in manager.schedulers.list()] == [0]


CHILD = """
    import os, sys, time
    from bunqueue_py import JobSpec, Queue, QueueManager, Worker

    with QueueManager(sys.argv[1]) as manager:
        queue = Queue("q", manager)
        spec = JobSpec("x", attempts=1000, backoff=0)
        queue.schedulers.upsert("s", every=0.05, prevent_overlap=False, job=spec)
        queue.schedulers.upsert("c", cron="* * * * * *", prevent_overlap=False, job=spec)
        print("ready", flush=True)
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills with SIGKILL")
def test_whenever_it_is_killed_each_planned_time_has_one_job(
    tmp_path: Path, slow_rounds: object
) -> None:
    """B047: SIGKILL at any moment, and a start after each."""
    path = tmp_path / "jobs.db"
    for round in range(slow_rounds(6, 60)):  # type: ignore[operator]
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(0.11 + 0.013 * (round % 13))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with QueueManager(path, background=False) as manager:
        schedulers = {s.id: s for s in manager.schedulers.list()}
        jobs = sum(s.runs for s in schedulers.values())
        assert jobs == manager.counts("q").total, json.dumps([s.runs for s in schedulers.values()])
        assert schedulers["s"].runs >= 2
        check(manager._state)
