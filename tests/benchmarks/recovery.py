"""How long a manager takes to be there again after its process was killed, and how much memory.

The file has pending jobs with the small payload and was never closed, so each
opening checks it first; the process that measures is killed in its turn. Before
that it reads all rows with a bare `SELECT`, which keeps none of them. The memory
at the peak is compared with what is resident once the jobs are there, both
beyond what was resident before.
"""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from time import perf_counter

from harness import PAYLOAD, Row, Settings, each_round, in_child, micros

from bunqueue_py import JobSpec, QueueManager

FILL = 1_000


def fill(path: str, jobs: int) -> dict[str, float]:
    """Makes the file, and leaves it as a kill would."""
    manager = QueueManager(path)
    for _ in range(0, jobs, FILL):
        manager.push_batch("q", [JobSpec("default", PAYLOAD) for _ in range(FILL)])
    manager.flush()
    return {}


def recover(path: str, jobs: int) -> dict[str, float]:
    """Seconds of a bare SELECT and of an opening; the memory's peak in units of what stays."""
    start = perf_counter()
    with closing(sqlite3.connect(path)) as connection:
        read = sum(1 for _ in connection.execute("SELECT * FROM jobs"))
    bare = perf_counter() - start
    assert read == jobs
    gc.collect()
    before = resident("VmRSS")
    start = perf_counter()
    manager = QueueManager(path)
    elapsed = perf_counter() - start
    assert manager.counts("q").waiting == jobs
    found = {"seconds": elapsed, "bare": bare, "times": elapsed / bare}
    if before:
        after = resident("VmRSS")
        found["peak"] = (resident("VmHWM") - before) / (after - before)
        found["bytes"] = (after - before) / jobs
    return found


def resident(what: str) -> int:
    """The resident set now (VmRSS) or at its greatest (VmHWM), in bytes; 0 where unknown."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    found = next(line for line in status.read_text().splitlines() if line.startswith(what))
    return int(found.split()[1]) * 1024


def measure(settings: Settings) -> list[Row]:
    """Three rows: seconds, times a SELECT, and the peak of the memory."""
    jobs = settings.size(quick=100_000, full=1_000_000)
    script = Path(__file__).name
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "jobs.db")
        in_child(script, "fill", path, jobs)
        found = each_round("recovery", settings, lambda: in_child(script, "recover", path, jobs))
    name = f"recovery of {jobs:,} jobs"
    note = f"{micros([each / jobs for each in found['seconds']])} a job"
    rows = [
        Row(f"{name}", "s", found["seconds"], floor=12 * jobs / 1_000_000, note=note),
        Row(f"{name}: against a bare SELECT", "x SELECT", found["times"], floor=4),
    ]
    if "peak" in found:
        size = sorted(found["bytes"])[len(found["bytes"]) // 2]
        rows.append(
            Row(
                f"{name}: memory at the peak",
                "x afterwards",
                found["peak"],
                floor=1.15,
                note=f"{size:,.0f} bytes a job",
            )
        )
    return rows


if __name__ == "__main__":
    work = {"fill": fill, "recover": recover}[sys.argv[1]]
    print(json.dumps(work(sys.argv[2], int(sys.argv[3]))), flush=True)
    os._exit(0)  # nothing is closed, as after a kill
