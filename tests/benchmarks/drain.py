"""How the rate of draining a queue holds up as the queue gets long.

Unit: the rate at 100,000 and 1,000,000 queued jobs in units of the rate at
10,000; the quick form stops at 100,000. One thread pulls and acks until the
queue is empty, so beyond 50,000 the cost of forgetting finished jobs is in the
figure as well. The 10,000 are drained several times, each time by a new
manager. Each length has a fresh interpreter.
"""

from __future__ import annotations

import gc
import json
import sys
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter

from harness import PAYLOAD, Row, Settings, Thing, in_child, interleave, rate

from bunqueue_py import JobSpec, QueueManager

FILL = 1_000
PRIORITIES = (1, 1_000)
SHORT = 10_000
PROMISES = {"random": (0.45, 0.6), "one": (0.75, 0.9)}
TITLES = {"random": "random priorities", "one": "one priority"}


def child(kind: str, queued: int, times: int) -> dict[str, float]:
    """Seconds for one job, over `times` drains of `queued` jobs."""
    dice = Random(7)
    elapsed = sum(drain(kind, queued, dice) for _ in range(times))
    return {"seconds": elapsed / (queued * times)}


def drain(kind: str, queued: int, dice: Random) -> float:
    """Seconds from the first pull to the last ack, on a new manager."""
    with QueueManager() as manager:
        for _ in range(0, queued, FILL):
            manager.push_batch("q", [spec(kind, dice) for _ in range(FILL)])
        gc.collect()
        done = 0
        start = perf_counter()
        while (job := manager.pull("q")) is not None:
            manager.ack(job)
            done += 1
        elapsed = perf_counter() - start
    assert done == queued
    return elapsed


def spec(kind: str, dice: Random) -> JobSpec:
    """A job with a priority by the dice, or with none."""
    if kind == "one":
        return JobSpec("default", PAYLOAD)
    return JobSpec("default", PAYLOAD, priority=dice.randint(*PRIORITIES))


def timed(kind: str, queued: int, times: int) -> float:
    """Seconds for one job, measured in a fresh interpreter."""
    return in_child(Path(__file__).name, kind, queued, times)["seconds"]


def measure(settings: Settings) -> list[Row]:
    """A row for each length beyond the first, with random priorities and with one."""
    times = settings.size(quick=2, full=10)
    lengths = [100_000] if settings.quick else [100_000, 1_000_000]
    rows = []
    things = []
    for kind in PROMISES:
        short = partial(timed, kind, SHORT, times)
        things += [
            Thing(title(kind, queued), partial(timed, kind, queued, 1), short) for queued in lengths
        ]
    samples = interleave(things, settings, "drain")
    for kind, (floor, aim) in PROMISES.items():
        for queued in lengths:
            found = samples[title(kind, queued)]
            row = Row(title(kind, queued), "x rate at 10k", found.speed(), "higher")
            row.note = f"{rate(found.measured)}; at 10,000 {rate(found.baseline)}"
            if queued == lengths[-1]:
                row.floor, row.aim = floor, aim
            if settings.quick:
                row.note += "; floor of 1,000,000"
            rows.append(row)
    return rows


def title(kind: str, queued: int) -> str:
    """The name of a row."""
    return f"drain {queued:,}, {TITLES[kind]}"


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], *map(int, sys.argv[2:]))))
