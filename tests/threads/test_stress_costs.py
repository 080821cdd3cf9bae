"""What the watchmen cost: a bounded number of steps in one hold of a lock, and nothing where there
is nothing to do.

Each test has a short form (BUNQUEUE_SLOW=short), with fewer jobs and less time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import Job, ManagerConfig, Queue, QueueManager
from bunqueue_py.testing import VirtualClock
from tests.threads.test_stress import PATIENCE, Rounds, step

pytestmark = pytest.mark.slow


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "jobs.db"


class CountingLock:
    """Counts the lines of Python that are run while it is held."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.held = False
        self.steps = 0
        self.most = 0

    def __enter__(self) -> bool:
        self._inner.acquire()
        self.steps, self.held = 0, True
        return True

    def __exit__(self, *error: object) -> None:
        self.held = False
        self.most = max(self.most, self.steps)
        self._inner.release()

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        if self.held and event == "line":
            self.steps += 1
        return self.trace


Act = Callable[[QueueManager, list[Job]], None]


def most_steps(n: int, act: Act, advance: float) -> int:
    """The most lines that are run in one hold of a lock while that goes on, with n active jobs."""
    clock = VirtualClock()
    config = ManagerConfig(shards=1)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        queue = Queue("q", manager)
        queue.add_bulk([("n", None)] * n)
        held = manager.pull_batch(queue, n, lock_duration=30)
        assert len(held) == n
        clock.advance(seconds=advance)
        shard = manager._state.shards.shards[0]
        lock: Any = CountingLock(shard.lock)
        shard.lock = manager._state.queues["q"].lock = lock
        before = sys.gettrace()
        sys.settrace(lock.trace)
        try:
            act(manager, held)
        finally:
            sys.settrace(before)
        return int(lock.most)


def sweep_late(manager: QueueManager, held: list[Job]) -> None:
    manager._loop.turn()
    assert manager._state.queues["q"].active, "a late pass judges nobody"


def sweep_all(manager: QueueManager, held: list[Job]) -> None:
    step(manager)
    assert not manager._state.queues["q"].active


def give_back(manager: QueueManager, held: list[Job]) -> None:
    assert manager.release_owner("nobody") == 0


def end_half(manager: QueueManager, held: list[Job]) -> None:
    """One after the other: half of the deadlines are stale then, and are swept."""
    deadlines = manager._state.shards.shards[0].deadlines
    for job in held[: len(held) // 2 + 100]:
        assert manager.ack(job).applied
    assert deadlines.old or len(deadlines) < len(held), "a sweep has begun"


def end_all_and_look(manager: QueueManager, held: list[Job]) -> None:
    """The earliest deadlines are all stale when the pass looks for the next one."""
    sys.settrace(None)
    for job in held[: len(held) // 3]:
        manager.ack(job)
    sys.settrace(manager._state.shards.shards[0].lock.trace)  # type: ignore[attr-defined]
    manager.run_pending()
    assert manager.next_due() is not None


def clean(manager: QueueManager, held: list[Job]) -> None:
    """Nearly half of the deadlines are stale, which no verb sweeps."""
    sys.settrace(None)
    ended = len(held) * 9 // 20
    for job in held[:ended]:
        manager.ack(job)
    state = manager._state
    sys.settrace(state.shards.shards[0].lock.trace)  # type: ignore[attr-defined]
    state.cleanup.arm(state.now())
    step(manager)
    assert len(state.shards.shards[0].deadlines) == len(held) - ended


@pytest.mark.parametrize(
    ("act", "advance"),
    [
        (sweep_late, 60),
        (sweep_all, 31),
        (give_back, 1),
        (end_half, 1),
        (end_all_and_look, 1),
        (clean, 1),
    ],
)
def test_one_hold_of_a_lock_is_bounded_however_many_jobs_are_active(
    slow_rounds: Rounds, act: Act, advance: float
) -> None:
    few, many = 3_000, slow_rounds(9_000, 100_000)
    of_few, of_many = most_steps(few, act, advance), most_steps(many, act, advance)
    print(f"{act.__name__}: {of_few:,} lines with {few:,} active, {of_many:,} with {many:,}")
    assert of_many <= of_few * 1.1 + 50
    assert of_many < 30_000


IDLE = """
    import os, resource, sys, threading, time
    from bunqueue_py import Queue, QueueManager, Worker

    seconds, path, kind = float(sys.argv[1]), sys.argv[2] or None, sys.argv[3]
    ran = threading.Semaphore(0)

    def handler(job):
        ran.release()

    async def coroutine(job):
        ran.release()

    with QueueManager(path) as manager:
        queue = Queue("q", manager)
        function = handler if kind == "thread" else coroutine
        # the beat looks once more, a third of that after a job has run
        workers = [Worker(queue, function, lock_duration=3).start() for _ in range(20)]
        for _ in range(40):
            queue.add("n")
        for _ in range(40):
            assert ran.acquire(timeout=30)
        manager.flush()
        time.sleep(4)  # the writer tidies its log after a while
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        os.write(2, b"idle\\n")
        time.sleep(seconds)
        os.write(2, b"done\\n")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
"""
STRACE = shutil.which("strace")


def calls_between(log: str) -> list[str]:
    """What strace saw between the two marks."""
    lines = log.splitlines()
    begin = next(i for i, line in enumerate(lines) if 'write(2, "idle' in line)
    end = next(i for i, line in enumerate(lines) if 'write(2, "done' in line)
    return lines[begin + 1 : end]


@pytest.mark.skipif(os.name == "nt", reason="needs getrusage")
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_twenty_idle_workers_sleep(
    storage: Path | None, slow_rounds: Rounds, kind: str, tmp_path: Path
) -> None:
    """Not one system call of any thread, but for the test's own sleep. Where there is no strace
    the context switches tell: each wake-up would be one."""
    log = tmp_path / "calls"
    trace = [STRACE, "-f", "-qq", "-o", str(log)] if STRACE else []
    script = [sys.executable, "-c", textwrap.dedent(IDLE)]
    arguments = [str(slow_rounds(2, 10)), str(storage or ""), kind]
    done = subprocess.run(
        [*trace, *script, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    if STRACE:
        calls = calls_between(log.read_text())
        slept = [call for call in calls if "clock_nanosleep" in call or "select" in call]
        assert len(slept) == len(calls) == 1, calls[:20]
    else:
        assert int(done.stdout) <= 2, f"{done.stdout} wake-ups"
