"""What a long queue costs: blocked groups, looking at it, changes of priority.

A pull among blocked groups is measured in units of a pull from a queue without
groups, a change of priority in a long queue in units of one in a short queue;
both in pieces that take turns. Counts and first pages are milliseconds, the
median over many calls on a queue of 1,000,000 jobs (100,000 in the quick form)
in a fresh interpreter, and so is the memory that changes of priority leave.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter

from harness import PAYLOAD, Row, Samples, Settings, each_round, in_child, micros, rounds, turned
from memory import rss

from bunqueue_py import Ack, JobSpec, Queue, QueueManager

FILL = 10_000
PIECE = 200
CALLS = 200
GROUPS = 1_000
QUEUED = 100_000
CHANGES = 100_000
PRIORITIES = (1, 1_000)
SHORT = 1_000
HOUR = 3_600
SOON = 0.001
PAGES = {
    "first page, waiting": "waiting",
    "first page, prioritized": "prioritized",
    "first page, delayed": "delayed",
}
CHANGE_COST = f"change_priority, {QUEUED:,} queued"
CHANGE_MEMORY = f"memory, {CHANGES:,} changes of priority"
BLOCKED = f"pull, {GROUPS:,} groups of which {GROUPS - 1} blocked"
ALONE = "pull, 1 group"


# -- blocked groups --------------------------------------------------------------------------


class Backlog:
    """A queue that is kept at one length; its new jobs are of that group."""

    def __init__(self, manager: QueueManager, group: str | None, others: int) -> None:
        self.manager = manager
        self.group = group
        names = [f"customer {i}" for i in range(others)]
        # half of the jobs are the others'
        spare = [group] * max(1, others) + names
        fill(
            manager,
            QUEUED,
            lambda i: JobSpec("default", PAYLOAD, group=spare[i % len(spare)]),
        )
        groups = Queue("q", manager).groups
        for name in names:
            groups[name].set_concurrency(1)
            assert manager.pull("q", group=name, lock_duration=HOUR) is not None
            assert manager.pull("q", group=name) is None

    def pull(self, jobs: int) -> float:
        """Seconds for one pull, over so many; acks and new jobs are outside the clock."""
        pull = self.manager.pull
        start = perf_counter()
        pulled = [pull("q") for _ in range(jobs)]
        elapsed = perf_counter() - start
        self.manager.ack_batch([Ack(job) for job in pulled if job is not None])
        self.manager.push_batch(
            "q", [JobSpec("default", PAYLOAD, group=self.group) for _ in range(jobs)]
        )
        return elapsed / jobs


def pulls(settings: Settings) -> list[Row]:
    """Two rows: what a pull costs among blocked groups, and with one group alone."""
    pieces = settings.size(quick=20, full=60)
    found = {BLOCKED: Samples(), ALONE: Samples()}
    with QueueManager() as among, QueueManager() as alone, QueueManager() as plain:
        # each blocked group has its one running job, and may run no more
        measured = {BLOCKED: Backlog(among, "free", GROUPS - 1), ALONE: Backlog(alone, "free", 0)}
        baseline = Backlog(plain, None, 0)
        for number in rounds(settings, "pulls from groups"):
            for name in turned(list(found), number):
                found[name].add_pieces(
                    partial(measured[name].pull, PIECE),
                    partial(baseline.pull, PIECE),
                    pieces=pieces,
                )
    return [
        Row(
            name,
            "ungrouped pulls",
            samples.cost(),
            floor=1.5 if name == BLOCKED else None,
            note=f"{QUEUED:,} queued; {micros(samples.measured)} a pull, "
            f"ungrouped {micros(samples.baseline)}",
        )
        for name, samples in found.items()
    ]


# -- looking ---------------------------------------------------------------------------------


def look(queued: int) -> dict[str, float]:
    """Milliseconds of `counts()` and of first pages, in one queue of three kinds of jobs."""
    dice = Random(7)
    kinds: list[Callable[[], JobSpec]] = [
        lambda: JobSpec("default", PAYLOAD),
        lambda: JobSpec("default", PAYLOAD, priority=dice.randint(*PRIORITIES)),
        # as many come due, and nobody moves them
        lambda: JobSpec("default", PAYLOAD, delay=HOUR if dice.random() < 0.5 else SOON),
    ]
    with QueueManager() as manager:
        fill(manager, queued, lambda i: kinds[i % 3]())
        gc.collect()
        times = {"counts()": timed(lambda: manager.counts("q"))}
        for title, state in PAGES.items():
            assert len(manager.get_jobs("q", state)) == 100
            times[title] = timed(partial(manager.get_jobs, "q", state))
    return times


def timed(call: Callable[[], object]) -> float:
    """The median of many calls, in milliseconds."""
    times = []
    for _ in range(CALLS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return statistics.median(times) * 1_000


def looks(settings: Settings) -> list[Row]:
    """Four rows: counts, and a first page for each kind of jobs."""
    queued = settings.size(quick=100_000, full=1_000_000)
    found = each_round("looking", settings, lambda: in_child(Path(__file__).name, "look", queued))
    note = "waiting, prioritized, delayed, a third each, of the last half due"
    if settings.quick:
        note += "; floor of 1,000,000"
    return [
        Row(f"{title}, {queued:,} queued", "ms", values, floor=1.0, note=note)
        for title, values in found.items()
    ]


# -- changes of priority ---------------------------------------------------------------------


class Prioritized:
    """A queue of so many jobs with priorities by the dice."""

    def __init__(self, manager: QueueManager, queued: int) -> None:
        self.dice = Random(7)
        self.queue = Queue("q", manager)
        self.ids = fill(manager, queued, self.spec)

    def spec(self, index: int) -> JobSpec:
        """A job with a priority by the dice."""
        return JobSpec("default", PAYLOAD, priority=self.dice.randint(*PRIORITIES))

    def change(self, jobs: int) -> float:
        """Seconds for one change, over so many."""
        choice, priority = self.dice.choice, self.dice.randint
        changes = [(choice(self.ids), priority(*PRIORITIES)) for _ in range(jobs)]
        change = self.queue.change_priority
        start = perf_counter()
        for job_id, to in changes:
            change(job_id, to)
        return (perf_counter() - start) / jobs


def changes(settings: Settings) -> Row:
    """A row: the cost of a change in a long queue."""
    pieces = settings.size(quick=50, full=100)
    found = Samples()
    with QueueManager() as long, QueueManager() as short:
        measured, baseline = Prioritized(long, QUEUED), Prioritized(short, SHORT)
        for _ in rounds(settings, "changes of priority"):
            found.add_pieces(
                partial(measured.change, PIECE), partial(baseline.change, PIECE), pieces=pieces
            )
    note = f"{micros(found.measured)} a change; with {SHORT:,} {micros(found.baseline)}"
    return Row(CHANGE_COST, f"x at {SHORT:,}", found.cost(), floor=2.0, note=note)


def kept(changes: int) -> dict[str, float]:
    """Bytes that a change leaves, by the growth of the resident set."""
    with QueueManager() as manager:
        queue = Prioritized(manager, SHORT)
        queue.change(PIECE)
        gc.collect()
        before = rss()
        for _ in range(0, changes, PIECE):
            queue.change(PIECE)
        gc.collect()
        after = rss()
    assert before is not None and after is not None
    return {"bytes": (after - before) / changes}


def memory(settings: Settings) -> list[Row]:
    """A row: what changes leave in memory."""
    if rss() is None:
        print("psutil not installed and no /proc: memory of changes skipped")
        return []
    found = each_round(
        CHANGE_MEMORY, settings, lambda: in_child(Path(__file__).name, "kept", CHANGES)
    )
    note = f"RSS; {SHORT:,} queued. A key that stayed would be 50 bytes and more"
    return [Row(CHANGE_MEMORY, "bytes a change", found["bytes"], floor=5.0, note=note)]


def fill(manager: QueueManager, jobs: int, spec: Callable[[int], JobSpec]) -> list[str]:
    """Pushes so many jobs, in batches; returns their ids."""
    ids: list[str] = []
    for start in range(0, jobs, FILL):
        batch = [spec(i) for i in range(start, min(start + FILL, jobs))]
        ids += [job.id for job in manager.push_batch("q", batch)]
    return ids


def measure(settings: Settings) -> list[Row]:
    """Eight rows: pulls from groups, counts, three first pages, changes and what they leave."""
    return [
        *pulls(settings),
        *looks(settings),
        changes(settings),
        *memory(settings),
    ]


CHILDREN = {"look": look, "kept": kept}

if __name__ == "__main__":
    print(json.dumps(CHILDREN[sys.argv[1]](int(sys.argv[2]))))
