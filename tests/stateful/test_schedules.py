"""Schedulers against their model: upserts, removals, time, restarts, kills, in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from bunqueue_py import JobSpec, ManagerConfig, Queue, QueueManager, SqliteStorage
from bunqueue_py.durations import moment_to_ms, optional_moment
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock
from bunqueue_py.testing.model.schedules import ModelSchedules

NAMES = st.sampled_from("abc")
PERIODS = st.sampled_from([1, 250, 1_000, 7_000, 60_000])


class Schedules(RuleBasedStateMachine):
    """In memory."""

    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = VirtualClock()
        self.ids = SeededIds()
        self.model = ModelSchedules()
        self.open()

    def open(self) -> None:
        self.storage = SqliteStorage(f"{self.folder.name}/jobs.db") if self.on_disk else None
        self.manager = QueueManager(
            self.storage,
            clock=self.clock,
            background=False,
            config=ManagerConfig(shards=2),
            _ids=self.ids,
        )
        self.queue = Queue("q", self.manager)
        self.model.opened = self.now
        self.step()

    @property
    def now(self) -> int:
        return moment_to_ms(self.clock.now, "now")

    def step(self) -> None:
        self.manager.run_pending()
        self.model.step(self.now)

    @rule(
        name=NAMES,
        every=PERIODS,
        limit=st.sampled_from([None, None, 1, 3]),
        overlap=st.booleans(),
        catch_up=st.booleans(),
    )
    def upsert(
        self, name: str, every: int, limit: int | None, overlap: bool, catch_up: bool
    ) -> None:
        self.queue.schedulers.upsert(
            name,
            every=every / 1000,
            limit=limit,
            prevent_overlap=not overlap,
            catch_up=catch_up,
            job=JobSpec("x", remove_on_complete=True),
        )
        self.model.upsert(name, every, limit, overlap, catch_up, self.now)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        there = self.model.by_id.pop(name, None) is not None
        assert self.queue.schedulers.remove(name) is there

    @rule(ms=st.sampled_from([0, 1, 249, 250, 1_000, 6_999, 61_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(milliseconds=ms)
        self.step()

    @rule()
    def finish(self) -> None:
        jobs = self.manager.pull_batch("q", 1000)
        for job in jobs:
            self.manager.ack(job)
        assert len(jobs) == self.model.finish()

    @rule(ms=st.sampled_from([0, 1, 400, 8_000, 700_000]))
    def restart(self, ms: int) -> None:
        if self.on_disk:
            self.manager.close()
            self.clock.advance(milliseconds=ms)
            self.open()

    @rule()
    def kill(self) -> None:
        if self.storage is not None:
            self.manager.flush()
            for shard in self.manager._state.shards.shards:
                shard.gate = 2
            self.storage._abandon()
            self.manager.close()
            self.open()

    @invariant()
    def they_agree(self) -> None:
        check(self.manager._state)
        assert self.queue.counts().waiting == self.model.waiting
        found: dict[str, Any] = {s.id: s for s in self.queue.schedulers.list()}
        assert found.keys() == self.model.by_id.keys()
        for name, expected in self.model.by_id.items():
            ours = found[name]
            seen = (ours.runs, ours.skipped, ours.next_run_at, ours.last_planned_at)
            planned, last = optional_moment(expected.planned), optional_moment(expected.last)
            assert seen == (expected.runs, expected.skipped, planned, last), name

    def teardown(self) -> None:
        self.manager.close()
        self.folder.cleanup()


class SchedulesOnDisk(Schedules):
    """On a file."""

    on_disk = True


def play(machine: type[Schedules], runs: int) -> None:
    wanted = settings(max_examples=runs, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(machine, settings=wanted)  # type: ignore[no-untyped-call]


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Schedules, SchedulesOnDisk])
def test_schedulers_do_what_their_model_does(
    machine: type[Schedules], slow_rounds: Callable[[int, int], int]
) -> None:
    play(machine, slow_rounds(20, 1_000))
