"""`DelayedIndex` against a list."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_py.model.job import JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.shard.delayed import DelayedIndex

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"

OPTIONS = Options()


def record_of(number: int, priority: int, run_at_ms: int, now: int) -> JobRecord:
    record = JobRecord(f"job{number}", None, "job", OPTIONS, priority, b"")
    record.created_ms = record.entered_ms = now
    record.run_at_ms = run_at_ms
    return record


class DelayedMachine(RuleBasedStateMachine):
    @initialize(now=st.integers(1, 2_000_000_000_000))
    def start(self, now: int) -> None:
        self.index = DelayedIndex()
        self.model: list[tuple[int, JobRecord]] = []  # (number, record), as they came in
        self.gone: list[JobRecord] = []
        self.now = now
        self.seq = 0

    @rule(step=st.integers(0, 40))
    def pass_time(self, step: int) -> None:
        self.now += step

    @rule(step=st.integers(1, 40))
    def set_the_clock_back(self, step: int) -> None:
        """As a wall clock may be: what was taken as due does not come again."""
        self.now = max(1, self.now - step)

    @rule(
        delays=st.lists(
            st.tuples(st.sampled_from([-2, 0, 0, 1, 7]), st.integers(1, 60)), min_size=1, max_size=9
        )
    )
    def push(self, delays: list[tuple[int, int]]) -> None:
        for priority, delay in delays:
            self.seq += 1
            record = record_of(self.seq, priority, self.now + delay, self.now)
            self.index.push(record, self.seq)
            self.model.append((self.seq, record))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        _, record = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
        self.index.remove(record)
        self.gone.append(record)

    @rule(limit=st.integers(0, 6))
    def take_due(self, limit: int) -> None:
        due = sorted(
            (entry for entry in self.model if entry[1].run_at_ms <= self.now),
            key=lambda entry: (entry[1].priority <= 0, entry[1].run_at_ms, entry[0]),
        )
        expected = [record for _, record in due[:limit]]
        assert self.index.take_due(self.now, limit) == expected
        self.gone += expected
        self.model = [entry for entry in self.model if entry[1] not in expected]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "index"):
            return
        index, now = self.index, self.now
        index.check()
        records = [record for _, record in self.model]
        assert len(index) == len(records)
        assert index.next_ms() == min((r.run_at_ms for r in records), default=None)
        due = [(number, r) for number, r in self.model if r.run_at_ms <= now]
        high = sum(r.priority > 0 for _, r in due)
        assert index.count_due(now) == (len(due) - high, high)
        for prioritized in (False, True):
            expected = [
                (r.run_at_ms + 5, number, r)
                for number, r in sorted(due, key=lambda entry: (entry[1].run_at_ms, entry[0]))
                if (r.priority > 0) is prioritized
            ]
            assert list(index.due(now, 5, prioritized=prioritized)) == expected
            backwards = index.due(now, 5, prioritized=prioritized, newest_first=True)
            assert list(backwards) == expected[::-1]
        waiting = [(r.entered_ms, number, r) for number, r in self.model if r.run_at_ms > now]
        assert list(index.waiting(now)) == waiting
        assert list(index.waiting(now, newest_first=True)) == waiting[::-1]
        assert all(index.holds(record) for record in records)
        assert not any(index.holds(record) for record in self.gone)


TestDelayedIndex = DelayedMachine.TestCase
TestDelayedIndex.settings = settings(max_examples=6, stateful_step_count=20)


@pytest.mark.slow
class TestDelayedIndexAtLength(DelayedMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20 if SHORT else 200, stateful_step_count=50)


def test_ten_thousand_removals_leave_no_memory_behind() -> None:
    index = DelayedIndex()
    kept = record_of(1, 0, 5, 1)
    index.push(kept, 1)
    for seq in range(2, 10_002):
        record = record_of(seq, seq % 2, seq + 10, seq)
        index.push(record, seq)
        index.remove(record)
    index.check()
    assert (len(index), len(index.plain), len(index.prioritized)) == (1, 1, 0)
    assert index.next_ms() == 5


def test_a_job_due_at_this_very_millisecond_is_due_and_one_a_millisecond_later_is_not() -> None:
    index = DelayedIndex()
    first, second = record_of(1, 0, 100, 1), record_of(2, 0, 101, 1)
    index.push(second, 2**44 - 1)
    index.push(first, 2**44 - 2)
    assert index.count_due(99) == (0, 0)
    assert index.count_due(100) == (1, 0)
    assert index.take_due(100, 10) == [first]
    assert index.take_due(101, 10) == [second]
