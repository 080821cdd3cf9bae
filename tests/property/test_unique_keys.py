"""A key has at most one live owner, under random verbs, against a model of plain dictionaries; and
expired keys never pile up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_py import (
    Backoff,
    Deduplication,
    DuplicateJobError,
    Job,
    JobSpec,
    ManagerConfig,
    Queue,
    QueueManager,
)
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.shard.unique_keys import stands
from bunqueue_py.testing import SeededIds, VirtualClock

SHORT = os.environ.get("BUNQUEUE_SLOW") == "short"
LIVE = ("waiting", "delayed", "active")

KEYS = st.sampled_from("abc")
TTLS = st.sampled_from([None, 1, 3, 10])
MODES = st.sampled_from(["skip", "extend", "replace"])


@st.composite
def deduplications(draw: st.DrawFn) -> Deduplication:
    ttl = draw(TTLS)
    hold = "live" if ttl is None else draw(st.sampled_from(["live", "ttl"]))
    return Deduplication(draw(KEYS), ttl, draw(MODES), hold)  # type: ignore[arg-type]


@dataclass
class Hold:
    """What the model knows of a taken key."""

    owner: str
    until: float | None
    key: Deduplication


class UniqueKeysMachine(RuleBasedStateMachine):
    """Jobs with keys come, run, fail, end, are removed, replaced and retried, while time passes
    and sections break off; `taken` says whose each key is."""

    @initialize(gone=st.booleans(), listened=st.booleans())
    def start(self, gone: bool, listened: bool) -> None:
        self.clock = VirtualClock()
        self.now = 0.0
        self.manager = QueueManager(
            clock=self.clock,
            background=False,
            config=ManagerConfig(shards=1),
            _ids=SeededIds(),
        )
        if listened:
            self.manager.events.subscribe(lambda event: None)
        self.queue = Queue("q", self.manager)
        self.gone = gone
        self.taken: dict[str, Hold] = {}
        self.keys: dict[str, Deduplication] = {}
        self.states: dict[str, str] = {}
        self.running: list[Job] = []

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()

    # -- the model ---------------------------------------------------------------------------

    def holder(self, key: str) -> Hold | None:
        hold = self.taken.get(key)
        if hold is not None and hold.until is not None and hold.until <= self.now:
            del self.taken[key]
            return None
        return hold

    def take(self, job_id: str) -> None:
        key = self.keys[job_id]
        until = None if key.ttl is None else self.now + key.ttl  # type: ignore[operator]
        self.taken[key.key] = Hold(job_id, until, key)

    def ended(self, job_id: str, state: str) -> None:
        self.states[job_id] = state
        key = self.keys.get(job_id)
        if key is None or key.hold == "ttl":
            return
        hold = self.holder(key.key)
        if hold is not None and hold.owner == job_id:
            del self.taken[key.key]

    def expect_push(self, job: Job, key: Deduplication) -> None:
        hold = self.holder(key.key)
        if hold is not None and not (key.mode == "replace" and self.states[hold.owner] in LIVE):
            assert (job.id, job.duplicate) == (hold.owner, True)
            ttl = hold.key.ttl if key.ttl is None else key.ttl
            if key.mode == "extend" and ttl is not None and hold.until is not None:
                hold.until = max(hold.until, self.now + ttl)  # type: ignore[operator]
            return
        assert not job.duplicate
        assert job.id not in self.keys
        if hold is not None and self.states[hold.owner] in ("waiting", "delayed"):
            self.states[hold.owner] = "unknown"
        self.keys[job.id] = key
        self.states[job.id] = "delayed" if job.run_at > job.created_at else "waiting"
        self.take(job.id)

    # -- the verbs ---------------------------------------------------------------------------

    @rule(key=deduplications(), delay=st.sampled_from([0, 0, 5]))
    def push(self, key: Deduplication, delay: int) -> None:
        job = self.queue.add(
            "job",
            deduplication=key,
            delay=delay,
            remove_on_complete=self.gone,
            backoff=Backoff.fixed(2, jitter=0),
        )
        self.expect_push(job, key)

    @rule(keys=st.lists(deduplications(), max_size=5))
    def push_in_bulk(self, keys: list[Deduplication]) -> None:
        jobs = self.queue.add_bulk(
            JobSpec("job", deduplication=key, remove_on_complete=self.gone) for key in keys
        )
        for job, key in zip(jobs, keys, strict=True):
            self.expect_push(job, key)

    @rule()
    def pull(self) -> None:
        job = self.manager.pull("q", lock_duration=None)
        if job is not None:
            self.states[job.id] = "active"
            self.running.append(job)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["ack", "fail", "kill", "release"]))
    def end_a_run(self, data: st.DataObject, how: str) -> None:
        job = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if how == "ack":
            assert self.manager.ack(job).applied
            self.ended(job.id, "unknown" if self.gone else "completed")
        elif how == "release":
            assert self.manager.release(job)
            self.states[job.id] = "waiting"
        else:
            assert self.manager.fail(job, "boom", unrecoverable=how == "kill").applied
            state = str(self.manager.get_state(job))
            assert state in ("waiting", "delayed", "failed")
            if state == "failed":
                self.ended(job.id, state)
            else:
                self.states[job.id] = state

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.keys)))
        if self.states[job_id] not in ("active", "unknown"):
            self.queue.remove(job_id)
            self.ended(job_id, "unknown")

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.keys)))
        if self.states[job_id] not in ("failed", "completed"):
            return
        hold = self.holder(self.keys[job_id].key)
        if hold is not None and self.states[hold.owner] in LIVE:
            with pytest.raises(DuplicateJobError) as caught:
                self.queue.retry(job_id)
            assert caught.value.owner == hold.owner
            return
        self.queue.retry(job_id)
        self.states[job_id] = "waiting"
        self.take(job_id)

    @rule(key=KEYS)
    def release(self, key: str) -> None:
        assert self.queue.deduplication.release(key) is (self.holder(key) is not None)
        self.taken.pop(key, None)

    @rule(delayed=st.booleans())
    def drain(self, delayed: bool) -> None:
        self.queue.drain(delayed)
        for job_id, state in list(self.states.items()):
            if state in ("waiting", "delayed") and self.manager.get_job(job_id) is None:
                self.ended(job_id, "unknown")

    @rule(seconds=st.sampled_from([0.5, 1, 3, 10]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)
        self.now += seconds
        self.manager.run_pending()

    @rule()
    def break_off(self) -> None:
        """As if an exception had landed in a section: whoever comes next rebuilds."""
        self.manager._state.queues["q"].shard.gate = BROKEN

    # -- what always holds -------------------------------------------------------------------

    @invariant()
    def owners_are_those_of_the_model(self) -> None:
        if not hasattr(self, "manager"):
            return
        check(self.manager._state)
        for key in "abc":
            hold = self.holder(key)
            assert self.queue.deduplication.owner(key) == (None if hold is None else hold.owner)

    @invariant()
    def at_most_one_live_job_claims_a_key(self) -> None:
        if not hasattr(self, "manager"):
            return
        queue: Any = self.manager._state.queues["q"]
        now = self.manager._state.now()
        claimed = [
            record.unique_key
            for record in queue.records()
            if record.state <= 2 and stands(record, now)
        ]
        assert len(claimed) == len(set(claimed))


TestUniqueKeys = UniqueKeysMachine.TestCase
TestUniqueKeys.settings = settings(max_examples=15, stateful_step_count=40)


@pytest.mark.slow
class TestUniqueKeysAtLength(UniqueKeysMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=30 if SHORT else 300, stateful_step_count=50)
