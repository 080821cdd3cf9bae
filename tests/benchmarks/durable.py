"""Pushes that are on disk when they return, against the least that SQLite can do for that.

Unit: times the rate of one thread that does `INSERT` and `COMMIT`, one row each, at
`synchronous=FULL` with a write-ahead log, in the same folder. Where many threads
push at once they share their commits; a commit is one sync of the disk.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter

from harness import PAYLOAD, Row, Settings, Thing, interleave, rate

from bunqueue_py import QueueManager, SqliteStorage

MANY = 16


def raw(jobs: int) -> float:
    """Seconds for one row, inserted and committed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "raw.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, queue TEXT, data TEXT)")
            execute = connection.execute
            start = perf_counter()
            for n in range(jobs):
                execute("BEGIN IMMEDIATE")
                execute("INSERT INTO jobs VALUES (?, 'q', ?)", (f"job-{n}", json.dumps(PAYLOAD)))
                execute("COMMIT")
            return (perf_counter() - start) / jobs


def pushed(threads: int, jobs: int, served: list[float]) -> float:
    """Seconds for one durable push; adds how many there were to a commit to `served`."""
    with tempfile.TemporaryDirectory() as folder:
        storage = SqliteStorage(Path(folder) / "jobs.db")
        with QueueManager(storage) as manager:
            manager.push("q", PAYLOAD, durable=True)
            each = jobs // threads

            def push() -> None:
                for _ in range(each):
                    manager.push("q", PAYLOAD, durable=True)

            others = [threading.Thread(target=push) for _ in range(threads - 1)]
            before = storage.health().commits
            start = perf_counter()
            for thread in others:
                thread.start()
            push()
            for thread in others:
                thread.join()
            elapsed = perf_counter() - start
            served.append(each * threads / (storage.health().commits - before))
    return elapsed / (each * threads)


def measure(settings: Settings) -> list[Row]:
    """Three rows: one thread, sixteen, and how many jobs shared a sync."""
    jobs = settings.size(quick=300, full=1_000)
    served: list[float] = []
    baseline = partial(raw, jobs)
    one, many = "durable push, 1 thread", f"durable push, {MANY} threads"
    samples = interleave(
        [
            Thing(one, partial(pushed, 1, jobs, []), baseline),
            Thing(many, partial(pushed, MANY, 4 * jobs, served), baseline),
        ],
        settings,
        "durable",
    )
    rows = []
    for name, floor, aim in ((one, 0.45, 0.65), (many, 2.2, 3)):
        found = samples[name]
        note = f"{rate(found.measured)}; raw {rate(found.baseline)}"
        rows.append(Row(name, "x raw", found.speed(), "higher", floor=floor, aim=aim, note=note))
    shared = f"durable push, {MANY} threads: jobs a sync"
    return [*rows, Row(shared, "jobs", served, "higher", floor=12)]
