"""A worker whose handlers compute, each in a process of its own, so that they use all cores.

    python examples/cpu_bound.py

A process imports this file too, to find `count_primes`: what is to happen once stands under the
last line's condition.
"""

from time import perf_counter

from bunqueue_py import Job, Queue, QueueManager, Worker

PARTS = 8
SIZE = 20_000


def count_primes(job: Job) -> int:
    """How many primes there are from `start` to `stop`, the slow way."""
    start, stop = job.data["start"], job.data["stop"]
    found = 0
    for n in range(max(2, start), stop):
        job.cancelled.raise_if_set()  # a worker that closes waits for no more than one number
        if all(n % d for d in range(2, int(n**0.5) + 1)):
            found += 1
    return found


def main() -> None:
    with QueueManager() as manager:
        queue = Queue("primes", manager)
        with Worker(queue, count_primes, executor="process", concurrency=2):
            began = perf_counter()
            jobs = [
                queue.add("part", {"start": n * SIZE, "stop": (n + 1) * SIZE}) for n in range(PARTS)
            ]
            total = sum(job.result(timeout=60) for job in jobs)
            took = perf_counter() - began
    print(f"{total} primes below {PARTS * SIZE:,}, in {took:.1f} s with 2 processes")


if __name__ == "__main__":
    main()
