"""What a worker adds to a job: its drain of no-op jobs against the raw loop.

Unit: times the raw loop, which is one thread that pulls and acks until the
queue is empty. The worker's time runs from its start to the moment at which
the queue is empty and nothing is active any more, acks included.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter

from harness import PAYLOAD, Row, Settings, Thing, interleave, micros

from bunqueue_py import Job, JobSpec, Queue, QueueManager, Worker

FILL = 1_000
PATIENCE_S = 60
PROMISES = {1: (1.3, 0.9), 4: (1.7, 1.2), 64: (2.0, 1.5)}


def no_op(job: Job) -> None:
    """Nothing at all."""


def fill(manager: QueueManager, jobs: int) -> None:
    """Queue `jobs` small jobs."""
    for _ in range(0, jobs, FILL):
        manager.push_batch("q", [JobSpec("default", PAYLOAD) for _ in range(FILL)])


def raw_loop(jobs: int) -> float:
    """Seconds for one job, pulled and acked by the calling thread."""
    with QueueManager() as manager:
        fill(manager, jobs)
        done = 0
        start = perf_counter()
        while (job := manager.pull("q")) is not None:
            manager.ack(job)
            done += 1
        elapsed = perf_counter() - start
    assert done == jobs
    return elapsed / jobs


def worker_drain(concurrency: int, jobs: int) -> float:
    """Seconds for one job, drained by a worker of `concurrency` threads."""
    with QueueManager() as manager:
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
    """Three rows: 1, 4 and 64 threads."""
    jobs = settings.size(quick=10_000, full=20_000)
    often = replace(settings, rounds=settings.rounds * settings.size(quick=1, full=3))
    baseline = partial(raw_loop, jobs)
    names = {threads: f"worker drain, {threads} threads" for threads in PROMISES}
    names[1] = "worker drain, 1 thread"
    samples = interleave(
        [Thing(names[n], partial(worker_drain, n, jobs), baseline) for n in PROMISES],
        often,
        "workers",
    )
    rows = []
    for threads, (floor, aim) in PROMISES.items():
        found = samples[names[threads]]
        note = f"{micros(found.measured)} a job; raw loop {micros(found.baseline)}"
        rows.append(
            Row(names[threads], "x raw loop", found.cost(), floor=floor, aim=aim, note=note)
        )
    return rows
