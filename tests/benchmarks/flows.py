"""What ties between jobs cost: a chain, a wide parent, and jobs that have nothing to do with them.

Units: the rate of a chain in units of that of the same jobs without ties (one
thread pulls and acks, or a worker of one slot runs them; adding is not in it);
the time for a parent with its
children, from adding to the parent's end, in units of that of the same jobs
without a parent; the time of a cycle beside 10,000 gated jobs that wait for
something else, in units of the same without them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from harness import PAYLOAD, Row, Settings, Thing, interleave, rate

from bunqueue_py import FlowNode, FlowProducer, Queue, QueueManager, Worker

BATCH = 64


@contextmanager
def opened(on_disk: bool) -> Iterator[QueueManager]:
    """A new manager, in memory or on a file."""
    if not on_disk:
        with QueueManager() as manager:
            yield manager
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        QueueManager(Path(folder) / "jobs.db") as manager,
    ):
        yield manager


def run_all(manager: QueueManager, jobs: int) -> None:
    """Pulls and acks until that many jobs have run."""
    done = 0
    while done < jobs:
        job = manager.pull("q", timeout=10)
        assert job is not None
        manager.ack(job)
        done += 1


def drained(manager: QueueManager, jobs: int) -> float:
    """Seconds a job, of running what has been added, from when that is on disk until the last end
    is."""
    manager.flush()
    start = perf_counter()
    run_all(manager, jobs)
    manager.flush()
    return (perf_counter() - start) / jobs


def nodes(count: int) -> list[FlowNode]:
    """That many jobs of one queue."""
    return [FlowNode("q", "x", PAYLOAD) for _ in range(count)]


def chain(jobs: int, on_disk: bool) -> float:
    """Seconds a job, of a chain."""
    with opened(on_disk) as manager:
        FlowProducer(manager).chain(nodes(jobs))
        return drained(manager, jobs)


def apart(jobs: int, on_disk: bool) -> float:
    """Seconds a job, of jobs without ties."""
    with opened(on_disk) as manager:
        manager.push_batch("q", [("x", PAYLOAD)] * jobs)
        return drained(manager, jobs)


def through_a_worker(tied: bool, jobs: int, on_disk: bool) -> float:
    """Seconds a job, where a worker with one slot runs a chain, or the same jobs without ties."""
    with opened(on_disk) as manager:
        if tied:
            FlowProducer(manager).chain(nodes(jobs))
        else:
            manager.push_batch("q", [("x", PAYLOAD)] * jobs)
        manager.flush()
        queue = Queue("q", manager)
        worker = Worker(queue, lambda job: None)
        start = perf_counter()
        with worker:
            queue.wait_until_empty(timeout=600)
            manager.flush()
            return (perf_counter() - start) / jobs


def wide(jobs: int, on_disk: bool) -> float:
    """Seconds a job, adding included, of a parent and its children."""
    with opened(on_disk) as manager:
        start = perf_counter()
        FlowProducer(manager).fan_in(nodes(jobs - 1), FlowNode("q", "end"))
        run_all(manager, jobs)
        return (perf_counter() - start) / jobs


def bulk(jobs: int, on_disk: bool) -> float:
    """Seconds a job, adding included, of the same jobs without a parent, added as one flow too."""
    with opened(on_disk) as manager:
        start = perf_counter()
        FlowProducer(manager).add_bulk(nodes(jobs))
        run_all(manager, jobs)
        return (perf_counter() - start) / jobs


def batch(jobs: int, on_disk: bool) -> float:
    """Seconds a job, adding included, of the same jobs as one plain batch."""
    with opened(on_disk) as manager:
        start = perf_counter()
        manager.push_batch("q", [("x", PAYLOAD)] * jobs)
        run_all(manager, jobs)
        return (perf_counter() - start) / jobs


def beside(jobs: int, gated: int) -> float:
    """Seconds for a cycle of a job of another queue, beside jobs that wait for something else."""
    with opened(False) as manager:
        blocker = manager.push("blocked", name="blocker", delay=3600)
        if gated:
            FlowProducer(manager).add_bulk(
                [FlowNode("blocked", "x", depends_on=[blocker]) for _ in range(gated)]
            )
        start = perf_counter()
        for _ in range(jobs):
            manager.push("q", PAYLOAD)
            job = manager.pull("q")
            assert job is not None
            manager.ack(job)
        return (perf_counter() - start) / jobs


def measure(settings: Settings) -> list[Row]:
    """A row for each kind of tie, in memory and on a file."""
    jobs = settings.size(quick=2_000, full=10_000)
    things = []
    for where, on_disk in (("memory", False), ("SQLite", True)):
        things += [
            Thing(f"chain, {where}", partial(chain, jobs, on_disk), partial(apart, jobs, on_disk)),
            Thing(
                f"worker, {where}",
                partial(through_a_worker, True, jobs, on_disk),
                partial(through_a_worker, False, jobs, on_disk),
            ),
            Thing(f"wide, {where}", partial(wide, jobs, on_disk), partial(bulk, jobs, on_disk)),
            Thing(
                f"wide/batch, {where}", partial(wide, jobs, on_disk), partial(batch, jobs, on_disk)
            ),
        ]
    things.append(Thing("beside", partial(beside, jobs, 9_999), partial(beside, jobs, 0)))
    samples = interleave(things, settings, "flows")
    rows = []
    for where in ("memory", "SQLite"):
        for kind, text in (("chain", ""), ("worker", ", a worker")):
            found = samples[f"{kind}, {where}"]
            name = f"a chain of {jobs:,}, {where}{text}"
            row = Row(name, "x rate of apart", found.speed(), "higher", 0.5, 0.7)
            row.note = f"{rate(found.measured)}; apart {rate(found.baseline)}"
            rows.append(row)
        for kind, text in (("wide", "as one flow"), ("wide/batch", "as a batch")):
            found = samples[f"{kind}, {where}"]
            row = Row(
                f"a parent of {jobs:,}, {where}", f"x time {text}", found.cost(), "lower", 2.0, 1.5
            )
            row.note = f"{rate(found.measured)}; without a parent {rate(found.baseline)}"
            rows.append(row)
    row = Row("a cycle beside 10,000 gated", "x time alone", samples["beside"].cost(), "lower", 1.1)
    rows.append(row)
    return rows
