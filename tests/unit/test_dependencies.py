"""Jobs that depend on jobs: when they wait, what lets them go, and what a failure leads to."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    BulkAddError,
    Deduplication,
    DuplicateJobError,
    FlowError,
    Job,
    JobSpec,
    JobStateError,
    KeepJobs,
    ManagerConfig,
    Queue,
    QueueManager,
    ResultExpiredError,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.stores.dependencies import DONE, Effect
from bunqueue_py.testing import VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as opened:
        yield opened
        if not opened._state.shards.shards[0].gate:
            check(opened._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("a", manager)


@pytest.fixture
def other(manager: QueueManager) -> Queue:
    return Queue("b", manager)


def state(job: Job) -> str:
    return str(job.refresh().state)


def run(queue: Queue, result: Any = None) -> Job:
    """Pulls the next job and completes it."""
    manager: Any = queue.manager
    job: Job | None = manager.pull(queue)
    assert job is not None, queue.counts()
    assert manager.ack(job, result).applied
    return job


def kill(queue: Queue, error: str = "boom") -> Job:
    """Pulls the next job and fails it for good."""
    manager: Any = queue.manager
    job: Job | None = manager.pull(queue)
    assert job is not None, queue.counts()
    manager.fail(job, error, unrecoverable=True)
    return job


# -- waiting ---------------------------------------------------------------------------------------


def test_a_job_waits_until_all_it_depends_on_have_completed_in_whatever_queues(
    manager: QueueManager, queue: Queue, other: Queue
) -> None:
    """B109: kept, in another queue, and still to run."""
    first, second = queue.add("first"), other.add("second")
    job = queue.add("job", depends_on=[first, second.id, first])
    assert (job.state, job.depends_on) == ("waiting-children", (first.id, second.id))
    assert queue.counts().waiting_children == 1
    assert queue.get_jobs("waiting-children") == [job]
    assert list(queue.iter_jobs("waiting-children")) == [job]
    run(queue)
    assert manager.pull(queue) is None
    assert state(job) == "waiting-children"
    run(other)
    assert state(job) == "waiting"
    assert run(queue) == job


def test_a_job_that_depends_on_what_has_completed_is_ready_at_once(
    queue: Queue, other: Queue
) -> None:
    """B109: completed and kept, completed and removed."""
    kept, gone = queue.add("kept"), queue.add("gone", remove_on_complete=True)
    run(queue, "kept"), run(queue, "gone")
    job = other.add("job", depends_on=[kept, gone])
    assert job.state == "waiting"
    assert job.children_values() == {kept.id: "kept", gone.id: "gone"}


@pytest.mark.parametrize(
    "ending", ["unknown", "removed", "failed", "discarded", "cancelled", "failed and removed"]
)
@pytest.mark.parametrize("policy", ["fail", "wait", "ignore"])
def test_what_a_dependency_that_can_no_longer_complete_does_at_the_adding(
    manager: QueueManager, queue: Queue, other: Queue, ending: str, policy: Any
) -> None:
    """B109: each has one outcome, at once, and nothing hangs."""
    named = "no such job"
    if ending != "unknown":
        job = queue.add("x", attempts=1, remove_on_fail=ending == "failed and removed")
        named = job.id
        if ending == "removed":
            job.remove()
        elif ending == "discarded":
            job.discard()
        elif ending == "cancelled":
            assert manager.pull(queue) == job
            manager.backend.cancel(job.id, None, None)
        else:
            kill(queue)
    if ending in ("unknown", "removed"):
        with pytest.raises(FlowError, match="there is no job"):
            other.add("job", depends_on=[named], on_dependency_failure=policy)
        assert other.counts().total == 0
        return
    job = other.add("job", depends_on=[named], on_dependency_failure=policy)
    expected = {"fail": "failed", "wait": "waiting-children", "ignore": "waiting"}[policy]
    if policy == "wait" and ending == "failed and removed":
        expected = "failed"  # it would wait for a retry that cannot be
    assert job.state == state(job) == expected
    if expected == "failed":
        assert job.failed_reason == "dependency_failed"
        assert named in str(job.error)
    if policy == "ignore":
        assert list(job.ignored_failures()) == [named]
    if expected == "waiting-children":
        assert list(job.failed_children()) == [named]


def test_a_delayed_job_is_delayed_still_when_it_is_let_go(
    manager: QueueManager, queue: Queue, other: Queue, clock: VirtualClock
) -> None:
    first = queue.add("first")
    late = other.add("late", depends_on=[first], delay=60)
    moment = other.add("moment", depends_on=[first], run_at=START + timedelta(seconds=90))
    clock.advance(seconds=10)
    run(queue)
    assert (state(late), state(moment)) == ("delayed", "delayed")
    clock.advance(seconds=50)
    assert state(late) == "waiting"
    clock.advance(seconds=30)
    assert state(moment) == "waiting"


def test_a_released_job_has_its_priority_and_its_group(queue: Queue, other: Queue) -> None:
    first = queue.add("first")
    other.add("plain")
    urgent = other.add("urgent", depends_on=[first], priority=5)
    grouped = other.add("grouped", depends_on=[first], group="g", tags=["t"])
    run(queue)
    assert state(urgent) == "prioritized"
    assert other.groups["g"].pending() == 1
    assert [run(other).name for _ in range(3)] == ["urgent", "plain", "grouped"]
    assert grouped.refresh().group == "g"


def test_a_gated_job_can_be_looked_at_changed_and_taken_away(queue: Queue) -> None:
    first = queue.add("first")
    job = queue.add("job", 1, depends_on=[first])
    assert job.change_priority(7)
    assert job.update_data(2)
    for verb in (job.promote, job.retry, lambda: job.change_delay(5)):
        with pytest.raises(JobStateError):
            verb()
    assert queue.drain() == 1  # what is gated is not pending
    assert job.refresh().failed_reason == "dependency_failed"  # and `first` is gone
    again = queue.add("again", depends_on=[queue.add("second")])
    assert again.remove()
    assert queue.counts().waiting_children == 0
    last = queue.add("last", depends_on=[queue.add("third")])
    assert last.discard()
    assert state(last) == "failed"
    assert queue.obliterate() == 4


def test_a_gated_job_is_never_collected_by_age_but_its_ttl_counts(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    first = queue.add("first", delay=timedelta(days=400))
    job = queue.add("job", depends_on=[first])
    timed = queue.add("timed", depends_on=[first], ttl=3600)
    with pytest.raises(ValidationError):
        queue.clean(0, state="waiting-children")
    clock.advance(days=399)
    manager.run_pending()
    assert state(job) == "waiting-children"
    assert (state(timed), timed.failed_reason) == ("failed", "ttl_expired")


def test_a_queue_with_gated_jobs_is_not_empty(manager: QueueManager, queue: Queue) -> None:
    first = Queue("b", manager).add("first")
    job = queue.add("job", depends_on=[first])
    assert len(queue) == 0
    with pytest.raises(TimeoutError):
        queue.wait_until_empty(timeout=0)
    job.remove()
    queue.wait_until_empty(timeout=0)


# -- failures --------------------------------------------------------------------------------------


def expire(manager: Any, queue: Queue, clock: VirtualClock, job: Job) -> None:
    clock.advance(hours=2)
    manager.run_pending()


def lose(manager: Any, queue: Queue, clock: VirtualClock, job: Job) -> None:
    held = manager.pull(queue)
    assert held == job
    clock.advance(hours=2)
    manager.run_pending()


def time_out(manager: Any, queue: Queue, clock: VirtualClock, job: Job) -> None:
    held = manager.pull(queue, lock_duration=timedelta(days=1))
    assert held == job
    clock.advance(minutes=10)
    manager.run_pending()


def stall(manager: Any, queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.stalls.configure(interval=1, max_stalls=1)
    assert manager.pull(queue, lock_duration=None) == job
    for _ in range(4):
        clock.advance(seconds=6)
        manager.run_pending()


def cancel(manager: Any, queue: Queue, clock: VirtualClock, job: Job) -> None:
    assert manager.pull(queue) == job
    manager.backend.cancel(job.id, None, "no longer wanted")


def replace(manager: Any, queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.obliterate()


ENDS: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "error": ({"attempts": 1}, lambda m, q, c, j: m.fail(m.pull(q), "boom")),
    "unserializable": ({}, lambda m, q, c, j: m.ack(m.pull(q), object())),
    "lock lost": ({"attempts": 1}, lose),
    "stalls": ({}, stall),
    "cancel": ({}, cancel),
    "timeout": ({"attempts": 1, "timeout": 60}, time_out),
    "ttl": ({"ttl": 3600}, expire),
    "discard": ({}, lambda m, q, c, j: j.discard()),
    "remove": ({}, lambda m, q, c, j: j.remove()),
    "clean": ({}, lambda m, q, c, j: q.clean(0, state="waiting")),
    "drain": ({}, lambda m, q, c, j: q.drain()),
    "obliterate": ({}, replace),
    "removed on failure": (
        {"attempts": 1, "remove_on_fail": True},
        lambda m, q, c, j: m.fail(m.pull(q), "boom"),
    ),
}


@pytest.mark.parametrize("ending", sorted(ENDS))
@pytest.mark.parametrize("policy", ["fail", "ignore", "wait"])
def test_a_dependency_that_ends_badly_in_whatever_way_does_the_same(
    manager: QueueManager, queue: Queue, other: Queue, clock: VirtualClock, ending: str, policy: Any
) -> None:
    """B112: by error, lost lock, stalls, timeout, ttl, discard, cancel, removal. Of one that cannot
    be decoded: `test_a_child_that_a_file_has_spoiled_fails_its_parent`."""
    options, end = ENDS[ending]
    first = queue.add("first", **options)
    job = other.add("job", depends_on=[first], on_dependency_failure=policy)
    after = other.add("after", depends_on=[job])
    end(manager, queue, clock, first)
    gone = manager.get_job(first.id) is None
    expected = {"fail": "failed", "ignore": "waiting", "wait": "waiting-children"}[policy]
    if policy == "wait" and gone:
        expected = "failed"  # it can never complete
    assert state(job) == expected
    if expected == "failed":
        assert job.failed_reason == "dependency_failed"
        assert first.id in str(job.error)
        assert state(after) == "failed"
        assert job.id in str(after.error)
    else:
        assert state(after) == "waiting-children"


def test_siblings_of_a_job_that_failed_go_on(queue: Queue, other: Queue) -> None:
    bad, good = queue.add("bad", priority=1), queue.add("good")
    job = other.add("job", depends_on=[bad, good])
    kill(queue)
    assert state(job) == "failed"
    run(queue)
    assert (state(good), state(job)) == ("completed", "failed")


def test_the_error_names_the_first_cause_however_long_the_chain(queue: Queue) -> None:
    jobs = [queue.add("j0", attempts=1)]
    for n in range(1, 200):
        jobs.append(queue.add(f"j{n}", depends_on=[jobs[-1]]))
    kill(queue, "the disk is on fire")
    assert {state(job) for job in jobs} == {"failed"}
    last = str(jobs[-1].refresh().error)
    assert last.endswith("the disk is on fire")
    assert jobs[-2].id in last
    assert len(last) < 2_000


def test_a_failed_job_can_be_retried_once_what_failed_before_it_can(
    manager: QueueManager, queue: Queue, other: Queue
) -> None:
    first = queue.add("first", attempts=1)
    job = other.add("job", depends_on=[first])
    kill(queue)
    with pytest.raises(JobStateError, match=f"{first.id} has failed"):
        job.retry()
    assert other.retry_all() == 0
    first.retry()
    assert state(job) == "failed"  # a retry of the one does not revive the other
    job.retry()
    assert state(job) == "waiting-children"
    run(queue, 5)
    assert state(job) == "waiting"
    assert job.children_values() == {first.id: 5}


def test_a_dependency_that_completes_after_its_dependent_failed_is_met_at_the_retry(
    queue: Queue, other: Queue
) -> None:
    first = queue.add("first", attempts=1)
    job = other.add("job", depends_on=[first])
    kill(queue)
    first.retry()
    run(queue, "late")
    job.retry()
    assert state(job) == "waiting"
    assert job.children_values() == {first.id: "late"}


def test_a_job_whose_dependency_was_removed_is_retried_without_it(
    queue: Queue, other: Queue
) -> None:
    first = queue.add("first")
    job = other.add("job", depends_on=[first])
    first.remove()
    with pytest.raises(JobStateError, match="remove_dependency"):
        job.retry()
    assert job.remove_dependency(first.id)
    assert not job.remove_dependency(first.id)
    job.retry()
    assert state(job) == "waiting"


def test_an_automatic_retry_of_a_job_whose_dependency_has_failed_is_skipped(
    manager: QueueManager, queue: Queue, other: Queue, clock: VirtualClock
) -> None:
    seen = []
    manager.events.subscribe(seen.append, types=["dlq_skipped"])
    other.dlq.configure(auto_retry=True, retry_interval=60)
    first = queue.add("first", attempts=1)
    job = other.add("job", depends_on=[first])
    kill(queue)
    clock.advance(seconds=60)
    manager.run_pending()
    assert (state(job), [event.job_id for event in seen]) == ("failed", [job.id])
    first.retry()
    run(queue)
    clock.advance(seconds=60)
    manager.run_pending()
    assert state(job) == "waiting"


def test_what_waits_for_a_retry_goes_on_when_that_completes(queue: Queue, other: Queue) -> None:
    first = queue.add("first", attempts=1)
    job = other.add("job", depends_on=[first], on_dependency_failure="wait")
    kill(queue)
    assert job.failed_children() == {first.id: "boom"}
    first.retry()
    assert state(job) == "waiting-children"
    run(queue)
    assert state(job) == "waiting"
    assert job.failed_children() == {}


def test_a_dead_letter_that_is_purged_fails_what_waited_for_its_retry(
    queue: Queue, other: Queue
) -> None:
    first = queue.add("first", attempts=1)
    job = other.add("job", depends_on=[first], on_dependency_failure="wait")
    kill(queue)
    assert queue.dlq.purge() == 1
    assert (state(job), job.failed_reason) == ("failed", "dependency_failed")


def test_a_dependent_on_a_job_that_is_retried_after_completion_is_not_held_back(
    queue: Queue, other: Queue
) -> None:
    first, second = queue.add("first"), queue.add("second")
    job = other.add("job", depends_on=[first, second])
    run(queue)
    first.retry()  # a dependency that completed stays completed
    assert run(queue) in (second, first)
    if state(second) != "completed":
        run(queue)
    assert state(job) == "waiting"


# -- adding ----------------------------------------------------------------------------------------


def test_jobs_of_one_batch_depend_on_each_other_by_their_specs(queue: Queue) -> None:
    """B109: itself being added in the same batch."""
    a = JobSpec("a")
    b = JobSpec("b", depends_on=[a])
    c = JobSpec("c", depends_on=[b, a], priority=9)
    jobs = queue.add_bulk([c, b, ("plain", 1), a])
    assert [job.name for job in jobs] == ["c", "b", "plain", "a"]
    assert [str(job.state) for job in jobs] == ["waiting-children"] * 2 + ["waiting"] * 2
    assert [run(queue).name for _ in range(4)] == ["plain", "a", "b", "c"]


def test_specs_are_known_again_in_a_queue_with_defaults(manager: QueueManager) -> None:
    queue = Queue("d", manager, defaults={"attempts": 7})
    a = JobSpec("a")
    jobs = queue.add_bulk([a, JobSpec("b", depends_on=[a])])
    assert jobs[1].depends_on == (jobs[0].id,)
    assert jobs[1].max_attempts == 7


def test_a_spec_that_is_a_duplicate_stands_for_the_job_that_is_there(queue: Queue) -> None:
    live = queue.add("live", custom_id="x")
    a = JobSpec("a", custom_id="x")
    found, job = queue.add_bulk([a, JobSpec("b", depends_on=[a])])
    assert (found, found.duplicate) == (live, True)
    assert job.depends_on == (live.id,)
    run(queue)
    assert state(job) == "waiting"


@pytest.mark.parametrize("length", [1, 2, 3, 100])
def test_a_cycle_in_a_batch_is_refused_and_spelled_out(queue: Queue, length: int) -> None:
    """B115: itself, each other, a hundred."""
    specs = [JobSpec(f"s{n}") for n in range(length)]
    for n, spec in enumerate(specs):
        spec.options["depends_on"] = [specs[(n + 1) % length]]
    plain = JobSpec("plain", depends_on=[specs[0]])
    with pytest.raises(FlowError, match="cycle: ") as caught:
        queue.add_bulk([("before", 1), *specs, plain])
    path = str(caught.value).partition("cycle: ")[2].split(" -> ")
    assert path[0] == path[-1]
    if length < 20:
        assert len(path) == length + 1
    assert queue.counts().total == 0


def test_a_spec_of_no_call_or_twice_in_the_call_is_refused(queue: Queue) -> None:
    stray, twice = JobSpec("stray"), JobSpec("twice")
    with pytest.raises(ValidationError, match=r"jobs\[0\]: depends_on\[0\] .* not in this call"):
        queue.add_bulk([JobSpec("a", depends_on=[stray])])
    with pytest.raises(ValidationError, match="twice"):
        queue.add_bulk([twice, twice, JobSpec("a", depends_on=[twice])])
    with pytest.raises(ValidationError, match="JobSpec"):
        queue.add("a", depends_on=[stray])
    assert queue.counts().total == 0


def test_an_unknown_dependency_in_a_batch_keeps_what_came_before(queue: Queue) -> None:
    """SPEC 3."""
    with pytest.raises(BulkAddError) as caught:
        queue.add_bulk([("a", 1), JobSpec("b", depends_on=["nobody"]), ("c", 1)])
    assert caught.value.index == 1
    assert [job.name for job in caught.value.accepted] == ["a"]  # type: ignore[attr-defined]
    assert isinstance(caught.value.__cause__, FlowError)
    assert [job.name for job in queue.get_jobs()] == ["a"]


def test_a_duplicate_is_found_whatever_it_would_depend_on(queue: Queue) -> None:
    live = queue.add("live", custom_id="x")
    again = queue.add("again", custom_id="x", depends_on=["nobody"])
    assert (again, again.duplicate, again.depends_on) == (live, True, ())


def test_a_job_that_others_wait_for_or_that_waits_is_not_replaced(
    queue: Queue, other: Queue
) -> None:
    """SPEC 3: its dependents would never run."""
    swap = Deduplication("k", mode="replace")
    owner = queue.add("owner", deduplication=swap)
    waits = other.add("waits", depends_on=[owner], deduplication=swap)
    for each in (queue, other):
        with pytest.raises(DuplicateJobError):
            each.add("newcomer", deduplication=swap)
        with pytest.raises(BulkAddError):
            each.add_bulk([JobSpec("newcomer", deduplication=swap)])
        assert each.counts().total == 1
    run(queue)
    newcomer = other.add("newcomer", deduplication=swap)
    assert not newcomer.duplicate
    with pytest.raises(LookupError):
        waits.refresh()


def test_a_default_of_the_queue_may_say_what_failures_do(manager: QueueManager) -> None:
    queue = Queue("d", manager, defaults={"on_dependency_failure": "ignore"})
    first = queue.add("first")
    job = queue.add("job", depends_on=[first])
    kill(queue)
    assert state(job) == "waiting"


# -- proofs and results ----------------------------------------------------------------------------


def test_a_dependency_stays_completed_and_readable_however_it_left(
    manager: QueueManager, queue: Queue, other: Queue, clock: VirtualClock
) -> None:
    """SPEC 16/7: removed on completion, by age, by hand, cleaned, obliterated."""
    ways: list[dict[str, Any]] = [
        {"remove_on_complete": True},
        {"remove_on_complete": KeepJobs(age=60)},
        {"remove_on_complete": KeepJobs(count=0)},
        {},
        {},
    ]
    first = [queue.add(f"f{n}", **way) for n, way in enumerate(ways)]
    blocker = other.add("blocker")
    job = other.add("job", depends_on=[*first, blocker])
    for n in range(len(ways)):
        run(queue, n)
    first[3].remove()
    clock.advance(seconds=61)
    manager.run_pending()
    assert queue.obliterate() == 1
    assert queue.counts().total == 0
    run(other)
    assert state(job) == "waiting"
    assert [*job.children_values().values()] == [0, 1, 2, 3, 4, None]
    assert job.children_values(offset=1, limit=2) == {first[1].id: 1, first[2].id: 2}
    run(other)
    state_ = manager._state
    assert not state_.dependencies.dependents
    assert not state_.proofs.pinned
    assert not state_.results.pinned
    assert first[0].result() == 0  # one of many again


def test_results_that_a_live_job_may_read_are_outside_the_bound(clock: VirtualClock) -> None:
    config = ManagerConfig(keep_results=2, keep_completed=2)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        queue, other = Queue("a", manager), Queue("b", manager)
        first = [queue.add(f"f{n}") for n in range(20)]
        job = other.add("job", depends_on=first)
        for n in range(20):
            run(queue, n)
        for n in range(20):
            queue.add(f"more{n}")
            run(queue, "more")
        assert [*job.children_values().values()] == list(range(20))
        run(other)
        assert len(manager._state.results) <= 2
        with pytest.raises(ResultExpiredError):
            first[0].result()
        check(manager._state)


def test_a_job_that_came_too_late_for_a_result_says_so(clock: VirtualClock) -> None:
    with QueueManager(
        clock=clock, background=False, config=ManagerConfig(keep_results=1)
    ) as manager:
        if manager._state.storage is not None:
            return  # the file still has it
        queue = Queue("a", manager)
        first, second = queue.add("first"), queue.add("second")
        run(queue, 1), run(queue, 2)
        job = queue.add("job", depends_on=[first, second])
        assert job.children_values(offset=1) == {second.id: 2}
        with pytest.raises(ResultExpiredError, match=first.id):
            job.children_values()


# -- events and duties -----------------------------------------------------------------------------


def test_listeners_hear_that_a_job_waits_and_is_let_go(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    seen: list[tuple[str, str | None]] = []
    manager.events.subscribe(lambda event: seen.append((event.type, event.state)))
    first = queue.add("first")
    queue.add("job", depends_on=[first], delay=5)
    run(queue)
    manager.run_pending()
    assert [event for event in seen if event[1]] == [
        ("pushed", "waiting"),
        ("pushed", "waiting-children"),
        ("unblocked", "delayed"),
    ]
    assert "empty" not in {kind for kind, _ in seen}


def test_a_drain_that_was_broken_off_is_made_up_for_half_a_minute_later(
    manager: QueueManager, queue: Queue, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dependencies = manager._state.dependencies
    first = queue.add("first")
    job = queue.add("job", depends_on=[first], on_dependency_failure="ignore")
    held = manager.pull(queue)
    monkeypatch.setattr(dependencies, "drain", lambda: None)
    assert held is not None
    manager.fail(held, "no", unrecoverable=True)
    assert state(job) == "waiting-children"
    assert manager._state.alarm.due_ms <= manager._state.now() + 30_000
    clock.advance(seconds=30)
    manager.run_pending()
    assert state(job) == "waiting"


def test_a_drainer_that_is_stuck_is_helped_out(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    dependencies = manager._state.dependencies
    first = queue.add("first")
    job = queue.add("job", depends_on=[first], on_dependency_failure="ignore")
    assert dependencies.begin()  # by a thread that never ends it
    manager.discard(first)
    for _ in range(2):
        assert state(job) == "waiting-children"
        clock.advance(seconds=30)
        manager.run_pending()
    assert state(job) == "waiting"
    dependencies.end()
    dependencies.end()
    run(queue)


def test_an_effect_that_is_applied_twice_does_no_harm(queue: Queue, other: Queue) -> None:
    manager: Any = queue.manager
    first, second = queue.add("first"), queue.add("second")
    job = other.add("job", depends_on=[first, second])
    run(queue)
    dependencies = manager._state.dependencies
    dependencies.pending.extend([Effect(DONE, first.id, "a")] * 3)
    dependencies.drain()
    assert state(job) == "waiting-children"
    run(queue)
    assert state(job) == "waiting"


def test_without_dependencies_nothing_is_kept_for_them(manager: QueueManager, queue: Queue) -> None:
    queue.add_bulk([("n", n) for n in range(50)])
    while manager.pull(queue) is not None:
        pass
    dependencies = manager._state.dependencies
    assert (len(dependencies.dependents), len(dependencies.pending)) == (0, 0)


def test_a_dependency_that_only_the_file_has_is_known_and_leaves_a_proof_when_it_is_cleaned(
    clock: VirtualClock, tmp_path: Path
) -> None:
    config = ManagerConfig(keep_completed=None, max_completed_bytes=1)
    path = tmp_path / "kept.db"
    with QueueManager(path, clock=clock, background=False, config=config) as manager:
        queue, other = Queue("a", manager), Queue("b", manager)
        first = queue.add("first")
        run(queue, "kept")
        manager.flush()
        for _ in range(3):
            queue.add("more")
            run(queue)
            manager.flush()
        assert first.id not in manager._state.index
        manager._state.proofs._chunks.clear()
        manager._state.proofs._chunks.append({})
        blocker = other.add("blocker")
        job = other.add("job", depends_on=[first, blocker])
        assert job.children_values() == {first.id: "kept"}
        clock.advance(seconds=1)
        assert first.id in queue.clean(0, state="completed")
        manager.flush()
    with QueueManager(path, clock=clock, background=False, config=config) as manager:
        run(Queue("b", manager))
        assert str(manager.get_state(job)) == "waiting"
        check(manager._state)
