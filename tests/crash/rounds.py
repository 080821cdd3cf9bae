"""One round of a crash test: a child is killed, perhaps another on the same file, and the books
are balanced after each."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from bunqueue_py import QueueManager
from bunqueue_py.model.job import PENDING
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import (
    ATTEMPTS_MADE,
    CLAIM,
    CUSTOM_ID,
    DATA,
    OPTIONS,
    PRIORITY,
    QUEUE,
    RESULT,
    RESULT_SIZE,
    SIDE,
    STATE,
    row_of,
)
from bunqueue_py.ops.log_rows import LOG_KIND, read_line
from bunqueue_py.ops.query import check
from bunqueue_py.ops.tally import MINUTES_KIND, read_hour
from bunqueue_py.ops.webhooks import WEBHOOK_KIND
from bunqueue_py.shard.keys import seq_of
from bunqueue_py.storage.sqlite.recovery import stored_jobs
from bunqueue_py.storage.sqlite.rows import RowDecoder
from bunqueue_py.stores.logs import Line
from tests.crash.books import (
    Balance,
    Entry,
    Journal,
    balance,
    hook_entry,
    line_of,
    read_journal,
    recovered,
)
from tests.storage_check import check_storage, full_rows
from tests.unit.sqlite_files import crash_copy

ROOT = Path(__file__).resolve().parents[2]
GROUP_IN_SIDE = 4
COMPLETED_POINTS = 0

Books = dict[tuple[int, int], dict[int, Entry]]
"""The jobs on disk, by generation and thread."""

Counts = dict[str, int]
"""How many completed jobs of each queue its counts by the minute tell of."""


class Losses:
    """What the rounds came to."""

    def __init__(self) -> None:
        self.points: Counter[str] = Counter()
        self.operations = self.lost = self.commits = self.generations = 0
        self.ages: list[float] = []

    def add(self, journal: Journal, killed_at: int, balances: list[Balance]) -> None:
        self.generations += 1
        self.points[journal.point or "at random"] += 1
        self.commits += journal.commits
        for found in balances:
            self.operations += found.returned
            self.lost += found.returned - found.kept
            if found.first_lost is not None:
                self.ages.append((killed_at - found.first_lost["at"]) / 1e6)

    def report(self) -> str:
        ages = sorted(self.ages) or [0.0]
        points = ", ".join(f"{point}: {n}" for point, n in sorted(self.points.items()))
        return (
            f"{self.generations} kills, {self.commits} commits, {self.operations} operations "
            f"returned, {self.lost} of them lost, all newer than the last commit; the oldest lost "
            f"one was {statistics.median(ages):.1f} ms old in the median, {ages[-1]:.1f} ms at "
            f"most; killed {points}"
        )


POINTS: list[dict[str, Any]] = [
    {"point": "random", "when": "at"},
    *({"point": "commit", "when": when} for when in ("before", "during", "after")),
    *(
        {"point": "statement", "when": when, "match": match}
        for when in ("before", "during", "after")
        for match in ("", "BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT")
    ),
    *({"point": "checkpoint", "when": when} for when in ("before", "during", "after")),
    *({"point": "swap", "when": when} for when in ("before", "after")),
    *({"point": "mark", "when": when} for when in ("before", "after")),
]


def plan_of(seed: int) -> dict[str, Any]:
    """Where the round of that seed is killed."""
    rng = random.Random(seed)
    plan = dict(POINTS[seed % len(POINTS)] if seed % 3 else POINTS[0])
    span = {"mark": 1_000, "checkpoint": 1, "swap": 30, "commit": 8}.get(plan["point"], 12)
    if plan.get("match") == "DELETE":
        span = 4
    return {**plan, "n": rng.randint(1, span), "threads": rng.randint(1, 3), "seed": seed}


def kill_one(path: Path, generation: int, plan: dict[str, Any]) -> tuple[Journal, int]:
    """Runs a child on the file until it is killed; returns its journal and the moment."""
    journal = path.with_name(f"journal{generation}")
    told = {
        "seconds": 0.4,
        **plan,
        "path": str(path),
        "journal": str(journal),
        "generation": generation,
    }
    child = subprocess.Popen(
        [sys.executable, "-m", plan.get("module", "tests.crash.child"), json.dumps(told)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    try:
        if plan["point"] == "random":
            while not journal.exists() and child.poll() is None:
                time.sleep(0.002)
            time.sleep(random.Random(plan["seed"]).uniform(0.0, plan.get("span", 0.35)))
            child.kill()
        killed_at = time.monotonic_ns()
        _, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == -signal.SIGKILL, errors.decode()
    text = journal.read_text() if journal.exists() else ""
    assert '"broken"' not in text, text[text.index('"broken"') :]
    found = read_journal(text.splitlines())
    return found, found.killed_at or killed_at


def read_books(path: Path) -> tuple[Books, Counts]:
    """What is on disk, read as it was left; a copy, so that nothing is recovered of it."""
    copy = crash_copy(path, path.with_name("copy.db"))
    try:
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            tables = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
            if not tables:
                return {}, {}
            rows = full_rows(stored_jobs(connection, RowDecoder(Options()), str(copy)))
            apart = dict(connection.execute("SELECT id, data FROM results"))
            strays = connection.execute(
                "SELECT id FROM payloads UNION SELECT id FROM results EXCEPT SELECT id FROM jobs"
            ).fetchall()
            assert not strays, f"parts of jobs that are not there: {strays}"
            rest = connection.execute("SELECT kind, key, body FROM rest").fetchall()
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{copy}{suffix}").unlink(missing_ok=True)
    books: Books = {}
    logs: dict[str, list[Line]] = {}
    counts: Counts = {}
    for kind, key, body in rest:
        if kind == LOG_KIND:
            job_id, line = read_line(key, json.loads(body))
            logs.setdefault(job_id, []).append(line)
        elif kind == WEBHOOK_KIND:
            found = json.loads(body)
            _enter_hook(books, found["url"], on=found["enabled"])
        elif kind == MINUTES_KIND:
            queue = key.partition("\0")[0]
            points = read_hour(COMPLETED_POINTS, key, json.loads(body))
            counts[queue] = counts.get(queue, 0) + sum(count for _, count in points)
    for row in rows:
        assert isinstance(row, tuple), row
        result = row[RESULT]
        if row[RESULT_SIZE] >= 0 and result is None:
            result = apart.get(row[0])
            assert result is not None, f"job {row[0]} of {row[QUEUE]} has lost its result"
        _enter(books, row, result, logs.pop(row[0], []))
    assert not logs, f"logs of jobs that are not there: {logs}"
    return books, counts


def _enter_hook(books: Books, url: str, *, on: bool) -> None:
    queue, k = url.split("/")[-2:]
    generation, t = (int(part[1:]) for part in queue.split("-")[:2])
    n, entry = hook_entry(queue, int(k), on=on)
    assert n not in books.setdefault((generation, t), {}), f"{url} is there twice"
    books[generation, t][n] = entry


def _enter(books: Books, row: Any, result: bytes | None, lines: list[Line]) -> None:
    data = json.loads(row[DATA])
    generation, t = (int(part[1:]) for part in row[QUEUE].split("-")[:2])
    assert data["pad"] == "x" * len(data["pad"])
    kept = None if result is None else json.loads(result)
    assert kept is None or kept == "r" * len(kept)
    entry = Entry(
        row[QUEUE],
        row[STATE],
        row[ATTEMPTS_MADE],
        row[OPTIONS].attempts,
        len(data["pad"]),
        row[PRIORITY],
        row[CUSTOM_ID],
        None if row[CLAIM] is None else row[CLAIM][0],
        None if row[SIDE] is None else row[SIDE][GROUP_IN_SIDE],
        None if kept is None else len(kept),
        row[OPTIONS].remove_on_complete is True,
        len(lines),
    )
    # of a log no line is missing, and none is another's
    texts = [line.text for line in sorted(lines)]
    assert texts == [line_of(data["n"], number) for number in range(len(lines))], texts
    jobs = books.setdefault((generation, t), {})
    assert data["n"] not in jobs, f"job {data['n']} of {row[QUEUE]} is there twice"
    jobs[data["n"]] = entry


def memory_books(manager: QueueManager) -> Books:
    """What a manager has recovered."""
    books: Books = {}
    state = manager._state
    for record in state.index.values():
        row = list(row_of(record, seq_of(record) or 0))
        row[DATA] = record.data
        assert state.storage is not None
        result = state.storage.read_result(record.id) if record.result_size >= 0 else None
        lines, total = state.logs.page(record.id, 0, 100)
        assert total == len(lines)
        _enter(books, row, result, lines)
    for hook in state.webhooks.views():
        _enter_hook(books, hook.url, on=hook.enabled)
    return books


def differences(found: Books, expected: Books) -> str:
    """Some of the jobs that are not as they should be."""
    pairs = [
        (key, n, found.get(key, {}).get(n), expected.get(key, {}).get(n))
        for key in {**found, **expected}
        for n in {**found.get(key, {}), **expected.get(key, {})}
    ]
    wrong = [pair for pair in pairs if pair[2] != pair[3]]
    return f"{len(wrong)} wrong (thread, number, found, expected): {wrong[:5]}"


def play(path: Path, seed: int, losses: Losses) -> None:
    """A whole round: one to three children, one after the other."""
    generations = random.Random(seed).choice((1, 1, 2, 3))
    _play(path, [plan_of(seed + 1000 * n) for n in range(generations)], losses)


def play_one(path: Path, plan: dict[str, Any], losses: Losses) -> None:
    """A round with a single child, killed as planned."""
    _play(path, [plan], losses)


def _play(path: Path, plans: list[dict[str, Any]], losses: Losses) -> None:
    before: Books = {}
    for generation, plan in enumerate(plans):
        journal, killed_at = kill_one(path, generation, plan)
        if not path.exists():
            continue
        books, counts = read_books(path)
        balances = [
            balance(t, journal, books.get((generation, t), {})) for t in sorted(journal.done)
        ]
        losses.add(journal, killed_at, balances)
        _check_older(books, before, generation, journal)
        for found in balances:
            _check_counts(counts, found, journal)
        before = books
    if path.exists():
        _recover(path, before)


def _check_older(books: Books, before: Books, generation: int, journal: Journal) -> None:
    """The jobs of an earlier child: as it left them, or as the next one recovered them, and that
    once it has committed anything. All of them in one of the two ways."""
    older = {key: jobs for key, jobs in books.items() if key[0] < generation}
    after = {key: recovered(jobs) for key, jobs in before.items()}
    if not (older == before and not journal.commits):
        assert older == after, differences(older, after)


def _check_counts(counts: Counts, found: Balance, journal: Journal) -> None:
    """The counts by the minute tell of no end that is not there."""
    ops = [*journal.done[found.t][: found.kept], journal.under_way.get(found.t, {"op": ""})]
    acked: Counter[str] = Counter()
    for op in ops:
        if op["op"] == "ack":
            acked[op["q"]] += len(op["items"])
    for queue in acked:
        assert counts.get(queue, 0) <= acked[queue], (queue, counts[queue], acked[queue])


def _recover(path: Path, before: Books) -> None:
    expected = {key: recovered(jobs) for key, jobs in before.items()}
    manager = QueueManager(path)
    try:
        check(manager._state)
        found = memory_books(manager)
        assert found == expected, differences(found, expected)
        check_storage(manager, str(path))
        _finish_all(manager, expected)
        check(manager._state)
        check_storage(manager, str(path))
    finally:
        manager.close()
    with QueueManager(path) as manager:
        left = [entry for jobs in memory_books(manager).values() for entry in jobs.values()]
        assert PENDING not in {entry.state for entry in left}
        check(manager._state)


def _finish_all(manager: QueueManager, expected: Books) -> None:
    """Every pending job runs once, and no other."""
    for jobs in expected.values():
        for queue in {entry.queue for entry in jobs.values()}:
            got: list[int] = []
            while pulled := manager.pull_batch(queue, 100):
                for job in pulled:
                    got.append(job.data["n"])
                    assert manager.ack(job).applied
            pending = [n for n, e in jobs.items() if e.queue == queue and e.state == PENDING]
            assert sorted(got) == sorted(pending)
