"""Dead letters and runs without a lock against a naive list, over time and over rebuilds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bunqueue_py import JobState, ManagerConfig, Queue, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.ops.recover import rebuild
from bunqueue_py.shard.deadlines import DEAD_EXPIRY, DEAD_RETRY, STALL
from bunqueue_py.testing import SeededIds, VirtualClock

CONFIGS = st.fixed_dictionaries(
    {
        "auto_retry": st.booleans(),
        "retry_interval": st.sampled_from([1, 7, 60]),
        "max_retries": st.integers(0, 3),
        "max_age": st.sampled_from([None, 20, 90, 1000]),
        "max_entries": st.integers(1, 6),
    }
)


@pytest.fixture(autouse=True)
def quiet_rebuilds() -> Iterator[None]:
    log = logging.getLogger("bunqueue_py.recover")
    log.disabled = True
    yield
    log.disabled = False


class Letter:
    """One dead job of the model, in milliseconds."""

    def __init__(self, now: int) -> None:
        self.since = now
        self.entered = now
        self.count = 0
        self.auto = 0


class LetterMachine(RuleBasedStateMachine):
    """Jobs die, come back and die again; the clock goes from due moment to due moment."""

    @initialize(config=CONFIGS)
    def start(self, config: dict[str, Any]) -> None:
        self.clock = VirtualClock()
        self.manager = QueueManager(
            clock=self.clock, background=False, config=ManagerConfig(shards=1), _ids=SeededIds()
        )
        self.queue = Queue("q", self.manager)
        self.dead: dict[str, Letter] = {}  # in the order in which they came in
        self.away: dict[str, Letter] = {}  # on a retry
        self.configure(config)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()

    @property
    def now(self) -> int:
        return self.clock.timeline_ms()

    def next_retry(self, letter: Letter) -> int | None:
        if not self.config["auto_retry"] or letter.auto >= self.config["max_retries"]:
            return None
        return letter.entered + self.config["retry_interval"] * 1000 * 2**letter.auto

    def expiry(self, letter: Letter) -> int | None:
        age = self.config["max_age"]
        return None if age is None else letter.since + age * 1000

    def bound(self) -> None:
        for job_id in list(self.dead)[: max(0, len(self.dead) - self.config["max_entries"])]:
            del self.dead[job_id]

    @rule(config=CONFIGS)
    def configure(self, config: dict[str, Any]) -> None:
        self.queue.dlq.configure(**config)
        self.config = config
        self.bound()
        self.pass_now()

    def pass_now(self) -> None:
        self.manager.run_pending()
        for job_id, letter in list(self.dead.items()):
            expiry, due = self.expiry(letter), self.next_retry(letter)
            if expiry is not None and expiry <= self.now:
                del self.dead[job_id]
            elif due is not None and due <= self.now:
                self.away[job_id] = self.dead.pop(job_id)
                letter.count += 1
                letter.auto += 1

    @rule()
    def die(self) -> None:
        self.queue.add("n")
        self.end(good=False)

    @precondition(lambda self: bool(self.away))
    @rule(good=st.booleans())
    def end(self, good: bool) -> None:
        """The next job runs, a retried one first, in a millisecond of its own."""
        self.advance(1)
        job = self.manager.pull("q")
        assert job is not None
        letter = self.away.pop(job.id, None)
        if good:
            self.manager.ack(job)
            return
        self.manager.fail(job, "boom", unrecoverable=True)
        if letter is None:
            letter = Letter(self.now)
        elif letter.since < 0:
            letter.since = self.now
        letter.entered = self.now
        self.dead[job.id] = letter
        self.bound()

    @precondition(lambda self: bool(self.dead))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.dead)))
        assert self.queue.dlq.retry(job_id)
        letter = self.dead.pop(job_id)
        anew = Letter(0)
        anew.count = letter.count + 1
        anew.since = -1  # its next stay begins when it comes back
        self.away[job_id] = anew

    @precondition(lambda self: any(letter.since < 0 for letter in self.away.values()))
    @rule()
    def come_back(self) -> None:
        while self.away:
            self.end(good=False)

    @precondition(lambda self: bool(self.dead))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.dead)))
        assert self.queue.dlq.remove(job_id)
        del self.dead[job_id]

    @rule(age=st.sampled_from([0, 5, 50]), older=st.booleans())
    def purge(self, age: int, older: bool) -> None:
        cut = self.now - age * 1000
        gone = [i for i, letter in self.dead.items() if (letter.since <= cut) is older]
        wanted = {"older_than": age} if older else {"newer_than": age}
        assert self.queue.dlq.purge(**wanted) == len(gone)
        for job_id in gone:
            del self.dead[job_id]

    @rule(ms=st.sampled_from([1, 1_000, 7_000, 60_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(milliseconds=ms)
        self.pass_now()

    @rule()
    def break_and_mend(self) -> None:
        """What a rebuild makes of the records is what was there."""
        for shard in self.manager._state.shards.shards:
            with shard.lock:
                rebuild(self.manager._state, shard)
        self.pass_now()

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        state = self.manager._state
        check(state)
        entries = self.queue.dlq.entries()
        assert [entry.job.id for entry in entries] == list(self.dead)
        for entry, letter in zip(entries, self.dead.values(), strict=True):
            assert entry.entered_at.timestamp() * 1000 == letter.since
            assert entry.retry_count == letter.count
            for moment, expected in (
                (entry.next_retry_at, self.next_retry(letter)),
                (entry.expires_at, self.expiry(letter)),
            ):
                assert (None if moment is None else moment.timestamp() * 1000) == expected
        armed = [
            (due, kind, subject.id)  # type: ignore[union-attr]
            for shard in state.shards.shards
            for due, _, kind, subject in shard.deadlines.entries()
            if kind in (DEAD_EXPIRY, DEAD_RETRY)
        ]
        for job_id, letter in self.dead.items():
            for kind, due in (
                (DEAD_EXPIRY, self.expiry(letter)),
                (DEAD_RETRY, self.next_retry(letter)),
            ):
                assert due is None or (due, kind, job_id) in armed, "nobody will look at it"
        for job_id in self.away:
            assert self.manager.get_state(job_id) is JobState.WAITING


TestLetters = LetterMachine.TestCase
TestLetters.settings = settings(max_examples=15, stateful_step_count=30)


class SilenceMachine(RuleBasedStateMachine):
    """Runs without a lock beat or do not; settings change under them."""

    @initialize()
    def start(self) -> None:
        self.clock = VirtualClock()
        self.manager = QueueManager(
            clock=self.clock, background=False, config=ManagerConfig(shards=1), _ids=SeededIds()
        )
        self.queue = Queue("q", self.manager, defaults={"attempts": 1})
        self.interval, self.enabled = 30_000, True
        self.runs: dict[str, list[Any]] = {}  # id -> own interval, start, beat, suspected

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()

    @rule(own=st.sampled_from([None, None, 8, 50]))
    def run(self, own: int | None) -> None:
        self.queue.add("n", stall_timeout=own)
        job = self.manager.pull("q", lock_duration=None)
        assert job is not None
        now = self.clock.timeline_ms()
        self.runs[job.id] = [None if own is None else own * 1000, now, now, None]

    @precondition(lambda self: bool(self.runs))
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.runs)))
        assert self.manager.heartbeat(job_id)
        self.runs[job_id][2:] = [self.clock.timeline_ms(), None]

    @rule(enabled=st.booleans(), interval=st.sampled_from([6, 30, 90]))
    def configure(self, enabled: bool, interval: int) -> None:
        self.queue.stalls.configure(enabled=enabled, interval=interval, max_stalls=0)
        self.enabled, self.interval = enabled, interval * 1000
        if not enabled:
            for entry in self.runs.values():
                entry[3] = None
        self.advance(0)

    @rule()
    def break_and_mend(self) -> None:
        for shard in self.manager._state.shards.shards:
            with shard.lock:
                rebuild(self.manager._state, shard)

    @rule(ms=st.sampled_from([1, 999, 5_000, 30_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(milliseconds=ms)
        self.manager.run_pending()
        now = self.clock.timeline_ms()
        for job_id, (own, started, beat, suspected) in list(self.runs.items()):
            if not self.enabled:
                continue
            if suspected is not None:
                if now >= suspected + 5_000:
                    del self.runs[job_id]
            elif now >= max(beat + (own or self.interval), started + 5_000):
                self.runs[job_id][3] = now

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        check(self.manager._state)
        active = self.queue.get_jobs("active", limit=1000)
        assert {job.id for job in active} == set(self.runs)
        armed = {
            subject.record.id  # type: ignore[union-attr]
            for shard in self.manager._state.shards.shards
            for due, _, kind, subject in shard.deadlines.entries()
            if kind == STALL and due == subject.armed_ms  # type: ignore[union-attr]
        }
        assert not self.enabled or armed >= set(self.runs), "nobody will look at it"


TestSilence = SilenceMachine.TestCase
TestSilence.settings = settings(max_examples=15, stateful_step_count=30)
