"""`ReadyQueue` against a sorted list."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_py.model.job import JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.shard.keys import seq_of
from bunqueue_py.shard.lanes import MAX_LANES, SPARE_LANES
from bunqueue_py.shard.ready_queue import ReadyQueue

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"

FIFO, LIFO = Options(), Options(lifo=True)


def record_of(number: int, priority: int, lifo: bool, now: int) -> JobRecord:
    record = JobRecord(f"job{number}", None, "job", LIFO if lifo else FIFO, priority, b"")
    record.created_ms = record.run_at_ms = record.entered_ms = now
    return record


class Entry:
    """What the model knows of a job in the queue."""

    def __init__(self, record: JobRecord, seq: int) -> None:
        self.record = record
        self.seq = seq

    @property
    def place(self) -> tuple[int, ...]:
        """SPEC 4: priority descending, LIFO newest first, then FIFO by run_at and number."""
        record = self.record
        if record.options.lifo:
            return (-record.priority, 0, -self.seq)
        return (-record.priority, 1, record.run_at_ms, self.seq)


class ReadyQueueMachine(RuleBasedStateMachine):
    @initialize(now=st.integers(1, 2_000_000_000_000))
    def start(self, now: int) -> None:
        self.queue = ReadyQueue()
        self.model: list[Entry] = []
        self.out: list[Entry] = []  # popped, and able to come back
        self.now = now
        self.seq = 0

    def take_in(self, record: JobRecord, seq: int) -> None:
        self.queue.push(record, seq)
        self.model.append(Entry(record, seq))

    @rule(step=st.integers(0, 3))
    def pass_time(self, step: int) -> None:
        self.now += step

    @rule(count=st.integers(1, 40))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.seq += 1
            record = record_of(self.seq, 0, False, self.now)
            self.queue.append(record, self.seq)
            self.model.append(Entry(record, self.seq))

    @rule(
        priorities=st.lists(st.sampled_from([-1_000_000, -1, 0, 1, 2, 1_000_000]), max_size=30),
        lifo=st.sampled_from([False, False, False, True]),
    )
    def admit(self, priorities: list[int], lifo: bool) -> None:
        for priority in priorities:
            self.seq += 1
            record = record_of(self.seq, priority, lifo, self.now)
            self.queue.admit(record, self.seq)
            self.model.append(Entry(record, self.seq))

    @rule(
        priority=st.sampled_from([-1_000_000, -1, 0, 0, 1, 2, 1_000_000]),
        lifo=st.booleans(),
        late=st.integers(0, 50),
    )
    def push(self, priority: int, lifo: bool, late: int) -> None:
        self.seq += 1
        record = record_of(self.seq, priority, lifo, self.now)
        record.run_at_ms = max(0, self.now - late)
        self.take_in(record, self.seq)

    @rule(priority=st.sampled_from([-1, 0, 3]), lifo=st.booleans())
    def come_due(self, priority: int, lifo: bool) -> None:
        self.seq += 1
        record = record_of(self.seq, priority, lifo, self.now)
        self.queue.push(record, self.seq, by_time=True)
        self.model.append(Entry(record, self.seq))

    @rule()
    def pop(self) -> None:
        expected = min(self.model, key=lambda entry: entry.place, default=None)
        peeked = self.queue.peek()
        popped = self.queue.pop()
        assert peeked is popped
        if expected is None:
            assert popped is None
        else:
            assert popped is expected.record
            self.model.remove(expected)
            self.out.append(expected)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back_to_its_old_place(self, data: st.DataObject) -> None:
        entry = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        assert seq_of(entry.record) == entry.seq
        entry.record.entered_ms = self.now
        self.take_in(entry.record, entry.seq)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def come_back_anew(self, data: st.DataObject) -> None:
        entry = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.seq += 1
        entry.record.run_at_ms = entry.record.entered_ms = self.now
        self.take_in(entry.record, self.seq)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 30))
    def remove(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            entry = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
            self.queue.remove(entry.record)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.check()
        assert len(self.queue) == len(self.model)
        assert self.queue.prioritized == sum(entry.record.priority > 0 for entry in self.model)
        high = [entry.record for entry in self.model if entry.record.priority > 0]
        rest = [entry.record for entry in self.model if entry.record.priority <= 0]
        for prioritized, records in ((True, high), (False, rest)):
            for newest_first in (False, True):
                streams = [
                    list(stream)
                    for stream in self.queue.entered(
                        prioritized=prioritized, newest_first=newest_first
                    )
                ]
                seen = [record for stream in streams for record in stream]
                assert len(seen) == len(records)
                assert set(seen) == set(records)
                for stream in streams:
                    moments = [record.entered_ms for record in stream]
                    assert moments == sorted(moments, reverse=newest_first)

    @invariant()
    def stale_marks_are_bounded(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue.heap) <= self.queue.heaped * 1.25 + 64 + 1
            plain, high, low = self.queue.standing()
            assert len(plain.records) <= len(plain) * 1.25 + 64 + 1
            for shelf in (high, low):
                assert len(shelf.records) <= len(shelf) * 2 + 64 + 1
            if self.queue.lanes is not None:
                for priority, lane in self.queue.lanes.lanes.items():
                    stale = self.queue.lanes.removed.get(priority, 0)
                    assert stale <= 64 or stale * 5 <= len(lane)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            for entry in sorted(self.model, key=lambda entry: entry.place):
                assert self.queue.pop() is entry.record
            assert self.queue.pop() is None
            assert len(self.queue) == 0


TestReadyQueue = ReadyQueueMachine.TestCase
TestReadyQueue.settings = settings(max_examples=6, stateful_step_count=20)


@pytest.mark.slow
class TestReadyQueueAtLength(ReadyQueueMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20 if SHORT else 200, stateful_step_count=50)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(-1_000_000, 1_000_000), st.booleans(), st.integers(0, 2**42)),
        max_size=40,
    )
)
def test_jobs_come_out_by_priority_then_lifo_newest_first_then_fifo_by_time(
    jobs: list[tuple[int, bool, int]],
) -> None:
    queue, entries = ReadyQueue(), []
    for seq, (priority, lifo, run_at_ms) in enumerate(jobs, 1):
        record = record_of(seq, priority, lifo, run_at_ms)
        queue.push(record, seq)
        entries.append(Entry(record, seq))
    expected = [entry.record for entry in sorted(entries, key=lambda entry: entry.place)]
    assert [queue.pop() for _ in jobs] == expected


def test_ten_thousand_removals_leave_no_memory_behind() -> None:
    queue = ReadyQueue()
    kept = [record_of(n, n % 2, False, n) for n in range(1, 11)]
    for seq, record in enumerate(kept, 1):
        queue.push(record, seq) if record.priority else queue.append(record, seq)
    for seq in range(11, 10_011):
        plain, high = record_of(seq, 0, False, seq), record_of(seq, 5, False, seq)
        queue.append(plain, seq)
        queue.push(high, seq)
        queue.remove(plain)
        queue.remove(high)
        if not seq % 500:
            queue.check()
    assert len(queue.lane.records) + len(queue.heap) <= 10 + 2 * 65
    assert len(queue.members) == 5
    assert len(queue) == 10
    assert len([queue.pop() for _ in range(10)]) == 10


def test_ten_thousand_jobs_that_go_and_come_back_leave_no_memory_behind() -> None:
    queue, record = ReadyQueue(), record_of(1, 0, False, 1)
    queue.append(record, 1)
    for seq in range(2, 10_002):
        assert queue.pop() is record
        queue.push(record, seq)
        if seq % 2:
            queue.remove(record)
            queue.push(record, seq + 20_000)
    assert len(queue) == 1
    assert len(queue.lane.records) + len(queue.heap) <= 67
    queue.check()


def test_ten_thousand_removals_from_priority_lanes_leave_no_memory_behind() -> None:
    queue = ReadyQueue()
    kept = record_of(1, 7, False, 1)
    queue.admit(kept, 1)
    for seq in range(2, 10_002):
        record = record_of(seq, 7 if seq % 3 else seq, False, seq)
        queue.admit(record, seq)
        queue.remove(record)
        if not seq % 500:
            queue.check()
    assert queue.lanes is not None
    assert list(queue.lanes.lanes) == [7]
    assert len(queue.lanes.lanes[7]) <= 66
    assert len(queue.lanes.high.records) <= 66
    assert len(queue.lanes.order) <= 66
    assert queue.tally() == {7: 1}
    assert queue.pop() is kept


def test_only_a_few_empty_lanes_are_kept_for_the_next_job_of_their_priority() -> None:
    queue, seq = ReadyQueue(), 0
    for _ in range(3):
        for priority in range(1, 501):
            seq += 1
            queue.admit(record_of(seq, priority, False, 1), seq)
        while queue.pop() is not None:
            if not len(queue) % 16:
                queue.check()
    assert queue.lanes is not None
    assert len(queue.lanes.lanes) == SPARE_LANES
    assert queue.lanes.order == []
    assert not queue.lanes.high.records


def test_more_priorities_than_there_are_lanes_still_come_out_in_order() -> None:
    queue = ReadyQueue()
    records = [record_of(seq, seq * 7919 % 5003 - 2500, False, seq) for seq in range(1, 5_000)]
    for seq, record in enumerate(records, 1):
        queue.admit(record, seq)
    assert queue.lanes is not None
    assert len(queue.lanes.lanes) == MAX_LANES
    assert queue.heaped == len(records) - len(queue.lanes) - len(queue.lane)
    queue.check()
    # one more of a priority that stands in the heap: behind the one that is there
    late = record_of(5_000, records[-1].priority, False, 5_000)
    queue.admit(late, 5_000)
    expected = sorted([*records, late], key=lambda r: (-r.priority, r.run_at_ms))
    assert [queue.pop() for _ in range(5_000)] == expected
