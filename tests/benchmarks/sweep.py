"""What the watchmen cost those who work: push and pull while 100,000 runs are judged.

Unit: microseconds, the median and the 99th percentile of single calls on one
thread, with the scheduler's passes on its own and without; the ratio of the
latter; and for how long the passes went on. They are those after a freeze (all
leases move on), those in which every lease has run out, and those of the
clean-up over deadlines of which half are stale.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter

from harness import PAYLOAD, Row, Settings, rounds

from bunqueue_py import Job, ManagerConfig, Queue, QueueManager
from bunqueue_py.clock import SystemClock

CALLS = 20_000
LEASE = 600


class Ahead(SystemClock):
    """Real time whose timeline can be moved forward, as if the machine had slept."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_ms = 0
        real = self.timeline_ms
        self.timeline_ms = lambda: real() + self.moved_ms


class Bench:
    """A manager with so many runs under way, and a way to have them all judged."""

    def __init__(self, active: int) -> None:
        self.clock = Ahead()
        self.manager = QueueManager(clock=self.clock, config=ManagerConfig(shards=1))
        self.busy = Queue("busy", self.manager, defaults={"backoff": 3_600})
        self.busy.add_bulk([("n", None)] * active)
        self.held: list[Job] = self.manager.pull_batch(self.busy, active, lock_duration=LEASE)
        assert len(self.held) == active
        self.state = self.manager._state
        self.expires_ms = self.state.shards.shards[0].deadlines.next_ms() or 0

    def jump(self, to_ms: int) -> None:
        self.clock.moved_ms += to_ms - self.clock.timeline_ms()
        self.state.alarm.ring()

    def runs(self, name: str) -> int:
        return next(line.runs for line in self.state.errors.lines() if line.name == name)


Act = Callable[[Bench], Callable[[], bool]]
"""Begins something, and returns what says whether it is over."""


def calm(bench: Bench) -> Callable[[], bool]:
    """Nothing happens."""
    return lambda: False


def forgive(bench: Bench) -> Callable[[], bool]:
    """A late pass moves every lease."""
    before = bench.runs("deadlines")
    bench.jump(bench.expires_ms + 10_000)
    return lambda: bench.runs("deadlines") > before


def expire(bench: Bench) -> Callable[[], bool]:
    """Every lease has run out, and the pass comes in time."""
    bench.jump(bench.expires_ms - 20)
    active = bench.state.queues["busy"].active
    return lambda: not active


def clean(bench: Bench) -> Callable[[], bool]:
    """A quarter of the deadlines are stale."""
    bench.manager.ack_batch((job, None, job.token) for job in bench.held[::4])
    before = bench.runs("clean-up")
    bench.state.cleanup.arm(bench.state.now())
    return lambda: bench.runs("clean-up") > before


PASSES: dict[str, Act] = {
    "calm": calm,
    "late pass": forgive,
    "leases expire": expire,
    "clean-up": clean,
}


def samples_of(act: Act, active: int) -> tuple[list[float], float]:
    """Microseconds of each push and pull while that goes on beside, and for how many seconds."""
    bench = Bench(active)
    manager, found = bench.manager, []
    with manager:
        time.sleep(0.2)  # what came with the many jobs has settled
        over = act(bench)
        begun = perf_counter()
        while not over() and (len(found) < CALLS or act is not calm):
            start = perf_counter()
            manager.push("q", PAYLOAD)
            job = manager.pull("q", lock_duration=3600)
            found.append((perf_counter() - start) * 1e6)
            assert job is not None
            manager.ack(job)
        took = perf_counter() - begun
        manager.obliterate("busy", force=True)
    return found, took


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(settings: Settings) -> list[Row]:
    """For each kind of pass a row with the median and one with the 99th percentile."""
    active = settings.size(quick=10_000, full=100_000)
    found: dict[str, list[list[float]]] = {name: [] for name in PASSES}
    took: dict[str, list[float]] = {name: [] for name in PASSES}
    for _ in rounds(settings, "sweep"):
        for name, act in PASSES.items():
            samples, seconds = samples_of(act, active)
            found[name].append(samples)
            took[name].append(seconds)
    rows = []
    calm_p99 = [percentile(sample, 0.99) for sample in found["calm"]]
    for name, samples in found.items():
        note = f"{active:,} active, {min(map(len, samples)):,} calls or more a round"
        for label, share in (("median", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            values = [percentile(sample, share) for sample in samples]
            rows.append(Row(f"push and pull, {name}, {label}", "µs", values, note=note))
        if name != "calm":
            ratio = [percentile(s, 0.99) / c for s, c in zip(samples, calm_p99, strict=True)]
            row = f"push and pull, {name}, p99 / calm p99"
            rows.append(Row(row, "x", ratio, floor=3, aim=2))
            rows.append(Row(f"{name}, how long", "s", took[name]))
    return rows
