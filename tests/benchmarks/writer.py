"""How many rows the writer brings to disk in a second beside one busy pure-Python thread.

A busy thread gives the GIL up only when it has to, every 5 ms, so whatever the
writer does in many small steps is starved. Each cut here has as many rows as
pile up in about 50 ms; new jobs and jobs that completed take turns, as they do
in a queue that is worked off. Commits are as in earnest, fsync and checkpoints
included; the marks are there before the clock runs.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from harness import PAYLOAD, RESULT, Row, Settings, each_round

from bunqueue_py.clock import SystemClock
from bunqueue_py.ids import SystemIds
from bunqueue_py.model.job import COMPLETED, JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import AnyRow, JobRow, Marks, no_marks, row_of
from bunqueue_py.storage.sqlite.commits import Committer
from bunqueue_py.storage.sqlite.connection import connect_writable
from bunqueue_py.storage.sqlite.opening import open_database
from bunqueue_py.storage.sqlite.unflushed import Places
from bunqueue_py.storage.sqlite.writer import Writer

CUT_ROWS = 1000


class _Queue:
    name = "emails"


def measure(settings: Settings) -> list[Row]:
    """Rows a second, beside a busy thread and alone."""
    cuts = settings.size(quick=10, full=40)

    def work() -> dict[str, float]:
        alone = _rows_per_second(cuts)
        with _busy_thread():
            beside = _rows_per_second(cuts)
        return {"alone": alone, "beside": beside}

    taken = each_round("writer", settings, work)
    return [
        Row(
            "writer beside a busy thread",
            "rows/s",
            taken["beside"],
            better="higher",
            floor=30_000,
            aim=60_000,
            note=f"cuts of {CUT_ROWS:,} rows, fsync included",
        ),
        Row("writer alone", "rows/s", taken["alone"], better="higher"),
    ]


def _rows_per_second(cuts: int) -> float:
    waiting = iter(_cuts(cuts))

    def collect(begin: Callable[[], list[Marks]]) -> None:
        begin().append(next(waiting, no_marks()))

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "writer.db")
        committer = Committer(open_database(path).connection, lambda: connect_writable(path))
        writer = Writer(committer, Places(path), SystemClock())
        writer.start(collect, lambda: 0, threaded=False)
        began = perf_counter()
        for _ in range(cuts):
            assert writer.step(), writer.health()
            committer.after_commit()
        taken = perf_counter() - began
        committer.connection.close()
    return cuts * CUT_ROWS / taken


def _cuts(number: int) -> list[Marks]:
    """New jobs in one cut, the same ones completed in the next."""
    made: list[Marks] = []
    new_id, options = SystemIds().job_id, Options()
    data, result = json.dumps(PAYLOAD).encode(), json.dumps(RESULT).encode()
    now = 1_893_456_000_000
    while len(made) < number:
        pushed: dict[str, AnyRow | None] = {}
        acked: dict[str, JobRow] = {}
        for seq in range(len(made) * CUT_ROWS, (len(made) + 1) * CUT_ROWS):
            record = JobRecord(new_id(), _Queue, "welcome", options, 0, data)
            record.created_ms = record.run_at_ms = record.entered_ms = now + seq
            moment = record.created_ms
            pushed[record.id] = (
                record.id,
                _Queue.name,
                seq,
                moment,
                moment,
                record.name,
                options,
                data,
            )
            record.state, record.started_ms, record.entered_ms = COMPLETED, now + seq, now + seq + 9
            record.result_size = len(result)
            acked[record.id] = row_of(record, seq, result)
        made += [Marks(pushed, {}, {}, {}, {}), Marks({**acked}, {}, {}, {}, acked)]
    return made[:number]


@contextmanager
def _busy_thread() -> Iterator[None]:
    stop = threading.Event()

    def spin() -> None:
        count = 0
        while not stop.is_set():
            for _ in range(1000):
                count += 1

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
