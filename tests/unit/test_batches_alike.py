"""What a batch does is what the same calls one by one do: plain jobs go a shorter way through it,
and whatever is not plain may stand anywhere among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bunqueue_py import (
    Ack,
    Backoff,
    Deduplication,
    Job,
    JobEvent,
    JobSpec,
    KeepJobs,
    LockError,
    ManagerConfig,
    QueueManager,
    Repeat,
)
from bunqueue_py.model.job import Delivery, JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.ops.query import check
from bunqueue_py.shard.deadlines import LEASE, Deadlines
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.testing import SeededIds, VirtualClock

KINDS: list[dict[str, Any]] = [
    {"timeout": 9},
    {"ttl": 5},
    {"ttl": 500},
    {"priority": 3},
    {"lifo": True},
    {"delay": 2},
    {"deduplication": Deduplication("key", ttl=60)},
    {"custom_id": "name"},
    {"tags": ["a"]},
    {"remove_on_complete": True},
    {"remove_on_complete": KeepJobs(count=2)},
    {"repeat": Repeat(every=60, limit=2)},
    {"durable": True},
    {"group": "g"},
]
STORIES = range(40)
_T = TypeVar("_T")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as manager:
        yield manager
        check(manager._state)


class Dice:
    """Seeded choices."""

    def __init__(self, seed: int) -> None:
        self._random = SeededIds(seed).random

    def below(self, bound: int) -> int:
        """A number from 0 to below the bound."""
        return int(self._random() * bound)

    def one_of(self, choices: Sequence[_T]) -> _T:
        """One of these."""
        return choices[self.below(len(choices))]


class World:
    """A manager whose story is told with batches, or one call at a time."""

    def __init__(self, path: Path | None, *, batches: bool, measure: bool) -> None:
        self.clock = VirtualClock()
        self.manager = QueueManager(
            path,
            clock=self.clock,
            config=ManagerConfig(measure_times=measure),
            background=False,
            _ids=SeededIds(),
        )
        self.batches = batches
        self.events: list[tuple[Any, ...]] = []
        self.manager.events.subscribe(self._hear)

    def _hear(self, event: JobEvent) -> None:
        parts = ("type", "job_id", "timestamp", "sequence", "result", "error", "reason", "state")
        self.events.append(tuple(getattr(event, part) for part in parts))

    def pull(self, limit: int) -> list[Job]:
        """Up to so many jobs of the queue."""
        if self.batches:
            return self.manager.pull_batch("q", limit, lock_duration=30)
        jobs = [self.manager.pull("q", lock_duration=30) for _ in range(limit)]
        return [job for job in jobs if job is not None]

    def ack(self, acks: list[Ack]) -> list[str | None]:
        """How each was answered: applied (`None`), or why not."""
        if self.batches:
            return [outcome.reason for outcome in self.manager.ack_batch(acks)]
        answers = []
        for job, result, token in acks:
            assert isinstance(job, Job)
            try:
                outcome = self.manager.ack(job, result, token=token or job.token)
                answers.append(outcome.reason)
            except LockError:
                answers.append("not_issued")
        return answers

    def facts(self, jobs: list[Job]) -> list[Any]:
        """All that can be seen from outside."""
        manager = self.manager
        check(manager._state)
        seen: list[Any] = [manager.counts("q"), manager.minute_counts("q", "completed")]
        for job in jobs:
            found = manager.get_job(job.id)
            seen.append(None if found is None else found.to_dict())
            if found is not None and found.state == "completed":
                seen.append(found.result())
        stats = manager.stats()
        return [
            *seen,
            stats.queues["q"],
            [stats.times.get(part) for part in ("wait", "run")],
            self.events,
        ]


def tell(world: World, seed: int) -> list[Any]:
    """One story of pushes, batches of runs, their ends, and time; returns all that was seen."""
    dice, manager = Dice(seed), world.manager
    jobs: list[Job] = []
    seen: list[Any] = []
    held: list[Job] = []
    plain = seed % 4 * 3 + 1
    if seed % 7 == 0:
        manager.set_concurrency("q", 8)
    if seed % 5 == 0:
        # somebody waits for one of the jobs
        jobs.append(manager.push("q", "first"))
        jobs.append(manager.push("q", "second", depends_on=[jobs[0]]))
    for turn in range(6):
        for _ in range(3 + dice.below(9)):
            options = {} if dice.below(plain) else dice.one_of(KINDS)
            options = {"backoff": Backoff.fixed(1, jitter=0), **options}
            jobs.append(manager.push("q", {"n": len(jobs)}, **options))
        waiting = manager.get_jobs("q", "waiting")
        if waiting and dice.below(3) == 0:
            # what leaves from the middle of the line leaves a mark behind
            manager.remove(dice.one_of(waiting).id)
        world.clock.advance(milliseconds=dice.one_of([0, 0, 1, 1500, 6000]))
        got = world.pull(2 + dice.below(12))
        seen.append([job.to_dict() for job in got])
        held += got
        if held and dice.below(4) == 0:
            lost = held.pop(dice.below(len(held)))
            manager.fail(lost, "seeded")
        world.clock.advance(milliseconds=dice.one_of([0, 0, 1, 9000, 31_000]))
        manager.run_pending()
        count = dice.below(len(held) + 1) if turn < 5 else len(held)
        acks = [Ack(job, dice.one_of([None, {"n": 1}, "r" * 30])) for job in held[:count]]
        if acks and dice.below(4) == 0:
            other = dice.below(len(acks))
            acks[other] = acks[other]._replace(token=dice.one_of([held[0].token, "unknown"]))
        if acks and dice.below(3) == 0:
            acks.insert(dice.below(len(acks)), dice.one_of(acks))
        seen.append(world.ack(acks))
        held = held[count:]
    world.clock.advance(minutes=10)
    manager.run_pending()
    rest = world.pull(100)
    while rest:
        seen.append(world.ack([Ack(job) for job in rest]))
        rest = world.pull(100)
    return seen + world.facts(jobs)


def told(path: Path | None, seed: int, *, batches: bool) -> list[Any]:
    world = World(path, batches=batches, measure=bool(seed % 2))
    with world.manager:
        return tell(world, seed)


@pytest.mark.parametrize("seed", STORIES)
def test_a_batch_is_what_its_calls_one_by_one_are_in_memory(seed: int) -> None:
    assert told(None, seed, batches=True) == told(None, seed, batches=False)


@pytest.mark.parametrize("seed", STORIES[::10])
def test_a_batch_leaves_on_disk_what_its_calls_one_by_one_do(seed: int, tmp_path: Path) -> None:
    found = []
    for batches in (True, False):
        path = tmp_path / f"{batches}.db"
        seen = told(path, seed, batches=batches)
        with QueueManager(path, clock=VirtualClock(), background=False) as again:
            check(again._state)
            jobs = again.get_jobs("q")
            found.append((seen, [job.to_dict() for job in jobs]))
    assert found[0] == found[1]


def test_the_same_job_twice_in_a_batch_is_completed_once(manager: QueueManager) -> None:
    manager.push_batch("q", [("n", 0), ("n", 1), ("n", 2)])
    one, two, three = manager.pull_batch("q", 3)
    outcomes = manager.ack_batch([Ack(one, 1), Ack(two, 2), Ack(one, 3), Ack(three, 4)])
    assert [outcome.reason for outcome in outcomes] == [None, None, "already_finalized", None]
    assert [job.result() for job in (one, two, three)] == [1, 2, 4]
    assert manager.minute_counts("q", "completed")[0].count == 3


def test_of_a_claimed_batch_only_the_first_has_begun(manager: QueueManager) -> None:
    queue = manager._backend.wait_handle()
    manager.push_batch("q", [JobSpec("n"), JobSpec("n"), JobSpec("n", timeout=5), JobSpec("n")])
    jobs = manager._backend.claim("q", 10, 30_000, "me", queue)
    assert len(jobs) == 2, "one with a timeout must not wait in a batch"
    begun = [manager._state.index[job.id].delivery.begun for job in jobs]  # type: ignore[union-attr]
    assert begun == [True, False]


def test_what_a_batch_gives_back_unbegun_has_not_started_anew(
    manager: QueueManager, clock: VirtualClock
) -> None:
    jobs = manager.push_batch("q", [("n", n) for n in range(3)])
    for held in manager.pull_batch("q", 3):
        manager.release(held)
    clock.advance(seconds=1)
    # a rebuild puts what has come back among the plain ones again
    manager._state.queues["q"].shard.gate = BROKEN
    manager.pull("q", lock_duration=1)
    assert len(manager._state.queues["q"].ready.heap) == 0
    claimed = manager._backend.claim("q", 10, 30_000, "me", manager._backend.wait_handle())
    assert [job.id for job in claimed] == [job.id for job in jobs[1:]]
    manager._backend.give_back_unstarted([(job.id, job.token) for job in claimed[1:]])
    found = manager.get_job(claimed[1].id)
    assert found is not None
    assert found.started_at == clock.now - timedelta(seconds=1)


def test_leases_of_a_batch_run_out_at_their_moment(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push_batch("q", [("n", n) for n in range(5)])
    jobs = manager.pull_batch("q", 5, lock_duration=30)
    manager.ack(jobs[0])
    assert manager._state.alarm.due_ms == clock.timeline_ms() + 30_000
    clock.advance(seconds=29)
    manager.run_pending()
    assert manager.counts("q").active == 4
    clock.advance(seconds=2)
    manager.run_pending()
    assert manager.counts("q").active == 0
    assert manager.counts("q").completed == 1


def test_what_a_batch_leaves_stale_is_swept_as_fast_as_it_comes() -> None:
    deadlines = Deadlines()
    record = JobRecord("id", None, "n", Options(), 0, b"")
    for due in range(20_000):
        # of no delivery of the record: stale
        deadlines.push(due, LEASE, Delivery.of(record, "token", None, 1, due, True))
    deadlines.drop_many(10_000)
    deadlines.drop_many(10_000)
    assert len(deadlines) < 1_000


def test_results_of_a_batch_keep_to_their_bounds() -> None:
    config = ManagerConfig(keep_results=10)
    with QueueManager(config=config, clock=VirtualClock(), background=False) as manager:
        manager.push_batch("q", [("n", n) for n in range(30)])
        jobs = manager.pull_batch("q", 30)
        manager.ack_batch([Ack(job, "r") for job in jobs])
        results = manager._state.results
        assert len(results) == 10
        assert results.size == sum(len(results.get(job.id) or b"") for job in jobs)
        results.put_many({jobs[0].id: b"1", jobs[-1].id: b"another, longer one"})
        assert results.get(jobs[-1].id) == b"another, longer one"
        assert len(results) == 10
        assert results.size == sum(len(results.get(job.id) or b"") for job in jobs)


def test_what_a_batch_completes_makes_room_by_age() -> None:
    config = ManagerConfig(keep_completed=10)
    with QueueManager(config=config, clock=VirtualClock(), background=False) as manager:
        manager.push_batch("q", [("n", n) for n in range(40)])
        jobs = manager.pull_batch("q", 40)
        manager.ack_batch([Ack(job) for job in jobs])
        kept = [job.id for job in manager.get_jobs("q", "completed")]
        assert kept == [job.id for job in jobs[-10:]]
