"""One round of flows that are killed: what is on disk, and what the next process makes of it."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from bunqueue_py import QueueManager
from bunqueue_py.model.job import COMPLETED, FAILED, GATED, JobRecord
from bunqueue_py.model.links import (
    FAIL,
    FAILED_CHILD,
    IGNORED,
    MET,
    UNMET,
    WAIT,
    policy_of,
    status_of,
)
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import DATA, QUEUE
from bunqueue_py.ops.flow import look
from bunqueue_py.ops.outcomes import links_of
from bunqueue_py.ops.query import check
from bunqueue_py.storage.sqlite.recovery import stored_jobs
from bunqueue_py.storage.sqlite.rows import RowDecoder
from bunqueue_py.stores.dependencies import DEAD, DONE, GONE, LIVE
from tests.crash.books import Journal
from tests.crash.flow_child import BIG
from tests.crash.rounds import kill_one, plan_of
from tests.storage_check import check_storage, full_rows
from tests.unit.sqlite_files import crash_copy


class Found(Counter[str]):
    """What the rounds came to."""

    def report(self) -> str:
        return ", ".join(f"{what}: {n}" for what, n in sorted(self.items()))


def play_flows(path: Path, seed: int, found: Found) -> None:
    """One or two children, one after the other, each killed; then everything is finished."""
    for generation in range(random.Random(seed).choice((1, 1, 2))):
        plan = {**plan_of(seed + 1000 * generation), "module": "tests.crash.flow_child"}
        journal, _ = kill_one(path, generation, plan)
        if not path.exists():
            return
        found["kills"] += 1
        whole_or_not_at_all(path, generation, journal, found)
    manager = QueueManager(path)
    try:
        check(manager._state)
        no_effect_is_half_applied(manager, found)
        check_storage(manager, str(path))
        finish_all(manager)
        no_effect_is_half_applied(manager, found)
        check_storage(manager, str(path))
    finally:
        manager.close()


def play_big_flow(path: Path, seed: int, found: Found) -> None:
    """A child is killed while it adds a flow of 10,000 jobs: all of it is there, or nothing."""
    plan = {**plan_of(seed), "module": "tests.crash.flow_child", "big": True, "span": 2.0}
    kill_one(path, 0, plan)
    text = path.with_name("journal0").read_text()
    found["kills"] += 1
    found["killed while it was being added"] += '"added"' not in text
    if not path.exists():
        return
    manager = QueueManager(path)
    try:
        there = manager.counts().total
        assert there in (0, BIG), f"{there} of {BIG} jobs are there"
        assert there or '"flushed"' not in text, "a flow was on disk and is lost"
        found["whole" if there else "nothing"] += 1
        edges = [links_of(record) for record in manager._state.index.values()]
        assert sum(len(links.edges) for links in edges if links is not None) in (0, BIG - 1)
        check(manager._state)
        no_effect_is_half_applied(manager, Found())
        check_storage(manager, str(path))
    finally:
        manager.close()


def whole_or_not_at_all(path: Path, generation: int, journal: Journal, found: Found) -> None:
    """A flow that was being added is there or not; one that was added before the last commit is."""
    copy = crash_copy(path, path.with_name("copy.db"))
    try:
        with closing(sqlite3.connect(copy)) as connection:
            if not connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]:
                return
            rows = full_rows(stored_jobs(connection, RowDecoder(Options()), str(copy)))
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{copy}{suffix}").unlink(missing_ok=True)
    there: Counter[tuple[int, int]] = Counter()
    sizes: dict[tuple[int, int], int] = {}
    roots: set[tuple[int, int]] = set()
    for row in rows:
        of, t = (int(part[1:]) for part in row[QUEUE].split("-")[:2])
        if of == generation:
            data = json.loads(row[DATA])
            key = (t, data["flow"])
            there[key] += 1
            sizes[key] = data["of"]
            if data["root"]:
                roots.add(key)
    for t, op in journal.under_way.items():
        if op["flow"] is not None and there[t, op["flow"]]:
            assert there[t, op["flow"]] == sizes[t, op["flow"]], "a flow is there in part"
            found["adds that were killed and are whole"] += 1
        elif op["flow"] is not None:
            found["adds that were killed and left nothing"] += 1
    for t, done in journal.done.items():
        flows = [op["flow"] for op in done if op["flow"] is not None]
        for op in done[: journal.promised.get(t, 0)]:
            if op["flow"] is not None:
                assert (t, op["flow"]) in roots, "a flow was committed and is lost"
                found["committed flows"] += 1
        kept = [flow for flow in flows if (t, flow) in roots]
        assert kept == flows[: len(kept)], "a later flow without an earlier one"


def no_effect_is_half_applied(manager: QueueManager, found: Found) -> None:
    """Nobody waits for what has ended, and nobody has gone on, or failed, without a reason."""
    state = manager._state
    assert not state.dependencies.pending
    for record in state.index.values():
        links = links_of(record)
        if links is None or not links.edges:
            continue
        found["jobs with children"] += 1
        seen = {other: look(state, other) for other in links.edges}
        kinds = {other: found_.kind for other, found_ in seen.items()}
        for other, code in links.edges.items():
            assert not (record.state == GATED and status_of(code) == UNMET and seen[other].left)
            _edge_makes_sense(record, code, kinds[other], f"{record.id} of {other}")
            if record.state < COMPLETED and status_of(code) == MET and kinds[other] == DONE:
                found["results read"] += 1
        if record.state == GATED:
            assert links.unmet, "it waits for nothing"
        failure = None if record.side is None else record.side.failure
        if record.state == FAILED and failure and failure.reason == "dependency_failed":
            assert any(kind in (DEAD, GONE, LIVE, DONE) for kind in kinds.values())
        if record.state in (GATED, FAILED):
            values = manager.children_values(record.id)
            assert all(value == f"result of {other}" for other, value in values.items())


def _edge_makes_sense(record: JobRecord, code: int, kind: int, what: str) -> None:
    status, policy = status_of(code), policy_of(code)
    if status == UNMET and record.state == GATED:
        assert kind == LIVE or (kind == DEAD and policy == WAIT), f"{what}: waits for what ended"
    elif status == UNMET:
        assert record.state == FAILED, f"{what}: went on without it"
    elif status in (IGNORED, FAILED_CHILD):
        assert policy not in (FAIL, WAIT), f"{what}: went on against its policy"


def finish_all(manager: QueueManager) -> None:
    """Everything that can run does; then only what waits for a retry is gated."""
    while True:
        ran = 0
        for queue in manager.queues():
            for job in manager.pull_batch(queue, 1_000):
                manager.ack(job, f"result of {job.id}")
                ran += 1
        if not ran:
            break
    state = manager._state
    for record in state.index.values():
        links = links_of(record)
        if record.state != GATED or links is None:
            continue
        for other in links.waited_for():
            seen = state.index[other]
            assert seen.state in (GATED, FAILED), "nobody would ever let it go"
