"""Lost runs: the two-phase check without a lock, its settings, late passes, an owner's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Job,
    JobEvent,
    JobState,
    LockError,
    ManagerConfig,
    Queue,
    QueueManager,
    StallConfig,
    ValidationError,
    WaitTimeoutError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.stores.alarm import Alarm
from bunqueue_py.tasks import deadlines
from bunqueue_py.tasks.scheduler import Report, Task, TaskLoop
from bunqueue_py.tasks.stalls import LatePasses
from bunqueue_py.testing import SeededIds, VirtualClock

NOW = Backoff.fixed(0)


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
    return Queue("q", manager, defaults={"backoff": NOW})


@pytest.fixture
def events(manager: QueueManager) -> list[JobEvent]:
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append)
    return heard


def pulled(manager: QueueManager, queue: str = "q", **options: Any) -> Job:
    job = manager.pull(queue, **options)
    assert job is not None, f"nothing to pull: {manager.counts(queue)}"
    return job


def unlocked(manager: QueueManager, queue: Queue, **options: Any) -> Job:
    queue.add("n", **options)
    return pulled(manager, lock_duration=None)


def go(manager: QueueManager, clock: VirtualClock, **parts: float) -> None:
    """Goes on by that, from due moment to due moment, as a scheduler would."""
    end = clock.now + timedelta(**parts)
    for _ in range(1000):
        due = manager.next_due()
        if due is None or due > end:
            break
        clock.advance(seconds=max(0.0, (due - clock.now).total_seconds()))
        manager.run_pending()
    clock.advance(seconds=(end - clock.now).total_seconds())
    manager.run_pending()
    check(manager._state)


# -- settings --------------------------------------------------------------------------------------


def test_the_settings_are_read_back_and_default_to_the_documented_ones(queue: Queue) -> None:
    assert queue.stalls.config == StallConfig(True, 30, 3, 5) == StallConfig()
    queue.stalls.configure(False, timedelta(minutes=1), 0, 0)
    assert queue.stalls.config == StallConfig(False, 60, 0, 0)
    queue.stalls.configure(max_stalls=9)
    assert queue.stalls.config == StallConfig(max_stalls=9), "the rest has its default again"


BAD_DURATIONS: list[object] = [-1, float("nan"), float("inf"), "5", True, None, 1e12, []]
BAD: list[tuple[str, object]] = [
    *(("enabled", value) for value in (0, 1, None, "yes")),
    *(("interval", value) for value in (0, timedelta(0), *BAD_DURATIONS)),
    *(("max_stalls", value) for value in (-1, 1.0, True, None, "3", 1_000_001)),
    *(("grace", value) for value in BAD_DURATIONS),
]


@pytest.mark.parametrize(("setting", "value"), BAD, ids=str)
def test_a_setting_out_of_bounds_is_refused_by_name_and_nothing_changes(
    queue: Queue, setting: str, value: Any
) -> None:
    with pytest.raises(ValidationError, match=setting):
        queue.stalls.configure(**{setting: value})
    assert queue.stalls.config == StallConfig()


# -- the two phases --------------------------------------------------------------------------------


def test_a_silent_job_without_a_lock_is_suspected_then_lost_five_seconds_later(
    manager: QueueManager, queue: Queue, clock: VirtualClock, events: list[JobEvent]
) -> None:
    """B001: a lost run charges an attempt and a stall, and says so once."""
    job = unlocked(manager, queue)
    assert manager.next_due() == clock.now + timedelta(seconds=30)
    go(manager, clock, seconds=34, milliseconds=999)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert (job.refresh().state, job.attempts_made, job.stall_count) == ("waiting", 1, 1)
    assert job.error == "no heartbeat for 35 s"
    stalled = [(event.job_id, event.error) for event in events if event.type == "stalled"]
    assert stalled == [(job.id, "no heartbeat for 35 s")]
    assert pulled(manager) == job
    assert manager.pull("q") is None, "delivered once more, and only once"


def test_a_heartbeat_in_either_phase_is_a_sign_of_life(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    job = unlocked(manager, queue)
    for wait in (29, 34, 34, 30):
        go(manager, clock, seconds=wait)
        assert manager.heartbeat(job)
    go(manager, clock, seconds=34, milliseconds=999)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert job.refresh().stall_count == 1


def test_a_heartbeat_by_id_alone_serves_a_job_without_a_lock(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    job = unlocked(manager, queue)
    go(manager, clock, seconds=34)
    assert manager.heartbeat(job.id)
    assert manager.heartbeat_batch([job]) == [True]
    go(manager, clock, seconds=34)
    assert job.refresh().state is JobState.ACTIVE


def test_an_unexpired_lock_is_a_sign_of_life(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.stalls.configure(interval=1)
    queue.add("n", stall_timeout=1)
    job = pulled(manager, lock_duration=3600)
    go(manager, clock, seconds=3599)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, seconds=1)
    assert job.refresh().stall_count == 1


def test_a_job_has_its_own_interval_where_it_says_one(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    short = unlocked(manager, queue, stall_timeout=10)
    long = unlocked(manager, queue, stall_timeout=100)
    go(manager, clock, seconds=15)
    assert (short.refresh().stall_count, long.refresh().stall_count) == (1, 0)
    go(manager, clock, seconds=89, milliseconds=999)
    assert long.refresh().stall_count == 0
    go(manager, clock, milliseconds=1)
    assert long.refresh().stall_count == 1


def test_the_grace_counts_from_the_start_of_the_run(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.stalls.configure(interval=1, grace=20)
    job = unlocked(manager, queue)
    go(manager, clock, seconds=24, milliseconds=999)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert job.refresh().stall_count == 1


def test_a_suspicion_counts_from_the_pass_that_had_it(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """However late that is: one silence between two passes never loses a job."""
    job = unlocked(manager, queue)
    clock.advance(days=1)
    manager.run_pending()
    manager.run_pending()
    assert job.refresh().state is JobState.ACTIVE
    clock.advance(seconds=5)
    manager.run_pending()
    assert job.refresh().stall_count == 1


def test_a_job_may_take_a_lock_later_and_is_then_judged_by_it(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    for duration in (10, 30, 3600):
        job = unlocked(manager, queue)
        assert manager.extend_lock(job, duration)
        check(manager._state)
        go(manager, clock, seconds=duration - 1)
        assert job.refresh().state is JobState.ACTIVE
        go(manager, clock, seconds=1)
        assert job.refresh().stall_count == 1
        assert manager.ack(pulled(manager)).applied


@pytest.mark.parametrize("end", ["ack", "fail", "release", "obliterate"])
def test_a_run_that_ended_leaves_no_stall_check_behind(
    manager: QueueManager, queue: Queue, clock: VirtualClock, end: str
) -> None:
    job = unlocked(manager, queue)
    if end == "ack":
        manager.ack(job)
    elif end == "fail":
        manager.fail(job, "x")
    elif end == "release":
        manager.release(job)
    else:
        queue.obliterate(force=True)
    assert manager.next_due() is None
    go(manager, clock, days=1)
    assert sum(queue.counts().__dict__.values()) <= 1


def test_a_timeout_ends_a_run_without_a_lock_first(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    job = unlocked(manager, queue, timeout=20)
    go(manager, clock, seconds=20)
    assert (job.refresh().stall_count, job.error) == (0, "ran longer than its timeout of 20 s")


# -- turned on, off and changed under way ----------------------------------------------------------


def test_turned_off_nothing_is_suspected_and_turned_on_again_it_is(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    before = unlocked(manager, queue)
    go(manager, clock, seconds=31)
    queue.stalls.configure(enabled=False)
    check(manager._state)
    during = unlocked(manager, queue)
    assert manager.next_due() is None
    go(manager, clock, days=1)
    assert (before.refresh().state, during.refresh().state) == ("active", "active")
    queue.stalls.configure()
    check(manager._state)
    manager.run_pending()
    assert before.refresh().state is JobState.ACTIVE, "suspected, not lost"
    go(manager, clock, seconds=5)
    assert (before.refresh().stall_count, during.refresh().stall_count) == (1, 1)


def test_turned_off_a_lock_still_expires(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.stalls.configure(enabled=False)
    queue.add("n")
    job = pulled(manager)
    go(manager, clock, seconds=30)
    assert job.refresh().stall_count == 1


@pytest.mark.parametrize(("interval", "lost"), [(10, 15), (60, 65)])
def test_a_changed_interval_holds_for_what_runs_already(
    manager: QueueManager, queue: Queue, clock: VirtualClock, interval: int, lost: int
) -> None:
    job = unlocked(manager, queue)
    queue.stalls.configure(interval=interval)
    assert manager.next_due() == clock.now + timedelta(seconds=interval)
    go(manager, clock, seconds=lost, milliseconds=-1)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert job.refresh().stall_count == 1


# -- the bound -------------------------------------------------------------------------------------


def lose_lock(manager: QueueManager, clock: VirtualClock) -> None:
    pulled(manager, lock_duration=1)
    go(manager, clock, seconds=1)


def fall_silent(manager: QueueManager, clock: VirtualClock) -> None:
    pulled(manager, lock_duration=None)
    go(manager, clock, seconds=35)


@pytest.mark.parametrize("lose", [lose_lock, fall_silent])
@pytest.mark.parametrize("bound", [1, 2, 5])
def test_a_job_lost_so_often_fails_for_good_whichever_way_it_was_lost(
    manager: QueueManager,
    queue: Queue,
    clock: VirtualClock,
    bound: int,
    lose: Callable[[QueueManager, VirtualClock], None],
) -> None:
    """B101: its custom id is free again."""
    queue.stalls.configure(max_stalls=bound)
    job = queue.add("n", attempts=1000, custom_id="x")
    for n in range(1, bound):
        lose(manager, clock)
        assert (job.refresh().state, job.stall_count) == ("waiting", n)
    lose(manager, clock)
    assert (job.refresh().failed_reason, job.stall_count) == ("stalled", bound)
    assert not queue.add("n", custom_id="x").duplicate


@pytest.mark.parametrize("lose", [lose_lock, fall_silent])
def test_no_bound_means_that_attempts_alone_count(
    manager: QueueManager,
    queue: Queue,
    clock: VirtualClock,
    lose: Callable[[QueueManager, VirtualClock], None],
) -> None:
    queue.stalls.configure(max_stalls=0)
    job = queue.add("n", attempts=20)
    for _ in range(19):
        lose(manager, clock)
    assert (job.refresh().state, job.stall_count) == ("waiting", 19)
    lose(manager, clock)
    assert (job.refresh().failed_reason, job.stall_count) == ("stalled", 20)


# -- what the old run may still do -----------------------------------------------------------------


def test_a_lost_run_finds_out_and_its_late_failure_changes_nothing(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B022, B014: without a lock too."""
    old = unlocked(manager, queue)
    go(manager, clock, seconds=35)
    assert manager.heartbeat(old) is False
    with pytest.raises(LockError):
        manager.update_progress(old, 50)
    assert not manager.fail(old, "late").applied
    new = pulled(manager)
    assert manager.ack(old, "a").reason == "lock_lost"
    assert manager.ack(new, "b").applied
    assert manager.ack(old, "a").reason == "already_finalized"
    assert manager.get_result(new) == "b"


