"""Groups against a model that looks through all jobs each time."""

from __future__ import annotations

import os
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bunqueue_py import ANY, Backoff, Job, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"
NAMES = ("a", "b", "c")
GROUPS = st.sampled_from((None, *NAMES))


class Known:
    """A job of the model."""

    def __init__(self, job: Job, number: int, group: str | None, lifo: bool, run_at: int) -> None:
        self.id = job.id
        self.number = number
        self.group = group
        self.priority = job.priority
        self.lifo = lifo
        self.run_at = run_at
        self.active: Job | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """Its place within its group."""
        if self.lifo:
            return (-self.priority, 0, -self.number, 0)
        return (-self.priority, 1, self.run_at, self.number)


class Setting:
    """What holds for a group, or for the queue."""

    def __init__(self) -> None:
        self.paused = False
        self.concurrency: int | None = None
        self.rate: tuple[int, int] | None = None
        self.starts: list[int] = []
        self.cool_until = 0

    def may_start(self, active: int, now: int) -> bool:
        if self.paused or now < self.cool_until:
            return False
        if self.concurrency is not None and active >= self.concurrency:
            return False
        if self.rate is not None:
            most, per = self.rate
            return sum(1 for s in self.starts if s > now - per) < most
        return True


class GroupedQueue(RuleBasedStateMachine):
    """Every verb that groups have to do with. Which group's turn it is is not the model's to say
    beyond this: a group that could start all along is passed over at most once by any other."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.manager = QueueManager(clock=self.clock, background=False, _ids=SeededIds())
        self.numbers = count(1)
        self.jobs: dict[str, Known] = {}
        self.settings = {name: Setting() for name in (None, *NAMES)}  # None: the queue's own
        self.passed: dict[str, dict[str, int]] = {name: {} for name in NAMES}

    def teardown(self) -> None:
        self.manager.close()

    # -- the model -------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.timeline_ms()

    def active(self, group: str | None = None) -> int:
        return sum(
            1
            for job in self.jobs.values()
            if job.active is not None and (group is None or job.group == group)
        )

    def ready(self, group: str | None) -> list[Known]:
        return sorted(
            (
                job
                for job in self.jobs.values()
                if job.group == group and job.active is None and job.run_at <= self.now
            ),
            key=lambda job: job.order,
        )

    def open_groups(self) -> set[str]:
        return {
            name
            for name in NAMES
            if self.ready(name) and self.settings[name].may_start(self.active(name), self.now)
        }

    # -- verbs -----------------------------------------------------------------------------

    @rule(
        group=GROUPS,
        priority=st.sampled_from([0, 0, 0, 5, -5]),
        lifo=st.booleans(),
        delay=st.sampled_from([0, 0, 0, 7]),
    )
    def push(self, group: str | None, priority: int, lifo: bool, delay: int) -> None:
        job = self.manager.push("q", group=group, priority=priority, lifo=lifo, delay=delay / 1000)
        self.jobs[job.id] = Known(job, next(self.numbers), group, lifo, self.now + delay)
        assert job.group == group

    @rule(choice=st.sampled_from((ANY, ANY, ANY, None, *NAMES)))
    def pull(self, choice: object) -> None:
        could = self.open_groups()
        queue_open = self.settings[None].may_start(self.active(), self.now)
        pulled = self.manager.pull("q", lock_duration=None, group=choice)  # type: ignore[arg-type]
        ungrouped = self.ready(None)
        if not queue_open:
            assert pulled is None
            return
        if choice is ANY or choice is None:
            if ungrouped:
                assert pulled is not None
                assert pulled.id == ungrouped[0].id
            elif choice is None or not could:
                assert pulled is None
        elif choice not in could:
            assert pulled is None
        if pulled is None:
            assert choice is None or (choice is not ANY and choice not in could) or not could
            return
        known = self.jobs[pulled.id]
        if known.group is not None:
            assert known.group in could
            assert choice in (ANY, known.group)
            assert known is self.ready(known.group)[0]
            self.settings[known.group].starts.append(self.now)
            if choice is ANY:
                self.take_turn(known.group, could)
        self.settings[None].starts.append(self.now)
        known.active = pulled

    def take_turn(self, taken: str, could: set[str]) -> None:
        """Fair to within one turn: nobody who could start is passed over twice by the same."""
        for other in could - {taken}:
            passed = self.passed[other]
            passed[taken] = passed.get(taken, 0) + 1
            assert passed[taken] <= 1, f"{taken} came twice while {other} was waiting its turn"
        self.passed[taken].clear()

    @rule(how=st.sampled_from(["ack", "fail", "fail for good", "release", "later"]))
    @precondition(lambda self: self.active())
    def end(self, how: str) -> None:
        known = next(job for job in self.jobs.values() if job.active is not None)
        job, known.active = known.active, None
        assert job is not None
        if how == "release":
            assert self.manager.release(job)
        elif how == "later":
            assert self.manager.release(job, delay=0.003)
            known.run_at, known.number = self.now + 3, next(self.numbers)
        elif how == "fail" and job.attempt < job.max_attempts:
            # the default wait is random: a retry that is removed is as good as one that is run
            self.manager.fail(job, "broken")
            self.manager.remove(known.id)
            del self.jobs[known.id]
        else:
            if how == "ack":
                self.manager.ack(job)
            else:
                self.manager.fail(job, "broken", unrecoverable=True)
            del self.jobs[known.id]

    @rule()
    @precondition(lambda self: any(job.active is None for job in self.jobs.values()))
    def remove(self) -> None:
        known = next(job for job in self.jobs.values() if job.active is None)
        self.manager.remove(known.id)
        del self.jobs[known.id]

    @rule(ms=st.sampled_from([0, 1, 2, 5, 10, 30]))
    def advance(self, ms: int) -> None:
        self.clock.advance(milliseconds=ms)
        self.manager.run_pending()

    @rule(name=st.sampled_from(NAMES), paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        self.manager.pause_group("q", name, paused)
        self.settings[name].paused = paused

    @rule(name=GROUPS, bound=st.sampled_from([None, 1, 2]))
    def concurrency(self, name: str | None, bound: int | None) -> None:
        self.manager.set_concurrency("q", bound, name)
        self.settings[name].concurrency = bound

    @rule(name=GROUPS, rate=st.none() | st.tuples(st.integers(1, 3), st.just(10)))
    def rate(self, name: str | None, rate: tuple[int, int] | None) -> None:
        setting = self.settings[name]
        if rate is None:
            self.manager.clear_rate_limit("q", name)
        else:
            if setting.rate is None:
                setting.starts.clear()
            else:
                setting.starts = setting.starts[-min(rate[0], setting.rate[0]) :]
            self.manager.set_rate_limit("q", rate[0], rate[1] / 1000, group=name)
        setting.rate = rate

    @rule(name=GROUPS, ms=st.sampled_from([0, 4, 15]))
    def cool(self, name: str | None, ms: int) -> None:
        self.manager.cool_down("q", ms / 1000, name)
        self.settings[name].cool_until = self.now + ms

    # -- what always holds -----------------------------------------------------------------

    @invariant()
    def the_line_holds_just_those_with_a_ready_job_that_may_start(self) -> None:
        check(self.manager._state)
        groups = self.manager._state.queues["q"].groups if self.manager.queues() else None
        in_line = set(groups.line) if groups is not None else set()
        could = self.open_groups()
        assert in_line <= could
        for name in could - in_line:
            # not yet in line: a delayed job or a timer that is due, which the next pull sees
            group = None if groups is None else groups.by_name.get(name)
            assert group is not None
            due_timer = group.timer_ms is not None and group.timer_ms <= self.now
            assert due_timer or len(group.ready) < len(self.ready(name))
        for name in NAMES:
            if name not in could:
                for passed in (self.passed[name], *self.passed.values()):
                    passed.pop(name, None)
                self.passed[name].clear()

    @invariant()
    def the_counts_are_right(self) -> None:
        for name in NAMES:
            pending, active, paused = self.manager.group_view("q", name)
            waiting = [j for j in self.jobs.values() if j.group == name and j.active is None]
            assert sum(pending.values()) == len(waiting)
            assert active == self.active(name)
            assert paused is self.settings[name].paused
            for priority, n in pending.items():
                assert n == sum(1 for job in waiting if job.priority == priority) > 0
        counts = self.manager.counts("q")
        assert counts.active == self.active()
        assert counts.waiting + counts.prioritized + counts.delayed == sum(
            1 for job in self.jobs.values() if job.active is None
        )


TestGroupedQueue = GroupedQueue.TestCase
TestGroupedQueue.settings = settings(max_examples=15, stateful_step_count=50)


@pytest.mark.slow
class TestGroupedQueueAtLength(GroupedQueue.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=30 if SHORT else 300, stateful_step_count=60)


@given(
    sizes=st.lists(st.integers(1, 8), min_size=2, max_size=6),
    batches=st.lists(st.integers(1, 5), min_size=1, max_size=30),
)
def test_round_robin_is_fair_to_within_one_turn(sizes: list[int], batches: list[int]) -> None:
    """As long as groups have jobs, the number of turns that they have had differs by one."""
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        for g, size in enumerate(sizes):
            for _ in range(size):
                manager.push("q", group=f"g{g}")
        had = [0] * len(sizes)
        for batch in batches:
            for job in manager.pull_batch("q", batch):
                assert job.group is not None
                had[int(job.group[1:])] += 1
                for g, size in enumerate(sizes):
                    # one that has jobs left is never more than a turn behind anybody
                    assert had[g] == size or had[g] >= max(had) - 1
        check(manager._state)


@given(
    retried=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=12),
)
def test_a_retried_job_comes_back_into_its_own_group(retried: list[tuple[str, int]]) -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        for group, failures in retried:
            manager.push("q", failures, group=group, attempts=4, backoff=Backoff.fixed(1, jitter=0))
        left = {name: sum(1 for g, _ in retried if g == name) for name in NAMES}
        while sum(left.values()):
            job = manager.pull("q")
            if job is None:
                clock.advance(seconds=1)
                continue
            assert job.group is not None
            if job.attempts_made < job.data:
                manager.fail(job, "once more")
            else:
                manager.ack(job)
                left[job.group] -= 1
            for name in NAMES:
                pending, active, _ = manager.group_view("q", name)
                assert sum(pending.values()) + active == left[name]
            check(manager._state)
        assert manager.group_names("q") == []
