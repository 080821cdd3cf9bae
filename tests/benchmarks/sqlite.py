"""What a file costs: the same work on SQLite and in memory, against huey's SQLite, and the lag.

All files stand in the folder for temporary files, so that every side has the same
disk under it. The clock of a cycle ends when its last change is on disk. huey's
SQLite runs at its default, which leaves it to SQLite when to sync; so does ours,
which syncs every commit.
"""

from __future__ import annotations

import gc
import importlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import durable
import recovery
from cycle import BATCH, Cycle, batches, plain
from harness import PAYLOAD, Row, Samples, Settings, Thing, each_round, interleave, micros, rate
from peer_huey import Case, drained_by_huey, drained_by_ours

from bunqueue_py import QueueManager, SqliteStorage

THREADS = 4
LIVE_JOBS = 100_000
MAX_LAG_MS = 100
SAMPLE_S = 0.001


def push_all_drain_all(manager: QueueManager, jobs: int) -> float:
    """Every job is pushed before the first is pulled and acked."""
    start = perf_counter()
    for _ in range(jobs):
        manager.push("q", PAYLOAD)
    for _ in range(jobs):
        job = manager.pull("q")
        assert job is not None
        assert job.data
        manager.ack(job)
    return (perf_counter() - start) / jobs


CYCLES: dict[str, tuple[Cycle, float, float | None]] = {
    "SQLite, plain cycle": (plain, 2.0, None),
    "SQLite, push all, drain all": (push_all_drain_all, 1.8, None),
    f"SQLite, batches of {BATCH:,}": (batches, 1.8, 1.5),
}


@contextmanager
def new_file() -> Iterator[str]:
    """The path of a file that is not there yet, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "jobs.db")


def flushed(cycle: Cycle, kept: bool, jobs: int) -> float:
    """Seconds for one job of the cycle and of the flush at its end, on a new manager."""
    with new_file() as path, QueueManager(path if kept else None) as manager:
        cycle(manager, BATCH)
        manager.flush()
        gc.collect()
        start = perf_counter()
        cycle(manager, jobs)
        manager.flush()
        return (perf_counter() - start) / jobs


def cycles(settings: Settings) -> list[Row]:
    """A row for each cycle: SQLite's time in units of memory's."""
    jobs = settings.size(quick=10_000, full=20_000)
    things = [
        Thing(name, partial(flushed, cycle, True, jobs), partial(flushed, cycle, False, jobs))
        for name, (cycle, _, _) in CYCLES.items()
    ]
    samples = interleave(things, settings, "SQLite cycles")
    return [
        Row(
            name,
            "x memory",
            samples[name].cost(),
            floor=floor,
            aim=aim,
            note=f"{micros(samples[name].measured)} a job; memory {micros(samples[name].baseline)}",
        )
        for name, (_, floor, aim) in CYCLES.items()
    ]


# -- against huey ------------------------------------------------------------------------------


CASE = Case(1, results=False)


def by_huey(jobs: int) -> float:
    """Seconds for one job, added and run by huey on a file of its own."""
    with new_file() as path:
        huey: Any = importlib.import_module("huey").SqliteHuey(filename=path, results=False)
        elapsed = drained_by_huey(huey, CASE, jobs)
        huey.storage.close()
    return elapsed


def by_ours(jobs: int) -> float:
    """Seconds for one job, added, run and on disk."""
    with new_file() as path, QueueManager(path) as manager:
        return drained_by_ours(manager, CASE, jobs)


def against_huey(settings: Settings) -> list[Row]:
    """One row: our rate in units of that of huey, which does fewer jobs, being slow."""
    try:
        importlib.import_module("huey")
    except ImportError:
        print("huey not installed: skipped")
        return []
    ours = settings.size(quick=10_000, full=20_000)
    name = "SQLite, worker against huey"
    theirs = settings.size(quick=500, full=2_000)
    thing = Thing(name, partial(by_ours, ours), partial(by_huey, theirs))
    found: Samples = interleave([thing], settings, "SQLite against huey")[name]
    note = f"{rate(found.measured)}; huey {rate(found.baseline)}"
    return [Row(name, "x huey", found.speed(), "higher", floor=20, aim=30, note=note)]


# -- the lag -----------------------------------------------------------------------------------


def lag_while_pushing() -> dict[str, float]:
    """Four threads push until there are `LIVE_JOBS`; how old the oldest unwritten change was."""
    ages: list[float] = []
    with new_file() as path:
        storage = SqliteStorage(path, max_lag=MAX_LAG_MS / 1000)
        with QueueManager(storage) as manager:
            number = count()

            def push() -> None:
                while next(number) < LIVE_JOBS:
                    manager.push("q", PAYLOAD)

            threads = [threading.Thread(target=push) for _ in range(THREADS)]
            began = perf_counter()
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                ages.append(storage.health().lag_ms)
                sleep(SAMPLE_S)
            elapsed = perf_counter() - began
            assert manager.counts("q").total == LIVE_JOBS
    over = sum(age > MAX_LAG_MS for age in ages)
    return {
        "over": 100 * over / len(ages),
        "greatest": max(ages),
        "samples": len(ages),
        "rate": LIVE_JOBS / elapsed,
    }


def lag(settings: Settings) -> list[Row]:
    """Two rows: how often the promise was broken, and how badly."""
    found = each_round("SQLite lag", settings, lag_while_pushing)
    samples, jobs = (f"{sum(found[key]) / len(found[key]):,.0f}" for key in ("samples", "rate"))
    return [
        Row(
            "SQLite, 4 threads pushing: lag over max_lag",
            "% of samples",
            found["over"],
            floor=1,
            note=f"{samples} samples a round; {jobs} pushes/s",
        ),
        Row("SQLite, 4 threads pushing: greatest lag", "ms", found["greatest"], floor=250),
    ]


PARTS: list[Callable[[Settings], list[Row]]] = [
    cycles,
    against_huey,
    lag,
    durable.measure,
    recovery.measure,
]


def measure(settings: Settings) -> list[Row]:
    """All rows about the file."""
    return [row for part in PARTS for row in part(settings)]
