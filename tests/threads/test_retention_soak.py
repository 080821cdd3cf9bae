"""Many jobs come and go through a file: it stays about as large as what is kept, its log too."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter

import pytest

from bunqueue_py import QueueManager

MIB = 1 << 20
BATCH = 500
ROOM = 64 * MIB
"""What the file may have beyond what is kept."""

LOG = 64 * MIB
LOG_OF_A_SECOND = 2 * 10 * 32 * MIB
"""What the log may have, and what more for each second that a reader stays: so long it is before
readers are waited for twice that long."""


def pass_through(manager: QueueManager, jobs: int, look: Callable[[], None]) -> None:
    for n in range(0, jobs, BATCH):
        manager.push_batch("q", [("work", {"n": n + i, "text": "x" * 40}) for i in range(BATCH)])
        done = manager.pull_batch("q", BATCH)
        assert len(done) == BATCH
        for job in done:
            manager.ack(job, {"n": job.data["n"]})
        if not n % (20 * BATCH):
            look()


@pytest.mark.slow
@pytest.mark.parametrize("outsider", [False, True], ids=["alone", "beside an open reader"])
def test_two_million_jobs_leave_a_file_about_as_large_as_what_is_kept(
    tmp_path: Path, slow_rounds: Callable[[int, int], int], outsider: bool
) -> None:
    path = tmp_path / "jobs.db"
    jobs = slow_rounds(50_000, 2_000_000)
    logs: list[int] = []
    with QueueManager(path) as manager:
        stop = threading.Event()
        stays: list[float] = [0.0]
        reader = threading.Thread(target=read_now_and_then, args=(path, stop, stays))

        def look() -> None:
            logs.append(os.path.getsize(f"{path}-wal"))

        if outsider:
            reader.start()
        try:
            pass_through(manager, jobs, look)
        finally:
            stop.set()
            if outsider:
                reader.join()
        assert manager.counts("q").completed <= 50_000
        manager.flush()
        report = manager.verify()
        assert report.ok, report.problems
        assert report.jobs is not None
        assert report.jobs.total == manager.counts("q").total
    kept = kept_bytes(path)
    assert os.path.getsize(path) <= kept + ROOM, (os.path.getsize(path), kept)
    assert not os.path.exists(f"{path}-wal")
    # one look in vain comes before the next when the log is a quarter longer
    bound = 1.3 * (LOG + LOG_OF_A_SECOND * max(stays))
    assert max(logs) <= bound, (max(logs), max(stays))


@pytest.mark.slow
def test_with_the_defaults_memory_keeps_what_it_says_and_the_totals_count_all(
    slow_rounds: Callable[[int, int], int],
) -> None:
    """B131: the file's half is above."""
    jobs = slow_rounds(60_000, 1_000_000)
    sizes: list[int] = []
    with QueueManager() as manager:
        state = manager._state

        def look() -> None:
            sizes.append(len(state.index))

        pass_through(manager, jobs, look)
        look()
        # the oldest go in bites, as jobs end
        assert max(sizes) <= 50_000 + 2 * BATCH
        assert manager.counts("q").completed == manager.counts("q").total <= 50_000
        stats = manager.stats()
        assert (stats.totals.added, stats.totals.completed) == (jobs, jobs)
        memory = stats.memory
        assert memory["results"] <= 10_000
        # up to 1,000 more, until they are let go together
        assert memory["proofs"] <= 51_000


def read_now_and_then(path: Path, stop: threading.Event, stays: list[float]) -> None:
    """Another program with an open transaction most of the time, as a shell or a backup tool."""
    while not stop.is_set():
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            began = perf_counter()
            connection.execute("SELECT COUNT(*) FROM jobs").fetchone()
            stop.wait(0.5)
        stays.append(perf_counter() - began)


def kept_bytes(path: Path) -> int:
    """How large a file with nothing but what is in it is."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (f"{path}.small",))
    return os.path.getsize(f"{path}.small")
