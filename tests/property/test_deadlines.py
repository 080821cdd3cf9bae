"""`Deadlines` against a list of what is still to be judged; and that no verb lets them pile up."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_py import KeepJobs, QueueManager
from bunqueue_py.model.failure import Failure
from bunqueue_py.model.job import Delivery, JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.ops.leases import release_unstarted
from bunqueue_py.ops.pull import pull
from bunqueue_py.ops.query import check
from bunqueue_py.shard import deadlines as module
from bunqueue_py.shard.deadlines import LEASE, RETENTION, TIMEOUT, TTL, Deadlines
from bunqueue_py.testing import VirtualClock
from bunqueue_py.types import FailureReason

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"

OPTIONS = Options()
NO = Failure(FailureReason.UNKNOWN, "no")


class Subject:
    """A job that moves through its states, and the deadlines that matter while it does."""

    def __init__(self, number: int, now: int) -> None:
        self.record = JobRecord(f"job{number}", None, "job", OPTIONS, 0, b"")
        self.record.created_ms = self.record.run_at_ms = self.record.entered_ms = now
        self.number = number


class DeadlinesMachine(RuleBasedStateMachine):
    """Jobs wait with a ttl, run under a lease and a timeout, end and are kept for a while. What
    a transition makes pointless is dropped, as the verbs do."""

    @initialize()
    def start(self) -> None:
        self.deadlines = Deadlines()
        self.now = 1_000
        self.numbers = 0
        self.waiting: list[Subject] = []
        self.running: list[Subject] = []
        self.ended: list[Subject] = []
        self.live: list[tuple[int, int, Any]] = []  # (due, kind, subject)
        self.room = 0  # how many mattered when the last was dropped: only then is it looked at

    def arm(self, due: int, kind: int, subject: Any) -> None:
        self.deadlines.push(due, kind, subject)
        self.live.append((due, kind, subject))

    def disarm(self, *subjects: Any) -> None:
        lost = [entry for entry in self.live if entry[2] in subjects]
        self.live = [entry for entry in self.live if entry[2] not in subjects]
        if lost:
            self.deadlines.drop(len(lost))
            self.room = len(self.live)

    @rule(step=st.integers(0, 50))
    def pass_time(self, step: int) -> None:
        self.now += step

    @rule(ttls=st.lists(st.integers(1, 200), min_size=1, max_size=40))
    def add(self, ttls: list[int]) -> None:
        for ttl in ttls:
            self.numbers += 1
            subject = Subject(self.numbers, self.now)
            self.waiting.append(subject)
            self.arm(self.now + ttl, TTL, subject.record)

    @precondition(lambda self: self.waiting)
    @rule(lease=st.integers(1, 100), timeout=st.none() | st.integers(1, 100), n=st.integers(1, 30))
    def run(self, lease: int, timeout: int | None, n: int) -> None:
        for _ in range(min(n, len(self.waiting))):
            subject = self.waiting.pop(0)
            record = subject.record
            delivery = Delivery.of(record, f"t{self.now}", None, lease, self.now + lease, True)
            record.start(delivery, self.now)
            self.disarm(record)
            self.running.append(subject)
            self.arm(self.now + lease, LEASE, delivery)
            if timeout is not None:
                self.arm(self.now + timeout, TIMEOUT, delivery)

    @precondition(lambda self: self.running)
    @rule(keep=st.none() | st.integers(1, 100), n=st.integers(1, 30), well=st.booleans())
    def end(self, keep: int | None, n: int, well: bool) -> None:
        for _ in range(min(n, len(self.running))):
            subject = self.running.pop(0)
            delivery = subject.record.delivery
            if well:
                subject.record.complete(self.now, -1)
            else:
                subject.record.fail(NO, self.now)
            self.disarm(delivery)
            self.ended.append(subject)
            if keep is not None:
                self.arm(self.now + keep, RETENTION, subject.record)

    @precondition(lambda self: self.ended or self.waiting)
    @rule(n=st.integers(1, 40))
    def remove(self, n: int) -> None:
        for _ in range(n):
            if self.ended or self.waiting:
                subject = (self.ended or self.waiting).pop()
                subject.record.remove()
                self.disarm(subject.record)

    @rule(limit=st.integers(1, 20))
    def judge(self, limit: int) -> None:
        for _ in range(limit):
            due = [entry for entry in self.live if entry[0] <= self.now]
            taken, _ = self.deadlines.take_due(self.now, 1)
            if not due:
                assert taken == []
                return
            popped = taken[0]
            entry = (popped[0], popped[2], popped[3])
            assert entry[0] == min(due, key=lambda known: known[0])[0]
            self.live.remove(entry)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "deadlines"):
            return
        self.deadlines.check()
        expected = min((entry[0] for entry in self.live), default=None)
        assert self.deadlines.next_ms() == expected
        stale = len(self.deadlines) - len(self.live)
        assert 0 <= stale <= max(64, self.room) + 1


TestDeadlines = DeadlinesMachine.TestCase
TestDeadlines.settings = settings(max_examples=6, stateful_step_count=20)


class BitesMachine(DeadlinesMachine):
    """The same with bites so small that most steps find a sweep under way."""

    SIZES: ClassVar[dict[str, int]] = {"SWEEP_AT": 4, "AT_ONCE": 6, "BITE": 3, "EVERY": 1}

    def __init__(self) -> None:
        super().__init__()
        self.kept = {name: getattr(module, name) for name in self.SIZES}
        for name, size in self.SIZES.items():
            setattr(module, name, size)

    def teardown(self) -> None:
        for name, size in self.kept.items():
            setattr(module, name, size)

    @rule(limit=st.integers(1, 9))
    def clean_up(self, limit: int) -> None:
        if not self.deadlines.old:
            self.deadlines.begin_sweep()
        self.deadlines.sweep_some(limit)

    @rule(limit=st.integers(1, 20))
    def judge(self, limit: int) -> None:
        for _ in range(limit):
            due = sorted(entry[0] for entry in self.live if entry[0] <= self.now)
            taken, more = self.deadlines.take_due(self.now, 2)
            assert len(taken) <= 2
            assert more or len(taken) == len(due), "it says so where something is left"
            assert [entry[0] for entry in taken] == due[: len(taken)], "the earliest come first"
            for popped in taken:
                self.live.remove((popped[0], popped[2], popped[3]))

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "deadlines"):
            return
        self.deadlines.check()
        expected = min((entry[0] for entry in self.live), default=None)
        found = self.deadlines.next_ms()
        if expected is None:
            # no more than a bite of stale ones is passed over at each look
            assert found is None or len(self.deadlines) > 0
        else:
            assert found is not None
            assert found <= expected
        left = Counter((due, kind, id(what)) for due, _, kind, what in self.deadlines.entries())
        assert not Counter((d, kind, id(what)) for d, kind, what in self.live) - left, "one is lost"
        assert len(self.deadlines) - len(self.live) <= 3 * max(4, self.room) + 8


TestDeadlinesInBites = BitesMachine.TestCase
TestDeadlinesInBites.settings = settings(max_examples=6, stateful_step_count=20)


@pytest.mark.slow
class TestDeadlinesInBitesAtLength(BitesMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20 if SHORT else 300, stateful_step_count=50)


def test_no_drop_looks_at_more_than_a_bite_however_many_are_stale() -> None:
    deadlines, deliveries = Deadlines(), []
    for n in range(6_000):
        record = Subject(n, n).record
        deliveries.append(Delivery.of(record, "t", None, 30_000, n + 30_000, True))
        record.start(deliveries[-1], n)
        deadlines.push(n + 30_000, LEASE, deliveries[-1])
    most = sweeps = 0
    for ended, delivery in enumerate(deliveries, 1):
        delivery.record.complete(ended, -1)
        before, all_of_them = len(deadlines.old), len(deadlines)
        deadlines.drop()
        if deadlines.old and not before:
            sweeps += 1
        most = max(most, (before or all_of_them) - len(deadlines.old) if deadlines.old else before)
        assert len(deadlines) - (len(deliveries) - ended) <= 6_000 * 5 // 8
    assert 0 < most <= 512
    assert sweeps >= 2
    assert len(deadlines) < 600
    deadlines.check()


@pytest.mark.slow
class TestDeadlinesAtLength(DeadlinesMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20 if SHORT else 200, stateful_step_count=50)


def test_ten_thousand_deliveries_that_end_leave_no_memory_behind() -> None:
    deadlines = Deadlines()
    for n in range(10_000):
        record = Subject(n, n).record
        delivery = Delivery.of(record, "t", None, 30_000, n + 30_000, True)
        record.start(delivery, n)
        deadlines.push(n + 30_000, LEASE, delivery)
        deadlines.push(n + 60_000, TIMEOUT, delivery)
        record.complete(n, -1)
        deadlines.drop(2)
    assert len(deadlines) <= 130
    deadlines.check()
    assert deadlines.next_ms() is None
    assert len(deadlines) == 0


# -- and through the verbs -----------------------------------------------------------------------

CYCLES = 2_000
ROOM = 300


def pending_entries(manager: QueueManager) -> int:
    return sum(len(shard.deadlines) for shard in manager._state.shards.shards)


def run_once(manager: QueueManager, **options: Any) -> Any:
    manager.push("mail", **options)
    job = manager.pull("mail")
    assert job is not None
    return job


def removed_with_ttl(manager: QueueManager) -> None:
    manager.remove(manager.push("mail", ttl=86_400))


def drained_with_ttl(manager: QueueManager) -> None:
    manager.push("mail", ttl=86_400)
    manager.drain("mail")


def acked(manager: QueueManager) -> None:
    manager.ack(run_once(manager, timeout=86_400, ttl=86_400, remove_on_complete=True))


def released_and_removed(manager: QueueManager) -> None:
    job = run_once(manager, timeout=86_400)
    manager.release(job)
    manager.remove(job)


def failed(manager: QueueManager) -> None:
    job = run_once(manager, timeout=86_400, remove_on_fail=True)
    manager.fail(job, "no", unrecoverable=True)


def obliterated(manager: QueueManager) -> None:
    run_once(manager, timeout=86_400, ttl=86_400)
    manager.obliterate("mail", force=True)


def kept_then_removed(manager: QueueManager) -> None:
    job = run_once(manager, remove_on_complete=KeepJobs(age=86_400))
    manager.ack(job)
    manager.remove(job)


def kept_then_pushed_out_by_the_count(manager: QueueManager) -> None:
    manager.ack(run_once(manager, remove_on_complete=KeepJobs(count=1, age=86_400)))


def kept_then_replaced_by_its_custom_id(manager: QueueManager) -> None:
    options: dict[str, Any] = {"custom_id": "x", "remove_on_complete": KeepJobs(age=86_400)}
    manager.ack(run_once(manager, **options))


def kept_dead_then_removed(manager: QueueManager) -> None:
    job = run_once(manager, remove_on_fail=KeepJobs(age=86_400))
    manager.fail(job, "no", unrecoverable=True)
    manager.remove(job)


@pytest.mark.parametrize(
    "cycle",
    [
        removed_with_ttl,
        drained_with_ttl,
        acked,
        released_and_removed,
        failed,
        obliterated,
        kept_then_removed,
        kept_then_pushed_out_by_the_count,
        kept_then_replaced_by_its_custom_id,
        kept_dead_then_removed,
    ],
)
def test_jobs_that_are_gone_leave_no_deadlines_behind(cycle: Any) -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        for _ in range(CYCLES):
            cycle(manager)
        assert pending_entries(manager) <= ROOM
        check(manager._state)


@pytest.mark.parametrize(
    "options",
    [{"remove_on_complete": KeepJobs(age=86_400)}, {"ttl": 86_400}],
    ids=["kept for a day", "with a ttl"],
)
def test_a_job_that_is_run_and_retried_again_and_again_has_few_deadlines(
    options: dict[str, Any],
) -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        manager.push("mail", **options)
        for _ in range(CYCLES):
            job = manager.pull("mail")
            manager.ack(job)
            manager.retry(job)
        assert pending_entries(manager) <= ROOM
        check(manager._state)


def test_runs_that_end_in_the_order_in_which_they_began_leave_no_deadline_behind() -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        for _ in range(10):
            manager.push("mail")
        for job in [manager.pull("mail") for _ in range(10)]:
            before = pending_entries(manager)
            manager.ack(job)
            assert pending_entries(manager) == before - 1
        assert pending_entries(manager) == 0
        check(manager._state)


def test_of_runs_that_end_the_other_way_round_the_leases_of_those_under_way_stay() -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        for _ in range(10):
            manager.push("mail")
        jobs = [manager.pull("mail") for _ in range(10)]
        for job in jobs[:4:-1]:
            manager.ack(job)
        check(manager._state)
        clock.advance(seconds=31)
        manager.run_pending()
        assert [manager.get_state(job) for job in jobs] == ["delayed"] * 5 + ["completed"] * 5


def test_a_job_with_a_ttl_that_is_taken_and_given_back_again_and_again_has_few_deadlines() -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        manager.push("mail", ttl=86_400)
        for _ in range(CYCLES):
            (view,) = pull(manager._state, "mail", 1, 0, 30_000, None)
            release_unstarted(manager._state, [(view._id, view.token)])
        assert pending_entries(manager) <= ROOM
        check(manager._state)


def test_a_lease_that_is_extended_and_shortened_again_and_again_has_few_deadlines() -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        job = run_once(manager)
        for _ in range(CYCLES):
            assert manager.extend_lock(job, 3600)
            assert manager.extend_lock(job, 60)
        assert pending_entries(manager) <= ROOM
        check(manager._state)


def test_a_lease_that_is_renewed_again_and_again_has_one_deadline() -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        job = run_once(manager)
        for _ in range(500):
            clock.advance(seconds=20)
            manager.run_pending()
            assert manager.heartbeat(job)
        assert pending_entries(manager) == 1
        assert manager.get_state(job) == "active"
