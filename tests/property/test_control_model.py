"""Random verbs from outside: what is counted is what a full listing shows, always."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bunqueue_py import (
    Backoff,
    BunqueueError,
    Job,
    JobCounts,
    JobStateError,
    KeepJobs,
    Queue,
    QueueManager,
)
from bunqueue_py.ops import walk
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"
PRIORITIES = st.sampled_from([-3, 0, 0, 1, 8])
DELAYS = st.sampled_from([0, 0.004, 3, 60])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "priority": PRIORITIES,
        "delay": DELAYS,
        "lifo": st.booleans(),
        "ttl": st.sampled_from([2, 100]),
        "custom_id": st.sampled_from(["a", "b"]),
        "remove_on_complete": st.sampled_from([False, True, KeepJobs(count=2)]),
        "remove_on_fail": st.sampled_from([False, False, KeepJobs(age=50)]),
        "attempts": st.integers(1, 2),
    },
)
WAITS = ("waiting", "prioritized", "delayed")


class ControlMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 100), batch=st.lists(OPTIONS, min_size=3, max_size=10))
    def start(self, seed: int, batch: list[dict[str, Any]]) -> None:
        self.page = walk.PAGE
        walk.PAGE = 2
        self.clock = VirtualClock()
        self.manager = QueueManager(clock=self.clock, background=False, _ids=SeededIds(seed))
        self.queue = Queue("q", self.manager)
        self.known: dict[str, None] = {}
        self.held: list[Job] = []
        self.walks: list[tuple[Any, Counter[str], set[str]]] = []
        for options in batch:
            self.add(options)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            walk.PAGE = self.page
            self.manager.close()

    def moved(self, *job_ids: str) -> None:
        """Walks under way need not meet those jobs any more."""
        for _, _, put in self.walks:
            put.difference_update(job_ids)

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.known, "nobody"]))

    def state(self, job_id: str) -> str:
        return str(self.manager.get_state(job_id))

    # -- rules -------------------------------------------------------------------------------

    @rule(options=OPTIONS)
    def add(self, options: dict[str, Any]) -> None:
        job = self.queue.add("job", 0, backoff=Backoff.fixed(1, jitter=0), **options)
        self.known[job.id] = None

    @rule(when=st.integers(-5, 60), priority=PRIORITIES)
    def add_on_the_wall_clock(self, when: int, priority: int) -> None:
        moment = self.clock.now + timedelta(seconds=when)
        self.known[self.queue.add("job", run_at=moment, priority=priority).id] = None

    @rule(n=st.integers(1, 4))
    def pull(self, n: int) -> None:
        for job in self.manager.pull_batch("q", n):
            assert self.state(job.id) == "active"
            self.held.append(job)
            self.moved(job.id)

    @rule(data=st.data(), end=st.sampled_from(["ack", "fail", "release", "lose"]))
    def end(self, data: st.DataObject, end: str) -> None:
        if not self.held:
            return
        job = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if end == "lose":
            self.pass_time(30.0)
        elif end == "fail":
            self.manager.fail(job, "no")
        else:
            getattr(self.manager, end)(job)
        self.moved(job.id)

    @rule(seconds=st.sampled_from([0.001, 1.0, 4.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        # what comes due, or is lost, has changed its state
        self.moved(*self.known)
        self.clock.advance(seconds=seconds)
        self.manager.run_pending()

    @rule(data=st.data(), verb=st.sampled_from(["promote", "discard", "remove", "retry"]))
    def do(self, data: st.DataObject, verb: str) -> None:
        job_id = self.pick(data)
        before = self.state(job_id)
        sense = {
            "promote": WAITS,
            "discard": WAITS,
            "remove": (*WAITS, "completed", "failed"),
            "retry": ("completed", "failed"),
        }[verb]
        try:
            changed = getattr(self.queue, verb)(job_id)
        except JobStateError:
            assert before not in sense
            assert self.state(job_id) == before
        except BunqueueError:
            assert before == "unknown"
        else:
            assert before in sense
            assert changed is (verb != "promote" or before == "delayed")
            self.moved(job_id)
            if verb == "discard":
                assert self.state(job_id) == "failed"

    @rule(data=st.data(), priority=PRIORITIES, lifo=st.sampled_from([None, True, False]))
    def change_priority(self, data: st.DataObject, priority: int, lifo: bool | None) -> None:
        job_id = self.pick(data)
        if self.state(job_id) in WAITS:
            if self.queue.change_priority(job_id, priority, lifo):
                self.moved(job_id)
            job = self.manager.get_job(job_id)
            assert job is not None
            assert job.priority == priority

    @rule(data=st.data(), delay=DELAYS)
    def change_delay(self, data: st.DataObject, delay: float) -> None:
        job_id = self.pick(data)
        if self.state(job_id) in WAITS:
            if self.queue.change_delay(job_id, delay):
                self.moved(job_id)
            assert (self.state(job_id) == "delayed") is (delay > 0)

    @rule(limit=st.sampled_from([0, 2, None]))
    def promote_all(self, limit: int | None) -> None:
        delayed = self.queue.counts().delayed
        self.moved(*[job.id for job in self.queue.get_jobs("delayed")])
        expected = delayed if limit is None else min(limit, delayed)
        assert self.queue.promote_all(limit) == expected

    @rule(state=st.sampled_from(["completed", "failed"]), limit=st.sampled_from([1, None]))
    def retry_all(self, state: str, limit: int | None) -> None:
        there = [job.id for job in self.queue.get_jobs(state)]
        self.moved(*there)
        assert self.queue.retry_all(state, limit) == len(there[:limit])

    @rule(
        state=st.sampled_from([*WAITS, "completed", "failed"]),
        age=st.sampled_from([0, 0.5, 20]),
        limit=st.integers(0, 5),
    )
    def clean(self, state: str, age: float, limit: int) -> None:
        there = [job.id for job in self.queue.get_jobs(state)]
        gone = self.queue.clean(age, state=state, limit=limit)
        assert gone == there[: len(gone)]
        if age == 0:
            assert len(gone) == min(limit, len(there))
        self.moved(*gone)

    @rule(delayed=st.booleans())
    def drain(self, delayed: bool) -> None:
        self.moved(*[job.id for job in self.queue.get_jobs(WAITS)])
        self.queue.drain(delayed)

    @rule()
    def pause_or_resume(self) -> None:
        self.queue.resume() if self.queue.is_paused else self.queue.pause()

    @rule()
    def begin_a_walk(self) -> None:
        put = {job.id for job in self.queue.get_jobs(limit=10_000)}
        jobs = self.queue.iter_jobs()
        first = next(jobs, None)
        self.walks.append((jobs, Counter([] if first is None else [first.id]), put))

    @rule(steps=st.integers(1, 5), end=st.booleans())
    def go_on_walking(self, steps: int, end: bool) -> None:
        for under_way in list(self.walks):
            jobs, seen, put = under_way
            for _ in range(10_000 if end else steps):
                job = next(jobs, None)
                if job is None:
                    assert put <= set(seen), "one that stayed where it was never came"
                    self.walks.remove(under_way)
                    break
                seen[job.id] += 1
                assert seen[job.id] == 1, "a job came twice"

    # -- what must agree ---------------------------------------------------------------------

    @invariant()
    def the_counts_are_those_of_a_full_listing(self) -> None:
        if not hasattr(self, "manager"):
            return
        check(self.manager._state)
        jobs = self.queue.get_jobs(limit=10_000)
        states = Counter(str(job.state) for job in jobs)
        assert {job.id for job in jobs} <= set(self.known)
        assert len({job.id for job in jobs}) == len(jobs) == len(self.manager._state.index)
        if self.queue.is_paused:
            states["paused"] = states.pop("waiting", 0) + states.pop("prioritized", 0)
        assert self.queue.counts() == JobCounts(**states)
        waits = Counter(job.priority for job in jobs if job.state in WAITS)
        assert self.queue.counts_per_priority() == waits
        assert len(self.queue) == waits.total()
        assert len(self.queue.dlq) == states["failed"]


TestControl = ControlMachine.TestCase
TestControl.settings = settings(max_examples=15, stateful_step_count=25)


@pytest.mark.slow
class TestControlAtLength(ControlMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=30 if SHORT else 300, stateful_step_count=60)
