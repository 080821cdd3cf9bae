"""What a worker adds to a job: its drain of no-op jobs against the raw loop.

Unit: times the raw loop, which is one thread that pulls and acks until the
queue is empty. The worker's time runs from its start to the moment at which
the queue is empty and nothing is active any more, acks included.

*Watched*: on both sides times are measured and a listener hears of every
completed job. Heartbeats are on everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter

from harness import PAYLOAD, Row, Settings, Thing, interleave, micros

from bunqueue_py import Job, JobEvent, JobSpec, ManagerConfig, Queue, QueueManager, Worker

FILL = 1_000
PATIENCE_S = 60
PROMISES = {1: (1.3, 0.9), 4: (1.7, 1.2), 64: (2.0, 1.5)}


def no_op(job: Job) -> None:
    """Nothing at all."""


def fill(manager: QueueManager, jobs: int) -> None:
    """Queue `jobs` small jobs."""
    for _ in range(0, jobs, FILL):
        manager.push_batch("q", [JobSpec("default", PAYLOAD) for _ in range(FILL)])


def heard(event: JobEvent) -> None:
    """What a listener at least costs."""


def opened(*, watched: bool) -> QueueManager:
    """A manager that nobody watches, or one whose metrics and events somebody wants."""
    manager = QueueManager(config=ManagerConfig(measure_times=watched))
    if watched:
        manager.events.subscribe(heard, types="completed")
    return manager


def raw_loop(jobs: int, *, watched: bool = False) -> float:
    """Seconds for one job, pulled and acked by the calling thread."""
    with opened(watched=watched) as manager:
        fill(manager, jobs)
        done = 0
        start = perf_counter()
        while (job := manager.pull("q")) is not None:
            manager.ack(job)
            done += 1
        elapsed = perf_counter() - start
    assert done == jobs
    return elapsed / jobs


def worker_drain(concurrency: int, jobs: int, *, watched: bool = False) -> float:
    """Seconds for one job, drained by a worker of `concurrency` threads."""
    with opened(watched=watched) as manager:
        fill(manager, jobs)
        queue = Queue("q", manager)
        start = perf_counter()
        with Worker(queue, no_op, concurrency=concurrency):
            queue.wait_until_empty(timeout=PATIENCE_S)
            elapsed = perf_counter() - start
        assert_empty(queue)
    return elapsed / jobs


def assert_empty(queue: Queue) -> None:
    """A drain that left something behind has measured nothing."""
    counts = queue.counts()
    assert len(queue) + counts.active == 0, counts


def measure(settings: Settings) -> list[Row]:
    """Six rows: 1, 4 and 64 threads, unwatched and watched."""
    jobs = settings.size(quick=10_000, full=20_000)
    often = replace(settings, rounds=settings.rounds * settings.size(quick=1, full=3))
    rows = []
    for watched in (False, True):
        baseline = partial(raw_loop, jobs, watched=watched)
        names = {threads: title(threads, watched=watched) for threads in PROMISES}
        samples = interleave(
            [
                Thing(names[n], partial(worker_drain, n, jobs, watched=watched), baseline)
                for n in PROMISES
            ],
            often,
            "workers",
        )
        for threads, (floor, aim) in PROMISES.items():
            found = samples[names[threads]]
            note = f"{micros(found.measured)} a job; raw loop {micros(found.baseline)}"
            rows.append(
                Row(names[threads], "x raw loop", found.cost(), floor=floor, aim=aim, note=note)
            )
    return rows


def title(threads: int, *, watched: bool) -> str:
    """The name of a row."""
    some = "1 thread" if threads == 1 else f"{threads} threads"
    return f"worker drain, {some}{', watched' if watched else ''}"
