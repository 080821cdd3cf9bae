"""Between two bites of a long pass whoever else works gets the interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Lock

import pytest

from bunqueue_py import ManagerConfig, Queue, QueueManager
from bunqueue_py.clock import SystemClock
from bunqueue_py.ops.query import check
from bunqueue_py.tasks.give_way import GiveWay
from bunqueue_py.testing import VirtualClock

MS = 1_000_000


class Played(SystemClock):
    """Time by hand: each look costs `step_ns`, and a rest comes to an end `late_ms` late."""

    def __init__(self, late_ms: int = 0, step_ns: int = 0) -> None:
        super().__init__()
        self.now_ns = 0
        self.late_ms, self.step_ns = late_ms, step_ns
        self.rests: list[int] = []
        self.elapsed_ns: Callable[[], int] = self.look

    def look(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns

    def wait(self, lock: Lock, timeout_ms: int | None) -> bool:
        assert timeout_ms is not None
        assert not lock.acquire(False), "a rest ends by time alone"
        self.rests.append(timeout_ms)
        self.now_ns += (timeout_ms + self.late_ms) * MS
        return False

    def work(self, give_way: GiveWay, bites: int, each_ns: int) -> list[int]:
        """After which bites it rested."""
        rested = []
        for bite in range(bites):
            self.now_ns += each_ns
            before = len(self.rests)
            give_way()
            if len(self.rests) > before:
                rested.append(bite)
        return rested


def at_work(clock: Played, stopping: Callable[[], bool] = lambda: False) -> GiveWay:
    give_way = GiveWay(clock, stopping)
    give_way.begin()
    return give_way


def test_a_pass_rests_for_a_moment_after_each_millisecond_of_work() -> None:
    clock = Played()
    assert clock.work(at_work(clock), 12, MS // 4) == [3, 7, 11]
    assert clock.rests == [1, 1, 1]


def test_a_pass_that_finds_others_at_work_leaves_them_nine_tenths() -> None:
    clock = Played(late_ms=5)
    give_way = at_work(clock)
    assert clock.work(give_way, 3, MS) == [0, 1, 2]
    assert clock.rests == [1, 5, 5], "the first rest tells that somebody had the interpreter"
    clock.late_ms = 0
    assert clock.work(give_way, 2, MS) == [0, 1]
    assert clock.rests[3:] == [5, 1], "nobody wants it any more"


def test_a_pass_among_many_others_works_longer_and_not_less_often_than_a_tenth() -> None:
    clock = Played(late_ms=35)
    rested = clock.work(at_work(clock), 24, MS)
    assert [b - a for a, b in itertools.pairwise(rested[1:])] == [4] * (len(rested) - 2)
    crowd = Played(late_ms=500)
    rested = crowd.work(at_work(crowd), 24, MS)
    assert rested[1:4] == [5, 10, 15], "never longer than the interpreter lets it"


def test_a_pass_that_is_waited_for_goes_on_without_a_rest() -> None:
    clock = Played()
    assert clock.work(at_work(clock, lambda: True), 10, MS) == []


@pytest.mark.parametrize("what", ["late pass", "leases expire", "clean-up", "finished jobs"])
def test_every_long_pass_gives_way_between_its_bites(what: str) -> None:
    n = 600
    clock = VirtualClock()
    keep = 10 if what == "finished jobs" else 50_000
    config = ManagerConfig(shards=1, keep_completed=50_000)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        state, loop = manager._state, manager._loop
        rests: list[bool] = []
        lock = state.shards.shards[0].lock

        def rest() -> None:
            rests.append(lock.locked())

        loop.give_way = rest
        for task in loop.tasks:
            if task.name == "clean-up":
                task.tick.__self__._give_way = rest  # type: ignore[attr-defined]
        queue = Queue("q", manager)
        queue.add_bulk([("n", None)] * n)
        held = manager.pull_batch(queue, n, lock_duration=30)
        if what == "late pass":
            clock.advance(seconds=20)
            state.alarm.set(clock.timeline_ms() - 10_000)
            loop.turn()
        elif what == "leases expire":
            clock.advance(seconds=30)
            loop.turn()
            assert queue.counts().active == 0
        else:
            for job in held:
                manager.ack(job)
            object.__setattr__(config, "keep_completed", keep)
            state.cleanup.arm(clock.timeline_ms())
            loop.turn()
            assert queue.counts().completed == min(n, keep)
        assert len(rests) >= 2
        assert not any(rests), "a lock was held meanwhile"
        check(state)
