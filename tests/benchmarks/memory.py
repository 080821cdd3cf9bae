"""Bytes of resident memory (RSS) that one queued job takes.

Unit: bytes a job, over 200,000 jobs (50,000 in the quick form). Every figure
comes from a fresh interpreter: import, warm up, collect, read the RSS, push the
jobs one at a time, collect, read it again.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

from harness import Row, Settings, each_round, in_child

from bunqueue_py import QueueManager

WARM_UP = 1_000
STATM = Path("/proc/self/statm")

Push = Callable[[QueueManager, int, Random], object]


def payload(index: int) -> dict[str, object]:
    """The small payload; no two neighbours alike, all of one length."""
    return {"to": "ada@example.com", "n": 10_000 + index % 90_000}


PUSHES: dict[str, Push] = {
    "plain": lambda m, i, dice: m.push("q", payload(i)),
    "priority": lambda m, i, dice: m.push("q", payload(i), priority=dice.randint(1, 1_000)),
    "delay": lambda m, i, dice: m.push("q", payload(i), delay=dice.uniform(3_600, 7_200)),
    "custom_id": lambda m, i, dice: m.push("q", payload(i), custom_id=f"order-{i:08}"),
}
FLOORS = {"plain": 600, "priority": 800, "delay": 800, "custom_id": 800}
AIMS = {"plain": 480}


def rss() -> int | None:
    """Bytes of this process that are in memory now; `None` where nothing says."""
    if STATM.exists():
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def child(kind: str, jobs: int) -> dict[str, float]:
    """Bytes a job, measured here and now."""
    push, dice = PUSHES[kind], Random(7)
    with QueueManager() as manager:
        for _ in range(WARM_UP):
            manager.push("warm-up", payload(0))
        while (job := manager.pull("warm-up")) is not None:
            manager.ack(job)
        gc.collect()
        before = rss()
        for index in range(jobs):
            push(manager, index, dice)
        gc.collect()
        after = rss()
    assert before is not None and after is not None
    return {"bytes": (after - before) / jobs}


def measure(settings: Settings) -> list[Row]:
    """Four rows: plain, with a priority, with a delay, with an id of the caller's own."""
    if rss() is None:
        print("psutil not installed and no /proc: memory skipped")
        return []
    jobs = settings.size(quick=50_000, full=200_000)

    def one_round() -> dict[str, float]:
        script = Path(__file__).name
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # no clock runs: side by side is fine
            answers = pool.map(lambda kind: in_child(script, kind, jobs)["bytes"], PUSHES)
            return dict(zip(PUSHES, answers, strict=True))

    once = replace(settings, rounds=1) if settings.quick else settings  # it hardly varies
    found = each_round("memory", once, one_round)
    return [
        Row(
            f"memory, {kind}",
            "bytes a job",
            values,
            floor=FLOORS[kind],
            aim=AIMS.get(kind),
            note=f"RSS over {jobs:,} jobs",
        )
        for kind, values in found.items()
    ]


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]))))
