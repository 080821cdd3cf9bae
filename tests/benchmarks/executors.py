"""What coroutines, processes and many threads cost.

Coroutines: 10,000 jobs that each sleep 10 ms, 1,000 at once, against as many plain asyncio tasks
under a semaphore; unit: times that. Processes: no-op jobs a second with 2 of them, and how much
faster they compute than 2 threads. Threads: a no-op job with 64 of them, times one with 4.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter

from harness import Row, Settings, Thing, interleave, rounds
from workers import worker_drain

from bunqueue_py import Job, JobSpec, Queue, QueueManager, Worker

AT_ONCE = 1_000
SLEEP_S = 0.01
PATIENCE_S = 120
PARTS = 40


async def nap(job: Job) -> None:
    """10 ms."""
    await asyncio.sleep(SLEEP_S)


def no_op(job: Job) -> None:
    """Nothing at all."""


def compute(job: Job) -> int:
    """About 25 ms of pure Python."""
    return sum(n * n % 7 for n in range(300_000))


def plain_tasks(jobs: int) -> float:
    """Seconds for one sleep, of so many, 1,000 at once."""

    async def main() -> float:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with gate:
                await asyncio.sleep(SLEEP_S)

        start = perf_counter()
        await asyncio.gather(*(one() for _ in range(jobs)))
        return perf_counter() - start

    return asyncio.run(main()) / jobs


def async_worker(jobs: int) -> float:
    """The same as jobs, from the worker's start to the last ack."""
    with QueueManager() as manager:
        queue = Queue("q", manager)
        manager.push_batch("q", [JobSpec("default") for _ in range(jobs)])
        start = perf_counter()
        with Worker(queue, nap, concurrency=AT_ONCE):
            queue.wait_until_empty(timeout=PATIENCE_S)
            return (perf_counter() - start) / jobs


def process_rate(jobs: int) -> float:
    """No-op jobs a second with 2 warm processes."""
    with QueueManager() as manager:
        queue = Queue("q", manager)
        with Worker(queue, no_op, executor="process", concurrency=2):
            for job in queue.add_bulk([("warm", None)] * 20):
                job.result(timeout=PATIENCE_S)
            start = perf_counter()
            queue.add_bulk([("n", None)] * jobs)
            queue.wait_until_empty(timeout=PATIENCE_S)
            return jobs / (perf_counter() - start)


def computing(executor: str) -> float:
    """Seconds for forty parts with two warm threads, or processes."""
    with QueueManager() as manager:
        queue = Queue("q", manager)
        with Worker(queue, compute, executor=executor, concurrency=2):  # type: ignore[arg-type]
            for job in queue.add_bulk([("warm", None)] * 4):
                job.result(timeout=PATIENCE_S)
            start = perf_counter()
            queue.add_bulk([("n", None)] * PARTS)
            queue.wait_until_empty(timeout=PATIENCE_S)
            return perf_counter() - start


def measure(settings: Settings) -> list[Row]:
    """Four rows."""
    jobs = settings.size(quick=5_000, full=10_000)
    name = "async worker, 10 ms, 1,000 at once"
    samples = interleave(
        [
            Thing(name, partial(async_worker, jobs), partial(plain_tasks, jobs)),
            Thing("64 threads", partial(worker_drain, 64, jobs), partial(worker_drain, 4, jobs)),
        ],
        settings,
        "executors",
    )
    rates, gains = [], []
    for _ in rounds(settings, "processes"):
        rates.append(process_rate(jobs))
        threads = computing("thread")
        gains.append(threads / computing("process"))
    return [
        Row(name, "x asyncio", samples[name].cost(), floor=1.5),
        Row("no-op drain, 64 threads", "x 4 threads", samples["64 threads"].cost(), floor=1.3),
        Row("process worker, 2 processes", "jobs/s", rates, better="higher", floor=3_000),
        Row("computing, 2 processes", "x threads", gains, better="higher", floor=1.7),
    ]


if __name__ == "__main__":
    print(*measure(Settings(quick=True, rounds=3)), sep="\n")
