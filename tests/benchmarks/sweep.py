"""What the watchmen cost those who work: push and pull while 100,000 runs are judged.

Unit: microseconds, the median and the 99th percentile of single calls on one
thread, with the scheduler's passes on another one and without; and the ratio.
The passes are those after a freeze (all leases move on), those in which every
lease has run out, and those of the clean-up over a heap of which half is stale.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter

from harness import PAYLOAD, Row, Settings, rounds

from bunqueue_py import ManagerConfig, Queue, QueueManager
from bunqueue_py.testing import VirtualClock

CALLS = 4_000


def prepared(active: int) -> tuple[QueueManager, VirtualClock]:
    """A manager that nobody steps yet, with so many runs under way."""
    clock = VirtualClock()
    manager = QueueManager(clock=clock, background=False, config=ManagerConfig(shards=1))
    queue = Queue("busy", manager)
    queue.add_bulk([("n", None)] * active)
    assert len(manager.pull_batch(queue, active, lock_duration=30)) == active
    return manager, clock


def calm(manager: QueueManager, clock: VirtualClock) -> None:
    """Nothing happens."""


def forgive(manager: QueueManager, clock: VirtualClock) -> None:
    """A late pass moves every lease."""
    clock.advance(seconds=20)
    manager._state.alarm.set(clock.timeline_ms() - 10_000)
    manager._loop.turn()


def expire(manager: QueueManager, clock: VirtualClock) -> None:
    """Every lease has run out."""
    clock.advance(seconds=40)
    while manager._state.alarm.due_ms <= clock.timeline_ms():
        manager.run_pending()


PASSES: dict[str, Callable[[QueueManager, VirtualClock], None]] = {
    "calm": calm,
    "late pass": forgive,
    "leases expire": expire,
}


def samples_of(act: Callable[[QueueManager, VirtualClock], None], active: int) -> list[float]:
    """Microseconds of each push and pull+ack while that goes on beside."""
    manager, clock = prepared(active)
    found: list[float] = []
    with manager:
        done = threading.Event()

        def beside() -> None:
            act(manager, clock)
            done.set()

        thread = threading.Thread(target=beside)
        thread.start()
        while len(found) < CALLS and not (done.is_set() and act is not calm):
            start = perf_counter()
            manager.push("q", PAYLOAD)
            job = manager.pull("q", lock_duration=3600)
            found.append((perf_counter() - start) * 1e6)
            assert job is not None
            manager.ack(job)
        thread.join()
    return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(settings: Settings) -> list[Row]:
    """For each kind of pass a row with the median and one with the 99th percentile."""
    active = settings.size(quick=10_000, full=100_000)
    found: dict[str, list[list[float]]] = {name: [] for name in PASSES}
    for _ in rounds(settings, "sweep"):
        for name, act in PASSES.items():
            found[name].append(samples_of(act, active))
    rows = []
    for name, samples in found.items():
        note = f"{active:,} active, {min(map(len, samples)):,} calls or more a round"
        for label, share in (("median", 0.5), ("p99", 0.99)):
            values = [percentile(sample, share) for sample in samples]
            rows.append(Row(f"push and pull, {name}, {label}", "µs", values, note=note))
    return rows
