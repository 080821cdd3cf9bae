"""`Finished` against a list, and the store of proofs against a dictionary."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bunqueue_py.model.job import COMPLETED, JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.shard.finished import CHUNK, Finished
from bunqueue_py.stores.results import Proof, ProofStore

PLAIN = Options()


def ended(number: int, now: int) -> JobRecord:
    record = JobRecord(f"job{number}", None, "job", PLAIN, 0, b"")
    record.created_ms = record.run_at_ms = record.entered_ms = now
    record.key = number
    record.state = COMPLETED
    return record


class FinishedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.finished = Finished()
        self.model: list[JobRecord] = []
        self.gone: list[JobRecord] = []
        self.now = 1
        self.number = 0

    @rule(count=st.sampled_from([1, 5, CHUNK - 1, CHUNK, CHUNK + 1]), step=st.integers(0, 2))
    def add(self, count: int, step: int) -> None:
        for _ in range(count):
            self.now += step
            self.number += 1
            record = ended(self.number, self.now)
            self.finished.add(record)
            self.model.append(record)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 60))
    def discard(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            at = data.draw(st.sampled_from([0, len(self.model) // 2, len(self.model) - 1]))
            record = self.model.pop(at)
            assert self.finished.discard(record)
            assert not self.finished.discard(record)
            self.gone.append(record)

    @precondition(lambda self: self.gone)
    @rule()
    def end_again(self) -> None:
        record = self.gone.pop()
        record.entered_ms = self.now
        self.finished.add(record)
        self.model.append(record)

    @rule(limit=st.sampled_from([0, 1, 7, CHUNK, 3 * CHUNK]))
    def pop_oldest(self, limit: int) -> None:
        leaving = self.finished.first(limit)
        assert leaving == self.model[:limit]
        self.finished.pop_oldest(leaving)
        del self.model[:limit]

    @invariant()
    def agrees(self) -> None:
        self.finished.check()
        assert len(self.finished) == len(self.model)
        assert list(self.finished.values()) == self.model
        assert list(self.finished.values(newest_first=True)) == self.model[::-1]
        assert self.finished.oldest() is (self.model[0] if self.model else None)


TestFinished = FinishedMachine.TestCase
TestFinished.settings = settings(max_examples=8, stateful_step_count=20)


def test_a_completed_job_is_found_among_many_of_one_millisecond() -> None:
    finished = Finished()
    records = [ended(number, 5) for number in range(4 * CHUNK)]
    for record in records:
        finished.add(record)
    for record in (records[0], records[CHUNK], records[-1]):
        assert finished.discard(record)
        assert not finished.discard(record)
    assert not finished.discard(ended(-1, 5))
    assert len(finished) == 4 * CHUNK - 3
    finished.check()


def test_the_newest_proofs_stay_and_old_ones_make_room() -> None:
    store = ProofStore()
    count = 2 * store.LIMIT
    for number in range(0, count, 500):
        store.put_many({f"job{n}": Proof("q", n, False, None) for n in range(number, number + 500)})
    for number in range(count, count + 2_500):
        store.put(f"job{number}", Proof("q", number, True, None))
    count += 2_500
    assert store.LIMIT <= len(store) <= store.LIMIT + store.CHUNK
    for number in range(count - store.LIMIT, count):
        proof = store.get(f"job{number}")
        assert proof is not None
        assert proof.finished_ms == number
    assert store.get(f"job{count - store.LIMIT - store.CHUNK - 1}") is None
    assert store.get("job0") is None


def test_a_job_that_leaves_twice_has_its_later_proof() -> None:
    store = ProofStore()
    store.put("job", Proof("q", 1, False, None))
    store.put_many({f"other{n}": Proof("q", 2, False, None) for n in range(store.CHUNK)})
    store.put("job", Proof("q", 3, True, None))
    proof = store.get("job")
    assert proof is not None
    assert proof.finished_ms == 3
    assert len(store) == store.CHUNK + 2
