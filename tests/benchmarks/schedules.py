"""Ten thousand schedulers that are due in the same minute: how late the last fires, what an upsert
costs beside few and many others, and what a simulated year of one a minute takes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from bunqueue_py import JobSpec, QueueManager
from bunqueue_py.testing import Harness, VirtualClock

MANY = 10_000
DAYS = 10


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


def main() -> None:
    for when in ({"every": 60}, {"cron": "* * * * *", "tz": "Europe/Rome"}):
        with tempfile.TemporaryDirectory() as folder:
            for name, path in (("memory", None), ("SQLite", Path(folder) / "jobs.db")):
                upserts, fired = fire(path, when)
                print(
                    f"{next(iter(when)):5} {name:6} {MANY:,} due at once: all there after "
                    f"{fired:.2f} s; upsert {upserts / MANY * 1e6:.0f} us"
                )
        print(f"{next(iter(when)):5} a simulated year of one a minute: {year(when):.0f} s")


if __name__ == "__main__":
    main()
