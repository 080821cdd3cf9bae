"""Ten thousand schedulers that are due in the same minute: how late the last fires, what an upsert
costs beside few and many others, and what a simulated year of one a minute takes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from bunqueue_py import JobSpec, QueueManager
from bunqueue_py.testing import Harness, VirtualClock

from harness import Row, Settings, each_round  # isort: skip

MANY = 10_000
DAYS = 10
NOTE = f"in the Harness, from {DAYS} days of it"


def fire(path: Path | None, when: dict[str, Any]) -> tuple[float, float]:
    """Seconds for the upserts, and until all jobs are there."""
    clock = VirtualClock()
    with QueueManager(path, clock=clock, background=False) as manager:
        began = time.perf_counter()
        for i in range(MANY):
            manager.schedulers.upsert(f"q{i % 10}", f"s{i}", job=JobSpec("x", i), **when)
        upserts = time.perf_counter() - began
        manager.flush()
        clock.advance(minutes=1)
        began = time.perf_counter()
        while manager.counts().waiting < MANY:
            manager.run_pending()
        return upserts, time.perf_counter() - began


def year(when: dict[str, Any]) -> float:
    """Seconds that a simulated year takes, from ten days of it."""
    with Harness() as h:
        queue = h.queue("q")
        h.worker(queue, lambda job: None)
        queue.schedulers.upsert("s", job=JobSpec("x", remove_on_complete=True), **when)
        began = time.perf_counter()
        h.advance(days=DAYS)
        return (time.perf_counter() - began) / DAYS * 365


def measure(settings: Settings) -> list[Row]:
    """Rows for a minute in which all are due, in memory and on a file, and for a year of one."""
    rows = []
    for when in ({"every": 60}, {"cron": "* * * * *", "tz": "Europe/Rome"}):
        kind = next(iter(when))

        def one_round(when: dict[str, Any] = when) -> dict[str, float]:
            with tempfile.TemporaryDirectory() as folder:
                upsert, memory = fire(None, when)
                _, file = fire(Path(folder) / "jobs.db", when)
            return {
                "upsert": upsert / MANY * 1e6,
                "memory": memory,
                "file": file,
                "year": year(when),
            }

        found = each_round(f"schedules, {kind}", settings, one_round)
        note = f"{MANY:,} due in one minute"
        rows += [
            Row(f"{kind}: all fired, in memory", "s", found["memory"], floor=2, note=note),
            Row(f"{kind}: all fired, on a file", "s", found["file"], floor=2, note=note),
            Row(f"{kind}: upsert", "us", found["upsert"], note=f"{MANY:,} of them, in memory"),
            Row(f"{kind}: a year of one a minute", "s", found["year"], floor=60, note=NOTE),
        ]
    return rows
