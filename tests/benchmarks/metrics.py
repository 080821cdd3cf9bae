"""What watching costs: the plain cycle with times measured, with one listener, with both; and
`stats()` of many queues.

Unit: times the CPU time of the cycle of a manager that nobody watches, in pieces that take turns
in one process. What a listener's thread does afterwards counts for the piece that caused it.
Milliseconds for `stats()`.
"""

from __future__ import annotations

import gc
from statistics import median
from time import perf_counter, process_time, sleep

from cycle import plain
from harness import Row, Settings

from bunqueue_py import JobSpec, ManagerConfig, QueueManager

PIECE = 500
QUEUES = 1_000


def watched(name: str) -> QueueManager:
    """A manager, measured and heard as the name says."""
    manager = QueueManager(config=ManagerConfig(measure_times="times" in name))
    if "listener" in name:
        types = None if "all" in name else "failed" if "failed" in name else "completed"
        manager.events.subscribe(lambda event: None, types=types)
    return manager


def piece(manager: QueueManager) -> float:
    """CPU seconds for one job, until the listener has heard of all of them."""
    start = process_time()
    plain(manager, PIECE)
    while any(box.backlog for box in manager._state.events.mailboxes()):
        sleep(0.0005)
    return (process_time() - start) / PIECE


WATCHED = (
    "unwatched",
    "times",
    "listener to failed",
    "listener to completed",
    "times, listener to completed",
    "times, listener to all",
)


FLOORS = {"times, listener to completed": 1.25, "times, listener to all": 1.25}


def measure(settings: Settings) -> list[Row]:
    """The ratios, and one row for `stats()`."""
    managers = {name: watched(name) for name in WATCHED}
    for manager in managers.values():
        plain(manager, 2_000)
    found: dict[str, list[float]] = {name: [] for name in managers}
    for _ in range(settings.size(quick=20, full=100)):
        for name, manager in managers.items():
            found[name].append(piece(manager))
    for manager in managers.values():
        manager.close()
    base = found["unwatched"]
    rows = [
        Row(f"cycle, {name}", "x", [v / median(base) for v in values], floor=FLOORS.get(name))
        for name, values in found.items()
        if name != "unwatched"
    ]
    return [*rows, _stats(settings)]


def _stats(settings: Settings) -> Row:
    jobs = settings.size(quick=100_000, full=1_000_000)
    with QueueManager() as manager:
        for n in range(QUEUES):
            manager.push_batch(f"q{n}", [JobSpec("x", n)] * (jobs // QUEUES))
        gc.collect()
        taken = []
        for _ in range(9):
            start = perf_counter()
            manager.stats()
            taken.append((perf_counter() - start) * 1_000)
    return Row("stats()", "ms", taken, floor=20.0, note=f"{QUEUES:,} queues, {jobs:,} jobs")