def test_the_work_of_a_lost_run_that_is_acked_before_it_runs_again_counts(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    old = unlocked(manager, queue)
    go(manager, clock, seconds=35)
    assert manager.ack(old, "done").applied
    assert (manager.get_result(old), manager.pull("q")) == ("done", None)


def test_active_jobs_are_counted_once_whatever_comes_back_late(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B020, as far as it goes without groups."""
    old = unlocked(manager, queue)
    go(manager, clock, seconds=35)
    new = pulled(manager, lock_duration=None)
    assert queue.counts().active == 1
    manager.ack(old, "late")
    manager.fail(old, "late")
    assert queue.counts().active == 1
    manager.ack(new)
    assert queue.counts().active == 0


def test_recovery_follows_the_lock_and_not_the_time_limit(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B008: a limit of an hour, a lock of a second."""
    queue.add("n", timeout=3600)
    job = pulled(manager, lock_duration=1)
    go(manager, clock, seconds=1)
    assert pulled(manager) == job


class Stumbling(VirtualClock):
    """Raises at one reading of the time, to come."""

    def __init__(self) -> None:
        super().__init__()
        self.countdown = 0
        read = self.timeline_ms

        def timeline_ms() -> int:
            self.countdown -= 1
            if self.countdown == 0:
                raise OSError("no time today")
            return read()

        self.timeline_ms = timeline_ms


def test_a_heartbeat_that_breaks_costs_the_others_in_its_batch_nothing() -> None:
    """B023: one of ten goes wrong; all go on, and the one is renewed at the next beat."""
    clock = Stumbling()
    with QueueManager(clock=clock, background=False) as manager:
        for n in range(10):
            manager.push("q", n)
        jobs = manager.pull_batch("q", 10)
        clock.advance(seconds=20)
        clock.countdown = 4
        with pytest.raises(OSError, match="no time"):
            manager.heartbeat_batch(jobs)
        clock.advance(seconds=5)
        assert manager.heartbeat_batch(jobs) == [True] * 10
        clock.advance(seconds=29)
        manager.run_pending()
        assert manager.counts("q").active == 10


# -- a late pass judges nobody ---------------------------------------------------------------------


def late_tick(manager: QueueManager, late: LatePasses, seconds: float) -> Report:
    return deadlines.tick(manager._state, round(seconds * 1000), late)


def test_a_late_pass_gives_locks_that_much_more_time_and_judges_nobody(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B013, its second half."""
    queue.add("n")
    job = pulled(manager)
    clock.advance(seconds=40)  # due at 30: nobody could beat, nobody could look
    late = LatePasses()
    report = late_tick(manager, late, 10)
    assert report == Report(1, clock.timeline_ms()), "the next pass follows at once"
    assert late_tick(manager, late, 0).done >= 0
    assert job.refresh().state is JobState.ACTIVE
    clock.advance(seconds=4, milliseconds=999)
    manager.run_pending()
    assert manager.heartbeat(job), "the beat that was frozen too comes in time"
    clock.advance(seconds=29)
    manager.run_pending()
    assert job.refresh().stall_count == 0
    clock.advance(seconds=1)
    manager.run_pending()
    assert job.refresh().stall_count == 1


def test_a_lock_that_is_not_renewed_after_a_late_pass_is_lost(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.add("n")
    job = pulled(manager)
    clock.advance(seconds=40)
    late_tick(manager, LatePasses(), 10)
    go(manager, clock, seconds=5)
    assert job.refresh().stall_count == 1


def test_no_lock_goes_further_than_a_heartbeat_would_bring_it(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.add("n")
    queue.add("n")
    old, fresh = pulled(manager, lock_duration=2), pulled(manager, lock_duration=100)
    clock.advance(hours=1)
    manager.heartbeat(fresh)
    late_tick(manager, LatePasses(), 3598)
    go(manager, clock, seconds=1, milliseconds=999)
    assert old.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert old.refresh().stall_count == 1
    go(manager, clock, seconds=97, milliseconds=999)
    assert fresh.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert fresh.refresh().stall_count == 1


def test_a_late_pass_suspects_nobody_and_forgets_its_suspicions(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    job = unlocked(manager, queue)
    go(manager, clock, seconds=31)
    clock.advance(seconds=14)  # suspected at 30, to be judged at 35
    late_tick(manager, LatePasses(), 10)
    manager.run_pending()
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, seconds=4)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, seconds=5)
    assert job.refresh().stall_count == 1


def test_a_late_pass_moves_timeouts(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.add("n", timeout=60)
    job = pulled(manager, lock_duration=3600)
    clock.advance(seconds=80)
    late_tick(manager, LatePasses(), 20)
    manager.run_pending()
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, seconds=4, milliseconds=999)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert (job.refresh().attempts_made, job.stall_count) == (1, 0)


def test_a_late_pass_spares_neither_ttl_nor_retention(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """They are no signs of life: nobody could have prolonged them."""
    queue.dlq.configure(max_age=50)
    waiting = queue.add("n", ttl=10, delay=5)
    clock.advance(seconds=40)
    late = LatePasses()
    report = late_tick(manager, late, 30)
    assert waiting.refresh().state is JobState.WAITING
    assert report.next_due == clock.timeline_ms()
    late_tick(manager, late, 0)
    assert waiting.refresh().failed_reason == "ttl_expired"


@pytest.mark.parametrize(("late", "judged"), [(2.5, True), (2.501, False)])
def test_late_is_more_than_half_of_five_seconds(
    manager: QueueManager, queue: Queue, clock: VirtualClock, late: float, judged: bool
) -> None:
    queue.add("n")
    job = pulled(manager)
    clock.advance(seconds=30 + late)
    late_tick(manager, LatePasses(), late)
    assert job.refresh().stall_count == judged


def test_after_three_late_passes_in_a_row_the_next_one_judges(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.add("n")
    job = pulled(manager)
    late = LatePasses()
    clock.advance(seconds=30)
    for _ in range(3):
        clock.advance(seconds=10)
        late_tick(manager, late, 10)
        late_tick(manager, late, 0)  # what follows at once is no end of the row
        assert job.refresh().state is JobState.ACTIVE
    clock.advance(seconds=10)
    late_tick(manager, late, 10)
    assert job.refresh().stall_count == 1


def test_a_pass_on_time_ends_the_row() -> None:
    late = LatePasses()
    for start in (0, 100_000, 200_000):
        assert [late.forgives(9_000, start + n * 10_000) for n in range(3)] == [True] * 3
        assert not late.forgives(0, start + 30_000)
        assert late.in_a_row == 0


def test_a_late_pass_over_thousands_of_runs_misses_none(clock: VirtualClock) -> None:
    config = ManagerConfig(shards=4)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        for name in "abcd":
            manager.push_batch(name, [("n", n) for n in range(1500)])
            manager.pull_batch(name, 1500)
        clock.advance(seconds=60)
        late = LatePasses()
        assert late_tick(manager, late, 30).done == 6000
        late_tick(manager, late, 0)
        assert manager.counts().active == 6000
        check(manager._state)


def test_stepping_by_hand_is_never_late(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """The caller is the scheduler, and the clock was moved, not the process frozen."""
    queue.add("n")
    job = pulled(manager)
    clock.advance(days=1)
    manager.run_pending()
    assert job.refresh().stall_count == 1


def test_the_loop_of_a_thread_knows_how_late_its_pass_comes(clock: VirtualClock) -> None:
    alarm = Alarm()
    loop = TaskLoop("test", clock, alarm, threaded=True)
    seen: list[int] = []

    def tick() -> Report:
        seen.append(loop.late_ms)
        return Report(1, clock.timeline_ms() + 1000)

    loop.add(Task("test", tick))
    loop.turn()
    assert seen == [], "nothing is due"
    alarm.set(clock.timeline_ms() + 1000)
    clock.advance(seconds=1)
    loop.turn()
    clock.advance(seconds=10)
    loop.turn()
    assert seen == [0, 9000]
    clock.advance(seconds=10)
    loop.run_pass()
    assert seen == [0, 9000, 0], "whoever calls it by hand is never late"


def test_a_frozen_scheduler_thread_loses_no_job(clock: VirtualClock) -> None:
    """The manager's own loop, turned by hand as its thread would turn it."""
    with QueueManager(clock=clock, background=False) as manager:
        manager.push("q", 1)
        job = pulled(manager)
        clock.advance(seconds=90)
        manager._loop.turn()
        manager._loop.turn()
        assert job.refresh().state is JobState.ACTIVE
        assert manager.heartbeat(job)
        clock.advance(seconds=29)
        manager._loop.turn()
        assert job.refresh().stall_count == 0


def test_what_is_due_when_it_is_set_is_no_lateness(clock: VirtualClock) -> None:
    """A claimed job that comes back after its ttl, a dead letter that comes back past its age."""

    def pass_by(seconds: float) -> None:
        # what a file has to write is due after a second: no pass is to be late for that
        for step in (1, seconds - 1):
            clock.advance(seconds=step)
            manager._loop.turn()

    with QueueManager(clock=clock, background=False) as manager:
        letters = Queue("q", manager).dlq
        letters.configure(max_age=60, auto_retry=True, retry_interval=30)
        manager.push("q", attempts=1)
        manager.fail(pulled(manager), "boom")
        pass_by(30)
        again = pulled(manager, lock_duration=3600)
        pass_by(60)
        manager.fail(again, "boom")
        assert manager._state.alarm.due_ms == clock.timeline_ms()
        manager._loop.turn()
        assert len(letters) == 0

        job = manager.push("q", ttl=10)
        handle = manager.backend.wait_handle()
        manager.push("q", 2)
        claimed = manager.backend.claim("q", 1, 3_600_000, "me", handle)
        pass_by(10)
        pass_by(50)
        manager.backend.give_back_unstarted([(claimed[0].id, claimed[0].token)])
        assert manager._state.alarm.due_ms == clock.timeline_ms()
        manager._loop.turn()
        assert job.refresh().failed_reason == "ttl_expired"


# -- a freeze that is short, but long beside a lock ------------------------------------------------


@pytest.mark.parametrize(
    ("lock", "late", "spared"),
    [
        (0.6, 0.1, False),
        (0.6, 0.101, True),
        (6, 1.0, False),
        (6, 1.001, True),
        (0.006, 0.002, True),
        (15, 2.5, False),
        (3600, 2.5, False),
    ],
)
def test_a_pass_that_is_late_by_half_of_the_time_between_heartbeats_spares_the_lock(
    manager: QueueManager,
    queue: Queue,
    clock: VirtualClock,
    lock: float,
    late: float,
    spared: bool,
) -> None:
    """SPEC 6: who looked that late could not send a heartbeat either. A lock of L seconds is
    renewed every L/3."""
    queue.add("n")
    job = pulled(manager, lock_duration=lock)
    clock.advance(seconds=lock + late)
    late_tick(manager, LatePasses(), late)
    check(manager._state)
    assert job.refresh().stall_count == (not spared)
    if spared:
        assert manager.heartbeat(job)


@pytest.mark.parametrize(("lock", "more"), [(0.5, 0.499), (9, 4.999)])
def test_a_spared_lock_has_its_whole_length_again_but_not_more_than_five_seconds(
    manager: QueueManager, queue: Queue, clock: VirtualClock, lock: float, more: float
) -> None:
    queue.add("n")
    job = pulled(manager, lock_duration=lock)
    clock.advance(seconds=lock + 2)
    late_tick(manager, LatePasses(), 2)
    go(manager, clock, seconds=more - 0.001)
    assert job.refresh().state is JobState.ACTIVE
    go(manager, clock, milliseconds=1)
    assert job.refresh().stall_count == 1


def test_heartbeats_that_are_behind_spare_a_lock_in_a_pass_on_time(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """A freeze that ends just after a lock expired: this pass is hardly late, the beat is."""
    queue.add("n")
    job = pulled(manager, lock_duration=0.6)
    clock.advance(seconds=0.6)
    for behind, stalls in ((0.3, 0), (0.1, 1)):
        deadlines.tick(manager._state, 0, LatePasses(), round(behind * 1000))
        assert job.refresh().stall_count == stalls
        clock.advance(seconds=0.599)


def test_a_lock_that_expires_right_after_a_freeze_is_spared_too(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """Its heartbeat was held up as well, and need not be the first to run again. What was taken
    or renewed after the freeze is judged as ever."""
    queue.add_bulk([("n", i) for i in range(4)])
    late = LatePasses()
    pulled(manager, lock_duration=0.5)
    clock.advance(seconds=0.3)
    held, renewed = pulled(manager, lock_duration=0.5), pulled(manager, lock_duration=0.5)
    clock.advance(seconds=0.49)
    late_tick(manager, late, 0.29)
    assert manager.heartbeat(renewed)
    after = pulled(manager, lock_duration=0.02)
    clock.advance(seconds=0.02)
    late_tick(manager, late, 0.003)
    assert (held.refresh().stall_count, after.refresh().stall_count) == (0, 1)
    clock.advance(seconds=0.479)
    late_tick(manager, late, 0)
    assert (held.refresh().stall_count, renewed.refresh().stall_count) == (1, 0)
    clock.advance(seconds=0.001)
    late_tick(manager, late, 0)
    assert renewed.refresh().stall_count == 1


def test_a_freeze_is_forgotten_after_five_seconds(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    late = LatePasses()
    assert late.freezes(2000, 0, 10_000) == ((10_000, 2000),)
    assert late.freezes(1, 3, 14_999) == ((14_999, 3), (10_000, 2000))
    assert late.freezes(0, 0, 15_000) == ((15_000, 0),)
    assert late.freezes(2501, 0, 15_001) == (), "late by half of five seconds: a matter of the row"


def test_a_lock_is_spared_three_times_in_a_row_and_anew_after_each_heartbeat(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """So that a machine that is always late still finds what was lost, and one whose handlers
    hold the interpreter over and over loses none of them."""
    queue.add_bulk([("n", i) for i in range(2)])
    lost, beating = (pulled(manager, lock_duration=0.5) for _ in range(2))
    late = LatePasses()
    clock.advance(seconds=0.5)
    for n in range(12):
        clock.advance(seconds=0.7)
        late_tick(manager, late, 0.7)
        assert (lost.refresh().stall_count, beating.refresh().stall_count) == (int(n > 2), 0)
        # in the very millisecond, which is the nearest that it can be to none at all
        assert manager.heartbeat(beating)
        clock.advance(seconds=0.5)


def test_a_short_freeze_moves_neither_timeouts_nor_what_has_no_lock(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """A run goes on in a freeze that its own handler makes; a silent job has 5 s more anyway."""
    queue.add("n", timeout=1)
    job = pulled(manager, lock_duration=0.5)
    clock.advance(seconds=1.5)
    late_tick(manager, LatePasses(), 1)
    assert job.refresh().error == "ran longer than its timeout of 1 s"


def test_a_loop_knows_for_how_long_a_pass_is_owed(clock: VirtualClock) -> None:
    alarm = Alarm()
    loop = TaskLoop("test", clock, alarm, threaded=True)
    seen: list[int] = []

    def tick() -> Report:
        clock.advance(seconds=1)
        seen.append(loop.behind_ms(clock.timeline_ms()))
        return Report(1, clock.timeline_ms() + 1000)

    loop.add(Task("test", tick))
    assert loop.behind_ms(clock.timeline_ms()) == 0, "nothing is due"
    alarm.set(clock.timeline_ms() + 1000)
    clock.advance(seconds=3)
    assert loop.behind_ms(clock.timeline_ms()) == 2000
    loop.turn()
    assert seen == [3000], "the pass is not done yet"
    assert loop.behind_ms(clock.timeline_ms()) == 0


def test_a_manager_looks_how_far_its_heartbeats_are_behind(clock: VirtualClock) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        manager.push("q", 1)
        job = pulled(manager, lock_duration=0.6)
        manager._state.beat.set(clock.timeline_ms() + 200)
        clock.advance(seconds=0.6)
        manager._loop.turn()
        assert job.refresh().state is JobState.ACTIVE
        manager._beat.turn()
        clock.advance(seconds=0.599)
        manager._loop.turn()
        assert job.refresh().stall_count == 1


# -- an owner's jobs -------------------------------------------------------------------------------


def test_what_an_owner_holds_is_given_back_uncharged_in_every_queue(
    manager: QueueManager, queue: Queue, events: list[JobEvent]
) -> None:
    other = Queue("other", manager)
    jobs = [*queue.add_bulk([("n", n) for n in range(600)]), other.add("n")]
    manager.pull_batch("q", 300, owner="ada")
    manager.pull_batch("q", 200, owner="bob")
    manager.pull_batch("q", 100)
    pulled(manager, "other", owner="ada", lock_duration=None)
    assert manager.release_owner("ada") == 301
    assert (queue.counts().active, other.counts().active) == (300, 0)
    assert manager.release_owner("ada") == manager.release_owner("nobody") == 0
    check(manager._state)
    again = manager.pull_batch("q", 300)
    assert again == jobs[:300], "each in its old place"
    assert {(job.attempts_made, job.stall_count) for job in again} == {(0, 0)}
    manager.run_pending()
    assert sum(event.type == "released" for event in events) == 301


def test_a_run_whose_owner_was_released_has_lost_its_lock(
    manager: QueueManager, queue: Queue
) -> None:
    queue.add("n")
    job = pulled(manager, owner="ada")
    manager.release_owner("ada")
    assert manager.heartbeat(job) is False
    assert manager.ack(job).reason == "lock_lost"


@pytest.mark.parametrize("owner", ["", "x" * 257, "a\0b", 5, None, "\ud800"], ids=repr)
def test_an_owner_that_is_no_name_is_refused(manager: QueueManager, owner: Any) -> None:
    with pytest.raises(ValidationError, match="owner"):
        manager.release_owner(owner)


@pytest.mark.parametrize("waits", ["wait_for", "wait_until_empty"])
def test_whoever_waits_for_an_outcome_makes_no_lock_last_longer(waits: str) -> None:
    """A wait asks for the heartbeats' pass, which is not late where nobody makes one."""
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        job = manager.push("q", backoff=Backoff.fixed(0))
        assert manager.pull("q", lock_duration=3) is not None
        with pytest.raises(WaitTimeoutError):
            if waits == "wait_for":
                manager.wait_for(job.id, timeout=0)
            else:
                Queue("q", manager).wait_until_empty(timeout=0)
        clock.advance(seconds=4)
        manager.run_pending()
        assert job.refresh().stall_count == 1
