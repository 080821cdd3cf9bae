"""Whatever was done to jobs: the read-only view lists what the manager lists, in its order."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_py import DuplicateJobError, Job, JobStateError, QueueManager
from bunqueue_py.model.rows import row_of
from bunqueue_py.readonly import open_readonly
from bunqueue_py.shard.ready_queue import seq_of
from bunqueue_py.testing import SeededIds, VirtualClock
from tests.unit.sqlite_marks import Driven, driven

LISTS: list[Any] = [None, "waiting", "prioritized", "delayed", "active", "completed", "failed"]
EXAMPLES = count(1)

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([-1, 0, 1]),
        "delay": st.sampled_from([0, 0.002, 0.01, 60]),
        "lifo": st.booleans(),
        "group": st.sampled_from(["a", "b"]),
        "attempts": st.sampled_from([1, 2]),
        "backoff": st.sampled_from([0.001, 60]),
    },
)


class Play:
    """A manager and its one queue. No two things happen in one millisecond: within one, the file
    knows no order but that of admission."""

    def __init__(self, manager: QueueManager, clock: VirtualClock, queue: str) -> None:
        self.manager = manager
        self.clock = clock
        self.queue = queue
        self.held: list[Job] = []

    def step(self, what: str, value: Any) -> None:
        self.clock.advance(milliseconds=1)
        manager = self.manager
        if what == "push":
            manager.push(self.queue, None, **value)
        elif what == "wait":
            self.clock.advance(milliseconds=value)
        elif what == "pull":
            job = manager.pull(self.queue)
            if job is not None:
                self.held.append(job)
        elif what in HELD:
            if self.held:
                HELD[what](manager, self.held.pop(value % len(self.held)))
        else:
            jobs = manager.get_jobs(self.queue)
            if jobs:
                with suppress(JobStateError, DuplicateJobError):
                    VERBS[what](manager, jobs[value % len(jobs)], value)


HELD: dict[str, Callable[[QueueManager, Job], object]] = {
    "ack": lambda manager, job: manager.ack(job, 1),
    "fail": lambda manager, job: manager.fail(job, "no"),
    "release": lambda manager, job: manager.release(job),
}
VERBS: dict[str, Callable[[QueueManager, Job, int], object]] = {
    "promote": lambda manager, job, _: manager.promote(job),
    "discard": lambda manager, job, _: manager.discard(job),
    "retry": lambda manager, job, _: manager.retry(job),
    "remove": lambda manager, job, _: manager.remove(job),
    "change_delay": lambda manager, job, value: manager.change_delay(job, value),
    "change_priority": lambda manager, job, value: manager.change_priority(job, value - 2),
}
STEPS = st.one_of(
    st.tuples(st.just("push"), OPTIONS),
    st.tuples(st.sampled_from(["pull", *HELD, *VERBS]), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from([2, 20, 100_000])),
)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    with driven(tmp_path_factory.mktemp("view") / "jobs.db") as made:
        yield made


@pytest.mark.slow
@given(steps=st.lists(STEPS, min_size=1, max_size=30), later_ms=st.sampled_from([0, 5, 100_000]))
@settings(max_examples=60)
def test_the_view_lists_what_the_manager_lists(
    drive: Driven, steps: list[tuple[str, Any]], later_ms: int
) -> None:
    number, clock = next(EXAMPLES), VirtualClock()
    queue = f"queue-{number}"
    with QueueManager(clock=clock, background=False, _ids=SeededIds(number)) as manager:
        play = Play(manager, clock, queue)
        for what, value in steps:
            play.step(what, value)
        state: Any = manager._state
        with drive.lock:
            for record in state.index.values():
                result = state.results.get(record.id)
                drive.dirty.add(row_of(record, seq_of(record) or 0, result), record.data)
        assert drive.storage.step()
        clock.advance(milliseconds=later_ms)
        view = open_readonly(Path(drive.storage._path), clock=clock)
        for states in LISTS:
            for newest_first in (False, True):
                expected = manager.get_jobs(queue, states, newest_first=newest_first)
                found = view.get_jobs(queue, states, newest_first=newest_first)
                assert [(job.id, job.state) for job in found] == [
                    (job.id, job.state) for job in expected
                ]
        assert view.counts(queue) == manager.counts(queue)
        assert view.dlq_entries(queue) == manager.dlq_entries(queue)
