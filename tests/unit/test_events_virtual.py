"""What happens is told: every type of event, what it carries, in what order, to whom and when.

It is over 400 lines because every type has its own small story.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from bunqueue_py import Backoff, Job, JobEvent, JobSpec, KeepJobs, Queue, QueueEvents, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

TYPES = """pushed active progress completed failed retried stalled released removed duplicated
paused resumed drained obliterated empty dlq_added dlq_retried queue_created""".split()
CARRIED = "state result error reason attempt terminal retry_at percent message count".split()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def heard(manager: QueueManager) -> list[JobEvent]:
    """Every event of the manager, once `run_pending` has delivered it."""
    events: list[JobEvent] = []
    manager.events.subscribe(events.append)
    return events


def pulled(manager: QueueManager, queue: str = "q", **options: Any) -> Job:
    job = manager.pull(queue, **options)
    assert job is not None, f"nothing to pull: {manager.counts(queue)}"
    return job


def held(manager: QueueManager, **options: Any) -> Job:
    manager.push("q", {"n": 1}, **options)
    return pulled(manager)


def told(event: JobEvent) -> dict[str, Any]:
    """The type, and what of the rest is not `None`."""
    carried = {name: getattr(event, name) for name in CARRIED}
    return {"type": event.type} | {k: v for k, v in carried.items() if v is not None}


def since(manager: QueueManager, heard: list[JobEvent], do: Callable[[], Any]) -> list[JobEvent]:
    """The events that `do` causes."""
    manager.run_pending()
    before = len(heard)
    do()
    manager.run_pending()
    return heard[before:]


# -- what each type carries ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, state",
    [({}, "waiting"), ({"priority": 1}, "prioritized"), ({"delay": 1}, "delayed")],
    ids=str,
)
def test_pushed_carries_the_state_that_the_job_entered(
    manager: QueueManager, heard: list[JobEvent], options: dict[str, Any], state: str
) -> None:
    job = manager.push("q", **options)
    manager.run_pending()
    assert told(heard[-1]) == {"type": "pushed", "state": state}
    assert (heard[-1].job_id, heard[-1].queue) == (job.id, "q")


def test_the_first_use_of_a_queue_is_told_as_its_first_event(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    Queue("emails", manager)
    manager.push("emails")
    manager.run_pending()
    assert [(e.type, e.queue, e.job_id, e.sequence) for e in heard] == [
        ("queue_created", "emails", None, 1),
        ("pushed", "emails", heard[1].job_id, 2),
    ]
    assert told(heard[0]) == {"type": "queue_created"}
    assert heard[0].timestamp == clock.now


def test_a_completed_run_tells_active_completed_with_its_result_and_empty(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    manager.push("q")
    job = []
    (active,) = since(manager, heard, lambda: job.append(pulled(manager)))
    assert told(active) == {"type": "active"}
    clock.advance(seconds=3)
    completed, empty = since(manager, heard, lambda: manager.ack(job[0], {"sum": 6}))
    assert told(completed) == {"type": "completed", "result": {"sum": 6}}
    assert (completed.job_id, completed.timestamp) == (job[0].id, clock.now)
    assert completed.timestamp == active.timestamp + timedelta(seconds=3)
    assert told(empty) == {"type": "empty"}
    assert (empty.queue, empty.job_id) == ("q", None)


def test_a_job_completed_without_result_carries_none(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    job = held(manager)
    completed, _ = since(manager, heard, lambda: manager.ack(job))
    assert completed.result is None


def test_a_retryable_failure_tells_its_error_attempt_and_when_it_runs_again(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    job = held(manager, backoff=Backoff.fixed(10, jitter=0))
    (failed,) = since(manager, heard, lambda: manager.fail(job, ValueError("no")))
    assert told(failed) == {
        "type": "failed",
        "error": "ValueError: no",
        "attempt": 1,
        "terminal": False,
        "retry_at": clock.now + timedelta(seconds=10),
    }
    assert failed.job_id == job.id


def test_a_final_failure_tells_its_reason_then_the_dead_letter_then_empty(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    job = held(manager, attempts=1)
    failed, added, empty = since(manager, heard, lambda: manager.fail(job, "no"))
    assert told(failed) == {
        "type": "failed",
        "error": "no",
        "reason": "max_attempts_exceeded",
        "attempt": 1,
        "terminal": True,
    }
    assert told(added) == {"type": "dlq_added", "reason": "max_attempts_exceeded"}
    assert added.job_id == failed.job_id == job.id
    assert empty.type == "empty"


def test_a_job_removed_on_failure_enters_no_dead_letters(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    job = held(manager, remove_on_fail=True)
    events = since(manager, heard, lambda: manager.fail(job, "no", unrecoverable=True))
    assert [event.type for event in events] == ["failed", "empty"]


def test_a_lost_delivery_tells_stalled_then_failed(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    manager.push("q")
    job = pulled(manager, owner="worker-7")
    stalled, failed = since(manager, heard, lambda: clock.advance(seconds=30))
    assert (stalled.type, stalled.job_id) == ("stalled", job.id)
    assert "worker-7" in (stalled.error or "")
    assert (failed.type, failed.terminal, failed.attempt) == ("failed", False, 1)
    assert stalled.timestamp == failed.timestamp == clock.now


def test_a_timeout_and_an_expired_ttl_tell_failed(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    late = held(manager, attempts=1, timeout=1)
    never = manager.push("q", ttl=2)
    events = since(manager, heard, lambda: clock.advance(seconds=1))
    assert [(e.job_id, e.type, e.reason) for e in events] == [
        (late.id, "failed", "timeout"),
        (late.id, "dlq_added", "timeout"),
    ]
    failed, *_ = since(manager, heard, lambda: clock.advance(seconds=1))
    assert (failed.job_id, failed.reason, failed.attempt) == (never.id, "ttl_expired", 0)
    assert failed.terminal is True


def test_a_release_tells_released(manager: QueueManager, heard: list[JobEvent]) -> None:
    job = held(manager)
    (released,) = since(manager, heard, lambda: manager.release(job))
    assert told(released) == {"type": "released"}
    assert released.job_id == job.id


def test_a_duplicate_tells_the_job_that_was_there_already(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    job = manager.push("q", custom_id="x")
    (event,) = since(manager, heard, lambda: manager.push("q", custom_id="x"))
    assert told(event) == {"type": "duplicated"}
    assert event.job_id == job.id


def test_a_removal_tells_removed_and_empty_if_it_was_the_last(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    first, last = manager.push("q"), manager.push("q")
    (removed,) = since(manager, heard, lambda: manager.remove(first))
    assert (told(removed), removed.job_id) == ({"type": "removed"}, first.id)
    events = since(manager, heard, lambda: manager.remove(last))
    assert [event.type for event in events] == ["removed", "empty"]


def test_a_retry_tells_retried_or_dlq_retried(manager: QueueManager, heard: list[JobEvent]) -> None:
    job = held(manager)
    manager.ack(job)
    (retried,) = since(manager, heard, lambda: manager.retry(job))
    assert (told(retried), retried.job_id) == ({"type": "retried"}, job.id)
    manager.fail(pulled(manager), "no", unrecoverable=True)
    (again,) = since(manager, heard, lambda: manager.retry(job))
    assert (told(again), again.job_id) == ({"type": "dlq_retried"}, job.id)


def test_pausing_and_resuming_are_told_once_each(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    queue = Queue("q", manager)
    events = since(manager, heard, lambda: (queue.pause(), queue.pause()))
    assert [told(event) for event in events] == [{"type": "paused"}]
    events = since(manager, heard, lambda: (queue.resume(), queue.resume()))
    assert [told(event) for event in events] == [{"type": "resumed"}]


def test_draining_and_obliterating_tell_how_many_jobs_went(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    manager.push_batch("q", [("n", None), JobSpec("n", delay=9), ("n", None)])
    events = since(manager, heard, lambda: manager.drain("q"))
    assert {"type": "drained", "count": 3} in [told(event) for event in events]
    assert [event.type for event in events].count("empty") == 1
    assert since(manager, heard, lambda: manager.drain("q")) == []
    held(manager)
    manager.push("q")
    events = since(manager, heard, lambda: manager.obliterate("q", force=True))
    assert [told(event) for event in events] == [{"type": "obliterated", "count": 2}]


def test_empty_is_told_only_when_nothing_is_pending_or_active(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    first, second = held(manager), held(manager)
    manager.push("q", delay=60)
    events = since(manager, heard, lambda: (manager.ack(first), manager.ack(second)))
    assert [event.type for event in events] == ["completed", "completed"]
    events = since(manager, heard, lambda: manager.drain("q"))
    assert "empty" in [event.type for event in events]


def test_a_progress_report_tells_percent_and_message(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    job = held(manager)
    (event,) = since(manager, heard, lambda: job.update_progress(12.5, "reading"))
    assert told(event) == {"type": "progress", "percent": 12.5, "message": "reading"}
    assert event.job_id == job.id


def test_every_type_that_can_be_subscribed_to_does_occur(
    manager: QueueManager, clock: VirtualClock
) -> None:
    seen: dict[str, list[JobEvent]] = {kind: [] for kind in TYPES}
    for kind in TYPES:
        manager.events.subscribe(seen[kind].append, types=kind)
    first = manager.push("q", custom_id="x", backoff=0)
    manager.push("q", custom_id="x")
    run = pulled(manager)
    run.update_progress(1)
    manager.release(run)
    pulled(manager)
    clock.advance(seconds=30)
    manager.run_pending()
    manager.fail(pulled(manager), "no", unrecoverable=True)
    manager.retry(first)
    manager.ack(pulled(manager))
    manager.retry(first)
    manager.remove(first)
    manager.pause("q")
    manager.resume("q")
    manager.push("q")
    manager.drain("q")
    manager.obliterate("q")
    manager.run_pending()
    assert {kind: {event.type for event in seen[kind]} for kind in TYPES} == {
        kind: {kind} for kind in TYPES
    }


def test_an_event_is_frozen(manager: QueueManager, heard: list[JobEvent]) -> None:
    manager.push("q")
    manager.run_pending()
    with pytest.raises(AttributeError):
        heard[0].type = "other"  # type: ignore[misc]


# -- order and sequence ----------------------------------------------------------------------------


def test_one_jobs_life_is_told_in_order(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    job = manager.push("q", backoff=Backoff.fixed(5, jitter=0))
    manager.fail(pulled(manager), "no")
    clock.advance(seconds=5)
    run = pulled(manager)
    manager.release(run)
    run = pulled(manager)
    run.update_progress(50)
    manager.ack(run)
    manager.retry(job)
    manager.ack(pulled(manager))
    manager.remove(job)
    manager.run_pending()
    kinds = """pushed active failed active released active progress completed retried active
    completed removed""".split()
    assert [event.type for event in heard if event.job_id == job.id] == kinds
    moments = [event.timestamp for event in heard]
    assert moments == sorted(moments)


def test_the_sequence_counts_each_queues_events_without_gaps(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    queues = [f"queue-{n}" for n in range(5)]
    for n in range(40):
        queue = queues[n * 7 % 5]
        manager.push(queue, ttl=1 if n % 3 else None, backoff=0)
        job = pulled(manager, queue)
        [manager.ack, lambda job: manager.fail(job, "no"), manager.release][n % 3](job)
        clock.advance(milliseconds=300)
        manager.run_pending()
    for queue in queues:
        manager.drain(queue)
    manager.run_pending()
    for queue in queues:
        sequence = [event.sequence for event in heard if event.queue == queue]
        assert sequence == list(range(1, len(sequence) + 1))
        assert len(sequence) > 8


def test_a_batch_is_told_job_by_job_in_its_order(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    jobs = manager.push_batch("q", [(str(n), n) for n in range(5)])
    manager.run_pending()
    pushed = [event for event in heard if event.type == "pushed"]
    assert [event.job_id for event in pushed] == [job.id for job in jobs]


def test_a_listener_of_some_types_sees_by_the_sequence_what_it_did_not_ask_for(
    manager: QueueManager,
) -> None:
    some: list[JobEvent] = []
    manager.events.subscribe(some.append, types=("active", "completed"))
    manager.ack(held(manager))
    manager.ack(held(manager))
    manager.run_pending()
    assert [event.type for event in some] == ["active", "completed"] * 2
    gaps = [b.sequence - a.sequence for a, b in pairwise(some)]
    assert gaps == [1, 1, 1], "what nobody listens to is not counted"
    heard: list[JobEvent] = []
    stop = manager.events.subscribe(heard.append)
    manager.ack(held(manager))
    manager.run_pending()
    gaps = [b.sequence - a.sequence for a, b in pairwise(some[3:])]
    assert gaps == [2, 1], "pushed lies between, which somebody heard"
    assert [event.sequence for event in heard] == [5, 6, 7, 8]
    stop()


# -- who hears what --------------------------------------------------------------------------------


def test_a_listener_hears_its_queue_and_types_alone(manager: QueueManager) -> None:
    queue = Queue("mine", manager)
    lists: dict[str, list[JobEvent]] = {"by name": [], "by object": [], "types": [], "both": []}
    manager.events.subscribe(lists["by name"].append, "mine")
    manager.events.subscribe(lists["by object"].append, queue=queue)
    manager.events.subscribe(lists["types"].append, types="pushed")
    manager.events.subscribe(lists["both"].append, "mine", ["active", "pushed"])
    for name in ("mine", "other"):
        manager.push(name)
        manager.ack(pulled(manager, name))
    manager.run_pending()
    shown = {who: [(e.queue, e.type) for e in events] for who, events in lists.items()}
    whole = [("mine", kind) for kind in ("pushed", "active", "completed", "empty")]
    assert shown["by name"] == shown["by object"] == whole
    assert shown["types"] == [("mine", "pushed"), ("other", "pushed")]
    assert shown["both"] == whole[:2]


def test_events_are_of_the_manager_of_their_queue(manager: QueueManager) -> None:
    other = QueueManager(background=False)
    with pytest.raises(ValueError, match="not the one that the queue belongs to"):
        QueueEvents(Queue("q", manager), other)
    other.close()
    for wrong in (0, [], "jobs.db", object()):
        with pytest.raises(ValueError, match="manager must be a QueueManager"):
            QueueEvents("q", wrong)  # type: ignore[arg-type]


def test_what_cannot_be_subscribed_to_is_refused(manager: QueueManager) -> None:
    with pytest.raises(ValueError, match="types must be among"):
        manager.events.subscribe(print, types="finished")
    with pytest.raises(ValueError, match="types must be among"):
        manager.events.subscribe(print, types=["pushed", "finished"])
    with pytest.raises(ValueError, match=r"types must be among .*, not \['pushed'\]"):
        manager.events.subscribe(print, types=[["pushed"]])  # type: ignore[list-item]
    events = QueueEvents("q", manager)
    for kind in ("finished", ["pushed"], None):
        with pytest.raises(ValueError, match="event must be among"):
            events.on(kind, print)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="event must be among"):
            events.off(kind, print)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="callable"):
        manager.events.subscribe("print")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="queue"):
        manager.events.subscribe(print, queue="no such name!")


def test_callbacks_run_in_run_pending_and_are_counted_there(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    manager.push("q")
    assert heard == []
    assert manager.run_pending() == 2
    assert [event.type for event in heard] == ["queue_created", "pushed"]
    assert manager.run_pending() == 0


def test_a_listener_hears_nothing_from_before_it_came(manager: QueueManager) -> None:
    manager.push("q", 1)
    late: list[JobEvent] = []
    manager.events.subscribe(late.append)
    assert manager.run_pending() == 0
    job = manager.push("q", 2)
    manager.run_pending()
    assert [event.job_id for event in late] == [job.id]


def test_after_unsubscribing_a_listener_hears_no_more_and_others_still_do(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    mine: list[JobEvent] = []
    unsubscribe = manager.events.subscribe(mine.append)
    manager.push("q")
    manager.run_pending()
    before = len(mine)
    assert before == 2
    unsubscribe()
    unsubscribe()  # once more changes nothing
    manager.push("q")
    manager.run_pending()
    assert len(mine) == before
    assert len(heard) == before + 1


def test_one_function_subscribed_twice_hears_everything_twice(manager: QueueManager) -> None:
    events: list[JobEvent] = []
    first = manager.events.subscribe(events.append)
    manager.events.subscribe(events.append)
    manager.push("q")
    manager.run_pending()
    assert len(events) == 4
    first()
    manager.push("q")
    manager.run_pending()
    assert len(events) == 5


def test_a_listener_may_unsubscribe_itself_in_its_call(manager: QueueManager) -> None:
    events: list[JobEvent] = []

    def once(event: JobEvent) -> None:
        events.append(event)
        unsubscribe()

    unsubscribe = manager.events.subscribe(once, types="pushed")
    manager.push("q")
    manager.run_pending()
    manager.push("q")
    manager.run_pending()
    assert len(events) == 1


def test_a_listener_may_use_the_manager_and_what_it_causes_is_told_too(
    manager: QueueManager,
) -> None:
    chain: list[Any] = []

    def follow(event: JobEvent) -> None:
        chain.append(event.queue)
        assert event.job_id is not None
        assert manager.get_job(event.job_id) is not None
        if len(chain) < 4:
            manager.push(f"queue-{len(chain)}")

    manager.events.subscribe(follow, types="pushed")
    manager.push("queue-0")
    manager.run_pending()
    assert chain == ["queue-0", "queue-1", "queue-2", "queue-3"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_raising_listener_is_logged_stays_and_costs_nobody_anything(
    manager: QueueManager, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    calls: list[str] = []
    others: list[JobEvent] = []

    def broken(event: JobEvent) -> None:
        calls.append(event.type)
        raise error("broken listener")

    manager.events.subscribe(broken)
    manager.events.subscribe(others.append)
    with caplog.at_level(logging.ERROR):
        manager.ack(held(manager), "r")
        manager.run_pending()
    assert calls == [event.type for event in others]
    assert calls == ["queue_created", "pushed", "active", "completed", "empty"]
    assert "broken listener" in caplog.text
    assert manager.counts("q").completed == 1


def test_every_listener_gets_a_result_of_its_own(manager: QueueManager) -> None:
    """B073"""
    results: list[Any] = []

    def spoil(event: JobEvent) -> None:
        results.append(event.result)
        event.result["rows"].append("spoiled")

    for _ in range(3):
        manager.events.subscribe(spoil, types="completed")
    original = {"rows": [1]}
    job = held(manager)
    manager.ack(job, original)
    original["rows"].append("by the handler, later")
    manager.run_pending()
    assert results == [{"rows": [1, "spoiled"]}] * 3
    assert len({id(result) for result in results}) == 3
    assert manager.get_result(job) == {"rows": [1]}


def test_closing_delivers_what_is_still_buffered(clock: VirtualClock) -> None:
    events: list[JobEvent] = []
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        manager.events.subscribe(events.append)
        manager.push("q")
    assert [event.type for event in events] == ["queue_created", "pushed"]


# -- progress --------------------------------------------------------------------------------------


def test_progress_is_told_ten_times_a_second_at_most(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    job = held(manager)
    for n in range(300):
        job.update_progress(n / 10, f"step {n}")
        clock.advance(milliseconds=10)
    manager.run_pending()
    told_at = [event.timestamp for event in heard if event.type == "progress"]
    assert 25 <= len(told_at) <= 30
    for moment in told_at:
        window = [at for at in told_at if moment <= at < moment + timedelta(seconds=1)]
        assert len(window) <= 10
    assert (job.refresh().progress, job.progress_message) == (29.9, "step 299")


def test_progress_reported_slowly_is_told_every_time(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    job = held(manager)
    for n in range(10):
        job.update_progress(n)
        clock.advance(milliseconds=100)
    manager.run_pending()
    assert [e.percent for e in heard if e.type == "progress"] == list(range(10))


def test_repeating_the_end_is_no_way_round_the_bound(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    job = held(manager)
    for _ in range(100):
        job.update_progress(100)
        clock.advance(milliseconds=5)
    manager.run_pending()
    assert [event.type for event in heard].count("progress") <= 10


def test_progress_is_coalesced_per_job(manager: QueueManager, heard: list[JobEvent]) -> None:
    jobs = [held(manager) for _ in range(5)]
    for job in jobs:
        job.update_progress(10)
        job.update_progress(20)
    manager.run_pending()
    told_of = [e.job_id for e in heard if e.type == "progress"]
    assert told_of == [job.id for job in jobs]


def test_completion_is_told_at_once_however_fresh_the_last_progress(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    job = held(manager)
    job.update_progress(10)
    job.update_progress(100, "done")
    manager.ack(job)
    manager.run_pending()
    kinds = [event.type for event in heard]
    assert kinds[-2:] == ["completed", "empty"]
    progress = [event for event in heard if event.type == "progress"]
    assert progress[-1].percent == 100, "the end of a job's progress is not swallowed"


@pytest.mark.parametrize("percent", [-1, 100.1, float("nan"), "50", None, True])
def test_a_progress_out_of_bounds_is_refused_and_not_told(
    manager: QueueManager, heard: list[JobEvent], percent: Any
) -> None:
    job = held(manager)
    with pytest.raises(ValueError, match="percent"):
        job.update_progress(percent)
    manager.run_pending()
    assert "progress" not in [event.type for event in heard]
    assert job.refresh().progress == 0


# -- retention and bounds --------------------------------------------------------------------------


def test_jobs_that_leave_by_retention_are_not_told_as_removed(
    manager: QueueManager, heard: list[JobEvent], clock: VirtualClock
) -> None:
    for keep in (True, KeepJobs(count=0), KeepJobs(age=1)):
        manager.ack(held(manager, remove_on_complete=keep))
    clock.advance(seconds=1)
    manager.run_pending()
    assert manager.counts("q").total == 0
    assert "removed" not in [event.type for event in heard]
    assert [event.type for event in heard].count("completed") == 3


@pytest.mark.slow
def test_a_buffer_that_overflows_loses_the_oldest_and_the_sequence_shows_it(
    manager: QueueManager, heard: list[JobEvent]
) -> None:
    bound = 100_000
    for _ in range(bound // 2):
        manager.pause("q")
        manager.resume("q")
    manager.push("q")
    assert manager.run_pending() == bound
    assert len(heard) == bound
    assert heard[-1].type == "pushed"
    assert heard[0].sequence == 3, "queue_created and the first pause made room"
    assert [event.sequence for event in heard] == list(range(3, bound + 3))
