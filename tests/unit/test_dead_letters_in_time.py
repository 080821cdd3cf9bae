"""Dead letters: settings, filters, bounds, expiry, automatic retries, purge."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue_py import (
    Deduplication,
    DlqConfig,
    DlqStats,
    DuplicateJobError,
    Job,
    JobEvent,
    JobFailedError,
    JobState,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.model.settings import MAX_LETTERS
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

HOUR, DAY = 3600, 86_400


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


@pytest.fixture
def events(manager: QueueManager) -> list[JobEvent]:
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append)
    return heard


def pulled(queue: Queue) -> Job:
    job = queue.manager.pull(queue)  # type: ignore[attr-defined]
    assert job is not None, f"nothing to pull: {queue.counts()}"
    assert isinstance(job, Job)
    return job


def dead(queue: Queue, name: str = "n", error: str = "boom", **options: Any) -> Job:
    queue.add(name, **options)
    return dies_again(queue, error)


def dies_again(queue: Queue, error: str = "boom") -> Job:
    job = pulled(queue)
    queue.manager.fail(job, error, unrecoverable=True)  # type: ignore[attr-defined]
    return job


def step(manager: QueueManager, clock: VirtualClock, **parts: float) -> None:
    """Goes from due moment to due moment, as a scheduler would."""
    end = clock.now + timedelta(**parts)
    for _ in range(1000):
        due = manager.next_due()
        if due is None or due > end:
            break
        clock.advance(seconds=max(0.0, (due - clock.now).total_seconds()))
        manager.run_pending()
    clock.advance(seconds=(end - clock.now).total_seconds())
    manager.run_pending()


def names(queue: Queue, **wanted: Any) -> list[str]:
    return [entry.job.name for entry in queue.dlq.entries(**wanted)]


# -- settings --------------------------------------------------------------------------------------


def test_the_settings_are_read_back_as_they_were_given_and_default_to_the_documented_ones(
    queue: Queue,
) -> None:
    assert queue.dlq.config == DlqConfig(False, 3600, 3, 7 * DAY, 10_000) == DlqConfig()
    queue.dlq.configure(True, timedelta(minutes=1), 5, None, 3)
    assert queue.dlq.config == DlqConfig(True, 60, 5, None, 3)
    queue.dlq.configure(max_retries=0)
    assert queue.dlq.config == DlqConfig(max_retries=0), "the rest has its default again"


def test_settings_belong_to_one_queue(manager: QueueManager, queue: Queue) -> None:
    queue.dlq.configure(max_entries=1)
    assert Queue("other", manager).dlq.config == DlqConfig()
    assert Queue("q", manager).dlq.config.max_entries == 1


BAD_DURATIONS: list[object] = [-1, float("nan"), float("inf"), "5", True, 1e12, [], -0.001]
BAD: list[tuple[str, object]] = [
    *(("auto_retry", value) for value in (0, 1, None, "yes")),
    *(("retry_interval", value) for value in (0, None, *BAD_DURATIONS)),
    *(("max_retries", value) for value in (-1, 1001, 1.0, True, None, "3", float("nan"))),
    *(("max_age", value) for value in (0, timedelta(0), *BAD_DURATIONS)),
    *(("max_entries", value) for value in (0, -1, MAX_LETTERS + 1, 1.0, True, None, "9")),
]


@pytest.mark.parametrize(("setting", "value"), BAD, ids=str)
def test_a_setting_out_of_bounds_is_refused_by_name_and_nothing_changes(
    queue: Queue, setting: str, value: Any
) -> None:
    queue.dlq.configure(max_entries=7)
    with pytest.raises(ValidationError, match=setting):
        queue.dlq.configure(**{setting: value})
    assert queue.dlq.config == DlqConfig(max_entries=7)


# -- filters ---------------------------------------------------------------------------------------

BAD_FILTERS: list[tuple[str, object]] = [
    *(("reason", value) for value in ("", "nonsense", 5, b"stalled", True)),
    *(
        (option, value)
        for option in ("older_than", "newer_than")
        for value in (*BAD_DURATIONS, datetime(2030, 1, 1))
    ),
    *(("retriable", value) for value in (0, 1, "yes")),
]


@pytest.mark.parametrize("call", ["entries", "retry_all", "purge"])
@pytest.mark.parametrize(("option", "value"), BAD_FILTERS, ids=str)
def test_a_filter_that_makes_no_sense_is_refused_by_name(
    queue: Queue, call: str, option: str, value: Any
) -> None:
    dead(queue)
    with pytest.raises(ValidationError, match=option):
        getattr(queue.dlq, call)(**{option: value})
    assert len(queue.dlq) == 1


@pytest.mark.parametrize("call", ["entries", "retry_all", "purge"])
def test_a_filter_that_does_not_exist_is_a_type_error(queue: Queue, call: str) -> None:
    with pytest.raises(TypeError, match="colour"):
        getattr(queue.dlq, call)(colour="red")


def test_entries_are_found_by_reason(manager: QueueManager, queue: Queue) -> None:
    dead(queue, "broken")
    queue.add("once", attempts=1)
    manager.fail(pulled(queue), "boom")
    assert names(queue, reason="unrecoverable") == ["broken"]
    assert names(queue, reason="max_attempts_exceeded") == ["once"]
    assert names(queue, reason="stalled") == []


def test_entries_are_found_by_age_and_each_age_splits_them_in_two(
    queue: Queue, clock: VirtualClock
) -> None:
    moments = []
    for name in "abc":
        moments.append(clock.now)
        dead(queue, name)
        clock.advance(hours=1)
    assert names(queue, older_than=2 * HOUR) == ["a", "b"], "exactly as old is older"
    assert names(queue, newer_than=2 * HOUR) == ["c"]
    assert names(queue, older_than=moments[1]) == ["a", "b"]
    assert names(queue, newer_than=moments[1]) == ["c"]
    assert names(queue, older_than=timedelta(hours=2), newer_than=timedelta(hours=3)) == ["b"]
    east = moments[1].astimezone(timezone(timedelta(hours=9)))
    assert names(queue, older_than=east) == ["a", "b"]


def test_a_filtered_page_counts_only_what_it_finds(queue: Queue, clock: VirtualClock) -> None:
    for n in range(600):
        dead(queue, str(n), remove_on_fail=False)
    clock.advance(seconds=1)
    dead(queue, "new")
    assert names(queue, older_than=1, offset=598) == ["598", "599"]
    assert names(queue, older_than=1, offset=3, limit=2) == ["3", "4"]
    assert names(queue, older_than=1, limit=0) == []
    assert names(queue, newer_than=1) == ["new"]


def test_retriable_are_those_with_an_automatic_retry_ahead(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    dead(queue)
    assert (names(queue, retriable=True), names(queue, retriable=False)) == ([], ["n"])
    queue.dlq.configure(auto_retry=True, max_retries=1)
    assert (names(queue, retriable=True), names(queue, retriable=False)) == (["n"], [])
    step(manager, clock, hours=1)
    dies_again(queue)
    assert (names(queue, retriable=True), names(queue, retriable=False)) == ([], ["n"])


def test_stats_tell_how_many_why_and_since_when(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    assert queue.dlq.stats() == DlqStats(0, {}, 0, 0, None, None)
    first = clock.now
    dead(queue)
    clock.advance(hours=1)
    queue.add("once", attempts=1)
    manager.fail(pulled(queue), "boom")
    clock.advance(hours=1)
    queue.dlq.retry(dead(queue))
    dies_again(queue)
    expected = DlqStats(3, {"unrecoverable": 2, "max_attempts_exceeded": 1}, 0, 1, first, clock.now)
    assert queue.dlq.stats() == expected


# -- bounds and expiry -----------------------------------------------------------------------------


def test_the_oldest_leave_beyond_max_entries_and_stay_known_as_failed(queue: Queue) -> None:
    queue.dlq.configure(max_entries=3)
    jobs = [dead(queue, str(n), custom_id=str(n)) for n in range(5)]
    assert names(queue) == ["2", "3", "4"]
    with pytest.raises(JobFailedError, match="boom"):
        jobs[0].result(timeout=0)
    assert not queue.add("again", custom_id="0").duplicate, "B101: no id outlives its job"


def test_a_smaller_bound_lets_the_oldest_go_at_once(queue: Queue) -> None:
    for n in range(5):
        dead(queue, str(n))
    queue.dlq.configure(max_entries=2)
    assert names(queue) == ["3", "4"]


def test_an_entry_leaves_exactly_when_it_is_max_age_old(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B131, B101"""
    job = dead(queue, custom_id="x")
    end = clock.now + timedelta(days=7)
    assert queue.dlq.entries()[0].expires_at == manager.next_due() == end
    clock.advance(days=6, hours=23, minutes=59, seconds=59, milliseconds=999)
    manager.run_pending()
    assert len(queue.dlq) == 1
    clock.advance(milliseconds=1)
    assert manager.run_pending() == 1
    assert (len(queue.dlq), manager.get_state(job), manager.next_due()) == (0, "unknown", None)
    with pytest.raises(JobFailedError, match="boom"):
        job.result(timeout=0)
    assert not queue.add("n", custom_id="x").duplicate


