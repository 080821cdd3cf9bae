"""The cost of a job's life without a worker: push, pull, read `data`, ack.

Unit: yardsticks (see `yardstick.py`) for one job, one thread, memory mode.
Each cycle has a new manager in each round, warmed up and closed outside the
clock, and is measured in pieces that take turns with yardsticks. The steady
line has one manager, in which retention forgets a finished job for each new one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from random import Random
from time import perf_counter

from harness import PAYLOAD, RESULT, Row, Samples, Settings, micros, rounds, turned
from yardstick import yardstick

from bunqueue_py import Ack, JobSpec, QueueManager

BATCH = 1_000
PIECE = 500
KEPT = 50_000  # finished jobs that a manager keeps by default

Cycle = Callable[[QueueManager, int], float]


def plain(manager: QueueManager, jobs: int) -> float:
    """No option, no result."""
    start = perf_counter()
    for _ in range(jobs):
        manager.push("q", PAYLOAD)
        job = manager.pull("q")
        assert job is not None
        assert job.data  # reading it decodes it
        manager.ack(job)
    return (perf_counter() - start) / jobs


def with_options(manager: QueueManager, jobs: int) -> float:
    """A priority of 1 to 10 and a number of attempts."""
    dice = Random(7)
    priorities = [dice.randint(1, 10) for _ in range(jobs)]
    start = perf_counter()
    for priority in priorities:
        manager.push("q", PAYLOAD, priority=priority, attempts=5)
        job = manager.pull("q")
        assert job is not None
        assert job.data
        manager.ack(job)
    return (perf_counter() - start) / jobs


def with_result(manager: QueueManager, jobs: int) -> float:
    """A small dict as the job's result."""
    start = perf_counter()
    for _ in range(jobs):
        manager.push("q", PAYLOAD)
        job = manager.pull("q")
        assert job is not None
        assert job.data
        manager.ack(job, RESULT)
    return (perf_counter() - start) / jobs


def batches(manager: QueueManager, jobs: int) -> float:
    """The plain cycle in batches of a thousand, the specs made inside the clock."""
    start = perf_counter()
    for _ in range(0, jobs, BATCH):
        manager.push_batch("q", [JobSpec("default", PAYLOAD) for _ in range(BATCH)])
        pulled = manager.pull_batch("q", BATCH)
        assert len(pulled) == BATCH
        for job in pulled:
            assert job.data
        manager.ack_batch([Ack(job) for job in pulled])
    return (perf_counter() - start) / jobs


STEADY = "cycle, plain, steady"
CYCLES: dict[str, Cycle] = {
    "cycle, plain": plain,
    "cycle, priority+attempts": with_options,
    "cycle, dict result": with_result,
    "cycle, batches of 1,000": batches,
}
PROMISES: dict[str, tuple[float | None, float | None]] = {
    "cycle, plain": (2.6, 2.1),
    "cycle, priority+attempts": (3.0, None),
    "cycle, dict result": (3.0, None),
    "cycle, batches of 1,000": (1.7, 1.3) if sys.version_info >= (3, 12) else (2.2, 1.6),
    STEADY: (None, None),
}


def one_round(found: Samples, cycle: Cycle, manager: QueueManager, jobs: int) -> None:
    """Measure `cycle` over so many jobs, in short pieces between yardsticks."""
    piece = BATCH if cycle is batches else PIECE
    cycle(manager, piece)
    found.add_pieces(
        partial(cycle, manager, piece), partial(yardstick, 2 * piece), pieces=jobs // piece
    )


def measure(settings: Settings) -> list[Row]:
    """Five rows: plain, with options, with a result, in batches, and at retention."""
    jobs = settings.size(quick=5_000, full=20_000)
    samples = {name: Samples() for name in CYCLES}
    for number in rounds(settings, "cycle"):
        for name in turned(list(CYCLES), number):
            with QueueManager() as manager:
                one_round(samples[name], CYCLES[name], manager, jobs)
            del manager
            gc.collect()
    samples[STEADY] = Samples()
    with QueueManager() as manager:
        batches(manager, KEPT + BATCH)
        for _ in rounds(settings, STEADY):
            one_round(samples[STEADY], plain, manager, jobs)
    return [row(name, found, *PROMISES[name]) for name, found in samples.items()]


def row(name: str, found: Samples, floor: float | None, aim: float | None) -> Row:
    """The table's line for one cycle."""
    note = f"{micros(found.measured)} a job; yardstick {micros(found.baseline)}"
    return Row(name, "yardsticks", found.cost(), floor=floor, aim=aim, note=note)
