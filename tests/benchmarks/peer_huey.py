"""The whole work against huey's memory mode: add N jobs, run them all.

Unit: our rate in units of huey's. The whole work is done once with all jobs
added before the consumer starts and once (live, in the full form) with the
consumer already waiting. Both sides encode the small payload, hand it to a handler that only
counts, and keep the results or not (a small dict). huey's clock stops at its last handler
call, ours when the last ack is in.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

from harness import PAYLOAD, RESULT, Row, Settings, Thing, interleave, rate

from bunqueue_py import Job, Queue, QueueManager, Worker

PATIENCE_S = 60
POLL_S = 0.001  # huey's consumer looks into an empty queue this often
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
FLOOR, AIM = 2, 3


@dataclass(frozen=True)
class Case:
    """How the work is done, the same way on both sides."""

    workers: int
    results: bool
    live: bool = False

    @property
    def name(self) -> str:
        """The name of the row."""
        threads = "1 thread" if self.workers == 1 else f"{self.workers} threads"
        kept = "results" if self.results else "no results"
        return f"against huey, {threads}, {kept}" + (", live" if self.live else "")


QUEUED = [
    Case(1, results=False),
    Case(1, results=True),
    Case(4, results=False),
    Case(4, results=True),
]
LIVE = [Case(1, results=True, live=True), Case(4, results=True, live=True)]


class Countdown:
    """Counts calls from any thread and says when the last one came."""

    def __init__(self, calls: int) -> None:
        self.ended = threading.Event()
        self.last = calls
        self.count = count(1)

    def tick(self) -> None:
        """One call more."""
        if next(self.count) == self.last:
            self.ended.set()

    def wait(self) -> None:
        """Block until the last call, or raise."""
        if not self.ended.wait(PATIENCE_S):
            raise TimeoutError("the jobs were not all run")


def run_phases(live: bool, add: Callable[[], None], start: Callable[[], object]) -> float:
    """Add all jobs and start the consumer, in the case's order; when the clock began."""
    if live:
        start()
        began = perf_counter()
        add()
    else:
        began = perf_counter()
        add()
        start()
    return began


def with_huey(case: Case, jobs: int) -> float:
    """Seconds for one job of the whole work, done by huey."""
    huey: Any = importlib.import_module("huey").MemoryHuey(results=case.results)
    return drained_by_huey(huey, case, jobs)


def drained_by_huey(huey: Any, case: Case, jobs: int) -> float:
    """The same, by that huey."""
    countdown = Countdown(jobs)
    answer = RESULT if case.results else None

    def handler(data: dict[str, Any]) -> dict[str, Any] | None:
        countdown.tick()
        return answer

    task = huey.task()(handler)

    def add() -> None:
        for _ in range(jobs):
            task(PAYLOAD)

    consumer = huey.create_consumer(
        workers=case.workers, periodic=False, initial_delay=POLL_S, max_delay=POLL_S, backoff=1
    )
    before = [(number, signal.getsignal(number)) for number in SIGNALS]  # huey replaces them
    try:
        began = run_phases(case.live, add, consumer.start)
        countdown.wait()
        elapsed = perf_counter() - began
        consumer.stop(graceful=True)
    finally:
        for number, action in before:
            signal.signal(number, action)
    return elapsed / jobs


def with_ours(case: Case, jobs: int) -> float:
    """Seconds for one job of the whole work, done by bunqueue_py."""
    with QueueManager() as manager:
        return drained_by_ours(manager, case, jobs)


def drained_by_ours(manager: QueueManager, case: Case, jobs: int) -> float:
    """The same, by that manager, whose last change is on disk at the end, if it has one."""
    countdown = Countdown(jobs)
    answer = RESULT if case.results else None

    def handler(job: Job) -> dict[str, Any] | None:
        assert job.data  # huey decodes it for its handler, too
        countdown.tick()
        return answer

    queue = Queue("q", manager)

    def add() -> None:
        for _ in range(jobs):
            queue.add("task", PAYLOAD)

    worker = Worker(queue, handler, concurrency=case.workers)
    try:
        began = run_phases(case.live, add, worker.start)
        countdown.wait()
        queue.wait_until_empty(timeout=PATIENCE_S)
        manager.flush()
        elapsed = perf_counter() - began
    finally:
        worker.close()
    return elapsed / jobs


def measure(settings: Settings) -> list[Row]:
    """Four rows: 1 and 4 threads, with and without results; two more, live, in the full form."""
    try:
        importlib.import_module("huey")
    except ImportError:
        print("huey not installed: skipped")
        return []
    jobs = settings.size(quick=3_000, full=10_000)
    # short rounds, and many: beside huey's sleeping consumer single ones lie far apart
    often = replace(settings, rounds=settings.rounds * settings.size(quick=3, full=2))
    things = [
        Thing(case.name, partial(with_ours, case, jobs), partial(with_huey, case, jobs))
        for case in (QUEUED if settings.quick else QUEUED + LIVE)
    ]
    samples = interleave(things, often, "huey")
    return [
        Row(
            name,
            "x huey",
            found.speed(),
            "higher",
            floor=FLOOR,
            aim=AIM,
            note=f"{rate(found.measured)}; huey {rate(found.baseline)}",
        )
        for name, found in samples.items()
    ]