def test_a_changed_age_holds_for_the_entries_that_are_there(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    dead(queue)
    start = clock.now
    clock.advance(hours=2)
    queue.dlq.configure(max_age=None)
    assert (queue.dlq.entries()[0].expires_at, manager.next_due()) == (None, None)
    step(manager, clock, days=300)
    assert len(queue.dlq) == 1
    queue.dlq.configure(max_age=301 * DAY)
    assert queue.dlq.entries()[0].expires_at == start + timedelta(days=301)
    queue.dlq.configure(max_age=HOUR)
    assert manager.run_pending() == 1, "it is past its age already"
    assert len(queue.dlq) == 0


def test_a_job_kept_for_an_age_of_its_own_leaves_then_and_no_other_with_it(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B133"""
    from bunqueue_py import KeepJobs

    dead(queue, "short", remove_on_fail=KeepJobs(age=1))
    dead(queue, "long", remove_on_fail=KeepJobs(age=DAY))
    dead(queue, "plain")
    step(manager, clock, seconds=1)
    assert names(queue) == ["long", "plain"]
    step(manager, clock, days=1)
    assert names(queue) == ["plain"]


@pytest.mark.parametrize("end", ["retry", "remove", "purge", "obliterate", "retire"])
def test_what_has_left_leaves_no_moment_behind(
    manager: QueueManager, queue: Queue, clock: VirtualClock, end: str
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60)
    job = dead(queue, custom_id="x")
    assert manager.next_due() == clock.now + timedelta(minutes=1)
    if end == "retry":
        queue.dlq.retry(job)
    elif end == "remove":
        queue.dlq.remove(job)
    elif end == "purge":
        queue.dlq.purge()
    elif end == "obliterate":
        queue.obliterate()
    else:
        queue.add("n", custom_id="x")
    assert manager.next_due() is None
    step(manager, clock, days=30)
    assert len(queue.dlq) == 0


def test_ten_thousand_dead_letters_that_come_and_go_leave_no_memory_behind(
    manager: QueueManager, queue: Queue
) -> None:
    queue.dlq.configure(auto_retry=True, max_entries=10)
    for _ in range(20):
        queue.add_bulk([("n", None)] * 500)
        for job in manager.pull_batch("q", 500):
            manager.fail(job, "boom", unrecoverable=True)
    deadlines = sum(len(shard.deadlines) for shard in manager._state.shards.shards)
    assert deadlines < 200


# -- automatic retries -----------------------------------------------------------------------------


def test_automatic_retries_come_at_doubling_intervals_and_carry_the_entry_on(
    manager: QueueManager, queue: Queue, clock: VirtualClock, events: list[JobEvent]
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60, max_retries=3)
    start = clock.now
    job = dead(queue, attempts=1)
    for n, minutes in enumerate((1, 2, 4)):
        (entry,) = queue.dlq.entries()
        due = clock.now + timedelta(minutes=minutes)
        assert (entry.next_retry_at, manager.next_due()) == (due, due)
        assert entry.entered_at == start
        assert entry.expires_at == start + timedelta(days=7)
        assert (entry.retry_count, len(entry.attempts)) == (n, n + 1)
        clock.advance(minutes=minutes, milliseconds=-1)
        manager.run_pending()
        assert job.refresh().state is JobState.FAILED
        clock.advance(milliseconds=1)
        manager.run_pending()
        assert (job.refresh().state, job.attempts_made) == ("waiting", 0)
        dies_again(queue, f"again {n}")
    (entry,) = queue.dlq.entries()
    assert (entry.retry_count, entry.next_retry_at) == (3, None)
    assert entry.last_retry_at == start + timedelta(minutes=7)
    assert entry.entered_at == start
    assert [row.error for row in entry.attempts] == ["boom", "again 0", "again 1", "again 2"]
    assert manager.next_due() == start + timedelta(days=7)
    manager.run_pending()
    kinds = [event.type for event in events if event.type.startswith("dlq_")]
    assert kinds == ["dlq_added", *["dlq_retried", "dlq_added"] * 3]


def test_a_success_ends_what_the_dead_letters_knew_of_a_job(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60)
    job = dead(queue)
    step(manager, clock, minutes=1)
    manager.ack(pulled(queue), "at last")
    assert (len(queue.dlq), manager.next_due()) == (0, None)
    clock.advance(days=1)
    job.retry()
    dies_again(queue)
    (entry,) = queue.dlq.entries()
    assert (entry.retry_count, entry.entered_at) == (0, clock.now)
    assert entry.next_retry_at == clock.now + timedelta(minutes=1), "the first interval again"


def test_a_retry_by_hand_begins_a_new_stay_and_goes_on_counting(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60, max_retries=1)
    job = dead(queue)
    step(manager, clock, minutes=1)
    dies_again(queue)
    clock.advance(hours=1)
    queue.dlq.retry(job)
    dies_again(queue)
    (entry,) = queue.dlq.entries()
    assert (entry.retry_count, entry.entered_at) == (2, clock.now)
    assert entry.next_retry_at == clock.now + timedelta(minutes=1)
    assert entry.expires_at == clock.now + timedelta(days=7)


def test_a_job_that_comes_back_past_its_age_leaves_at_the_next_pass(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60, max_age=90)
    dead(queue)
    step(manager, clock, seconds=60)
    clock.advance(seconds=60)
    dies_again(queue)
    assert len(queue.dlq) == 1
    manager.run_pending()
    assert len(queue.dlq) == 0


def test_an_expiry_that_comes_with_a_retry_wins(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60, max_age=60)
    job = dead(queue)
    clock.advance(days=1)
    manager.run_pending()
    assert manager.get_state(job) is JobState.UNKNOWN


def test_no_automatic_retries_are_made_with_a_bound_of_none_or_before_it_is_turned_on(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    dead(queue)
    step(manager, clock, days=1)
    queue.dlq.configure(auto_retry=True, max_retries=0)
    assert queue.dlq.entries()[0].next_retry_at is None
    queue.dlq.configure(auto_retry=True)
    manager.run_pending()
    assert queue.counts().waiting == 1, "its first interval is long over"


def test_an_automatic_retry_of_a_paused_queue_waits_for_its_end(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True)
    dead(queue)
    queue.pause()
    step(manager, clock, hours=1)
    assert (queue.counts().paused, len(queue.dlq)) == (1, 0)


def test_a_refused_automatic_retry_says_so_and_tries_again_an_interval_later(
    manager: QueueManager, queue: Queue, clock: VirtualClock, events: list[JobEvent]
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60)
    job = dead(queue, deduplication=Deduplication("k"))
    owner = queue.add("new", deduplication=Deduplication("k"), delay=10**6)
    clock.advance(minutes=1)
    manager.run_pending()
    (entry,) = queue.dlq.entries()
    assert (entry.next_retry_at, entry.retry_count) == (clock.now + timedelta(minutes=1), 0)
    skipped = [event for event in events if event.type == "dlq_skipped"]
    reason = f"its deduplication key 'k' now belongs to live job {owner.id}"
    assert [(event.job_id, event.reason) for event in skipped] == [(job.id, reason)]
    assert queue.dlq.retry_all() == 0
    with pytest.raises(DuplicateJobError, match="its deduplication key 'k' belongs to job"):
        queue.dlq.retry(job)
    queue.remove(owner)
    clock.advance(minutes=1)
    manager.run_pending()
    assert queue.counts().waiting == 1


def test_many_that_are_due_at_once_are_all_retried_in_bounded_passes(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=1)
    queue.add_bulk([("n", n) for n in range(3000)])
    for job in manager.pull_batch("q", 3000):
        manager.fail(job, "boom", unrecoverable=True)
    clock.advance(seconds=1)
    passes = [manager.run_pending() for _ in range(4)]
    assert max(passes) <= 1024
    assert sum(passes) == queue.counts().waiting == 3000


# -- retry_all and purge ---------------------------------------------------------------------------


def test_replaying_all_of_a_thousand_gives_each_fresh_attempts_and_skips_none(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B067"""
    queue.add_bulk([("n", n) for n in range(1000)])
    for job in manager.pull_batch("q", 1000):
        manager.fail(job, "boom", unrecoverable=True)
    assert queue.dlq.retry_all() == 1000
    assert (len(queue.dlq), queue.counts().waiting) == (0, 1000)
    assert queue.dlq.retry_all() == 0
    again = manager.pull_batch("q", 1000)
    assert [job.data for job in again] == list(range(1000))
    assert {(job.attempts_made, job.stall_count) for job in again} == {(0, 0)}


def test_a_replay_that_is_broken_off_goes_on_where_it_was(
    manager: QueueManager, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B067: broken off half-way, every job is in exactly one place."""
    from bunqueue_py.ops import dead_letters

    queue.add_bulk([("n", n) for n in range(1000)])
    for job in manager.pull_batch("q", 1000):
        manager.fail(job, "boom", unrecoverable=True)
    asked = 0

    def breaks(state: Any, queue: Any, record: Any, now: int) -> None:
        nonlocal asked
        asked += 1
        if asked == 600:
            raise KeyboardInterrupt

    monkeypatch.setattr(dead_letters, "refusal_of_retry", breaks)
    with pytest.raises(KeyboardInterrupt):
        queue.dlq.retry_all()
    counts = queue.counts()
    assert (counts.waiting + counts.failed, counts.total) == (1000, 1000)
    assert 512 <= counts.waiting < 600
    check(manager._state)
    assert queue.dlq.retry_all() == 1000 - counts.waiting
    assert queue.counts().waiting == 1000


def test_retry_all_and_purge_take_the_filters_of_entries(
    manager: QueueManager, queue: Queue, clock: VirtualClock, events: list[JobEvent]
) -> None:
    for name in "abcd":
        dead(queue, name)
        clock.advance(hours=1)
    assert queue.dlq.retry_all(older_than=4 * HOUR) == 1
    assert queue.dlq.purge(newer_than=2 * HOUR) == 1
    assert queue.dlq.purge(reason="stalled") == 0
    assert names(queue) == ["b", "c"]
    assert queue.dlq.purge() == 2
    assert (len(queue.dlq), queue.counts().total) == (0, 1)
    manager.run_pending()
    assert [event.count for event in events if event.type == "cleaned"] == [1, 2]


def test_a_purged_id_can_be_used_again(queue: Queue) -> None:
    """B101"""
    dead(queue, custom_id="x")
    assert queue.dlq.purge() == 1
    assert not queue.add("n", custom_id="x").duplicate


def test_an_unknown_queue_has_no_dead_letters_and_is_not_made_by_asking(
    manager: QueueManager,
) -> None:
    assert manager.dlq_entries("none") == []
    assert (manager.dlq_len("none"), manager.dlq_purge("none")) == (0, 0)
    assert (manager.dlq_retry_all("none"), manager.dlq_stats("none").total) == (0, 0)
    assert manager.dlq_config("none") == DlqConfig()
    assert manager.queues() == []
