"""Groups: whose turn it is, what stands aside, what is counted, and that a group which is done
leaves nothing behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    GroupFullError,
    Job,
    JobSpec,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as opened:
        yield opened
        check(opened._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


def take(manager: QueueManager, n: int = 100, **options: Any) -> list[Any]:
    """The data of the next n jobs, as far as there are any; they stay active."""
    found = []
    for _ in range(n):
        job = manager.pull("q", **options)
        if job is None:
            break
        found.append(job.data)
    return found


def push(manager: QueueManager, group: str | None, *data: Any, **options: Any) -> list[Job]:
    return [manager.push("q", value, group=group, **options) for value in data]


# -- order -----------------------------------------------------------------------------------


def test_groups_take_turns_whatever_the_order_of_pushes(manager: QueueManager) -> None:
    push(manager, "a", "a1", "a2", "a3")
    push(manager, "b", "b1")
    push(manager, "c", "c1", "c2")
    assert take(manager) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_ready_ungrouped_jobs_come_before_grouped_ones(manager: QueueManager) -> None:
    push(manager, "a", "a1", "a2", priority=100)
    push(manager, None, "u1", "u2", priority=-100)
    assert take(manager, 3) == ["u1", "u2", "a1"]
    push(manager, None, "u3")
    assert take(manager) == ["u3", "a2"]


def test_a_group_that_comes_later_has_its_turn_after_those_that_wait(manager: QueueManager) -> None:
    push(manager, "a", "a1", "a2")
    push(manager, "b", "b1", "b2")
    assert take(manager, 1) == ["a1"]
    push(manager, "c", "c1")
    assert take(manager) == ["b1", "a2", "c1", "b2"]


def test_inside_a_group_the_order_is_that_of_every_queue(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """Priority, then LIFO newest first, then FIFO by run_at and admission."""
    push(manager, "a", "fifo late", run_at=clock.now + timedelta(seconds=2))
    push(manager, "a", "delayed", delay=1)
    clock.advance(seconds=3)
    push(manager, "a", "fifo 1", "fifo 2")
    push(manager, "a", "lifo old", "lifo new", lifo=True)
    push(manager, "a", "low", priority=-1)
    push(manager, "a", "high", priority=1)
    push(manager, "a", "high lifo", priority=1, lifo=True)
    assert take(manager) == [
        "high lifo", "high", "lifo new", "lifo old", "delayed", "fifo late", "fifo 1", "fifo 2",
        "low",
    ]  # fmt: skip


def test_a_priority_does_not_buy_a_group_another_turn(manager: QueueManager) -> None:
    push(manager, "a", "a1", "a2", priority=9)
    push(manager, "b", "b1", "b2")
    assert take(manager) == ["a1", "b1", "a2", "b2"]


def test_a_batch_goes_round_too(manager: QueueManager) -> None:
    push(manager, "a", "a1", "a2")
    push(manager, "b", "b1", "b2")
    assert [job.data for job in manager.pull_batch("q", 3)] == ["a1", "b1", "a2"]


def test_an_expired_job_does_not_cost_its_group_the_turn(
    manager: QueueManager, clock: VirtualClock
) -> None:
    push(manager, "a", "a stale 1", "a stale 2", ttl=1)
    push(manager, "a", "a1")
    push(manager, "b", "b1")
    clock.advance(seconds=2)
    assert take(manager) == ["a1", "b1"]
    assert manager.counts("q").failed == 2


def test_an_expired_job_of_a_group_that_is_asked_for_gives_that_group_no_turn(
    manager: QueueManager, clock: VirtualClock
) -> None:
    push(manager, "a", "a1")
    push(manager, "b", "stale", ttl=1)
    push(manager, "b", "b1", "b2")
    clock.advance(seconds=2)
    assert take(manager, 1, group="b") == ["b1"]
    assert take(manager) == ["a1", "b2"]


# -- whose jobs ------------------------------------------------------------------------------


def test_a_pull_may_ask_for_ungrouped_jobs_or_for_those_of_one_group(
    manager: QueueManager,
) -> None:
    push(manager, "a", "a1", "a2")
    push(manager, "b", "b1")
    push(manager, None, "u1")
    assert take(manager, group="b") == ["b1"]
    assert take(manager, group=None) == ["u1"]
    assert take(manager, group="nobody") == []
    assert [job.data for job in manager.pull_batch("q", 9, group="a")] == ["a1", "a2"]
    assert take(manager) == []


def test_a_group_that_does_not_exist_is_an_empty_one(manager: QueueManager, queue: Queue) -> None:
    ghost = queue.groups["ghost"]
    assert (ghost.name, ghost.pending(), ghost.active()) == ("ghost", 0, 0)
    assert (ghost.is_paused, ghost.counts_per_priority()) == (False, {})
    ghost.resume()
    ghost.clear_rate_limit()
    ghost.set_concurrency(None)
    ghost.cool_down(0)
    assert list(queue.groups) == []
    assert "ghost" not in queue.groups


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b", "\ud83d", 5, None, True, b"x", ["x"]])
def test_a_bad_group_name_is_refused(manager: QueueManager, queue: Queue, name: Any) -> None:
    with pytest.raises(ValidationError, match="group"):
        queue.groups[name]
    if name is not None:
        with pytest.raises(ValidationError, match="group"):
            manager.pull("q", group=name)
        with pytest.raises(ValidationError, match="group"):
            manager.pull_batch("q", 2, group=name)
    assert list(queue.groups) == []


def test_a_group_may_have_any_name_that_a_job_may(manager: QueueManager, queue: Queue) -> None:
    for name in ("x", "x" * 256, "\N{SNOWMAN} with spaces", "None", "ANY"):
        push(manager, name, name)
        assert take(manager, group=name) == [name]


def test_the_job_says_its_group(manager: QueueManager) -> None:
    (job,) = push(manager, "a", 1)
    (plain,) = push(manager, None, 2)
    assert (job.group, plain.group) == ("a", None)
    found, pulled = manager.get_job(job.id), manager.pull("q", group="a")
    assert found is not None
    assert pulled is not None
    assert found.group == pulled.group == "a"


# -- pause -----------------------------------------------------------------------------------


def test_a_paused_group_stands_aside_and_the_others_go_on(
    manager: QueueManager, queue: Queue
) -> None:
    queue.groups["a"].pause()
    push(manager, "a", "a1", "a2")
    push(manager, "b", "b1")
    assert queue.groups["a"].is_paused
    assert take(manager) == ["b1"]
    assert take(manager, group="a") == []
    assert queue.groups["a"].pending() == 2
    queue.groups["a"].pause()
    queue.groups["a"].resume()
    queue.groups["a"].resume()
    assert not queue.groups["a"].is_paused
    assert take(manager) == ["a1", "a2"]


def test_a_pause_lets_what_runs_end(manager: QueueManager, queue: Queue) -> None:
    push(manager, "a", "a1")
    job = manager.pull("q")
    assert job is not None
    queue.groups["a"].pause()
    assert manager.ack(job).applied
    assert queue.groups["a"].active() == 0


def test_a_queue_that_is_paused_holds_its_groups_too(manager: QueueManager, queue: Queue) -> None:
    """B097, the half without threads."""
    push(manager, "a", "a1")
    queue.pause()
    assert take(manager) == take(manager, group="a") == []
    assert queue.counts().paused == 1
    queue.resume()
    assert take(manager) == ["a1"]


def test_jobs_of_a_paused_group_are_waiting_not_paused(manager: QueueManager, queue: Queue) -> None:
    """`paused` in counts is said of queues."""
    queue.groups["a"].pause()
    push(manager, "a", 1)
    assert (queue.counts().waiting, queue.counts().paused) == (1, 0)


# -- a job keeps its group and its place -----------------------------------------------------


def test_a_delayed_job_counts_in_its_group_and_joins_it_when_due(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    push(manager, "a", "late", delay=5, priority=3)
    push(manager, "a", "moment", run_at=clock.now + timedelta(seconds=6))
    assert queue.groups["a"].pending() == 2
    assert queue.groups["a"].counts_per_priority() == {3: 1, 0: 1}
    assert take(manager) == []
    clock.advance(seconds=5)
    assert take(manager) == ["late"]
    clock.advance(seconds=1)
    assert take(manager) == ["moment"]
    assert queue.groups["a"].pending() == 0


def test_a_retried_job_keeps_its_group(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    push(manager, "a", "a1", backoff=Backoff.fixed(5, jitter=0))
    job = manager.pull("q")
    assert job is not None
    manager.fail(job, "once")
    assert (queue.groups["a"].pending(), queue.groups["a"].active()) == (1, 0)
    clock.advance(seconds=5)
    push(manager, "b", "b1")
    assert take(manager, group="a") == ["a1"]


def test_a_released_job_has_its_old_place_in_its_group(manager: QueueManager) -> None:
    push(manager, "a", "a1", "a2")
    job = manager.pull("q")
    assert job is not None
    assert manager.release(job)
    assert take(manager) == ["a1", "a2"]


def test_a_lost_job_comes_back_into_its_group(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    push(manager, "a", "a1", backoff=Backoff.fixed(0))
    assert take(manager, lock_duration=5) == ["a1"]
    clock.advance(seconds=6)
    manager.run_pending()
    assert (queue.groups["a"].pending(), queue.groups["a"].active()) == (1, 0)
    assert take(manager, group="a") == ["a1"]


def test_a_dead_letter_comes_back_into_its_group(manager: QueueManager, queue: Queue) -> None:
    (job,) = push(manager, "a", "a1", attempts=1)
    pulled = manager.pull("q")
    assert pulled is not None
    manager.fail(pulled, "for good")
    assert list(queue.groups) == []
    assert queue.dlq.retry(job)
    assert queue.groups["a"].pending() == 1
    assert take(manager, group="a") == ["a1"]


def test_a_late_ack_takes_the_job_out_of_its_group(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    push(manager, "a", "a1")
    job = manager.pull("q", lock_duration=5)
    assert job is not None
    clock.advance(seconds=6)
    manager.run_pending()
    assert queue.groups["a"].pending() == 1
    assert manager.ack(job).applied
    assert list(queue.groups) == []


# -- looking and removing --------------------------------------------------------------------


def test_a_group_counts_what_waits_and_what_runs(manager: QueueManager, queue: Queue) -> None:
    push(manager, "a", 1, 2, priority=5)
    push(manager, "a", 3)
    push(manager, "a", 4, priority=-2)
    push(manager, "b", 5)
    group = queue.groups["a"]
    assert list(group.counts_per_priority().items()) == [(5, 2), (0, 1), (-2, 1)]
    assert (group.pending(), group.active()) == (4, 0)
    manager.pull("q")
    assert (group.pending(), group.active()) == (3, 1)
    assert group.counts_per_priority() == {5: 1, 0: 1, -2: 1}


def test_iteration_names_the_groups_with_jobs_or_settings(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    push(manager, "waiting", 1)
    push(manager, "delayed", 2, delay=9)
    push(manager, "active", 3)
    manager.pull("q", group="active")
    queue.groups["paused"].pause()
    queue.groups["bound"].set_concurrency(1)
    queue.groups["paced"].set_rate_limit(1, per=1)
    queue.groups["cooling"].cool_down(5)
    names = ["active", "bound", "cooling", "delayed", "paced", "paused", "waiting"]
    assert list(queue.groups) == names
    assert len(queue.groups) == 7
    assert "bound" in queue.groups
    clock.advance(seconds=5)
    names.remove("cooling")
    assert list(queue.groups) == names
    assert "repr" not in queue.groups
    assert repr(queue.groups["a"]) == "<QueueGroup 'a' of 'q'>"


def test_counts_and_listings_see_grouped_jobs_like_others(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    jobs = []
    for i in range(4):
        for group in ("a", None, "b"):
            jobs += push(manager, group, i)
        clock.advance(seconds=1)
    high = push(manager, "b", "high", priority=1)
    counts = queue.counts()
    assert (counts.waiting, counts.prioritized, len(queue)) == (12, 1, 13)
    assert queue.get_jobs("waiting") == jobs
    assert queue.get_jobs("waiting", newest_first=True) == jobs[::-1]
    assert queue.get_jobs("waiting", offset=5, limit=2) == jobs[5:7]
    assert queue.get_jobs("prioritized") == high
    assert queue.get_jobs() == [*jobs, *high]


def test_removing_drains_and_obliterating_take_grouped_jobs_along(
    manager: QueueManager, queue: Queue
) -> None:
    first, second = push(manager, "a", 1, 2)
    push(manager, "b", 3, delay=5)
    assert queue.remove(first)
    assert queue.groups["a"].pending() == 1
    assert queue.drain(delayed=False) == 1
    assert list(queue.groups) == ["b"]
    assert queue.drain() == 1
    assert list(queue.groups) == []
    push(manager, "a", 4, 5)
    queue.groups["c"].pause()
    manager.pull("q")
    assert queue.obliterate(force=True) == 2
    assert list(queue.groups) == ["c"]
    assert queue.counts().total == 0
    assert second.state == "waiting"


def test_a_drain_in_bites_empties_many_groups(manager: QueueManager, queue: Queue) -> None:
    queue.add_bulk([JobSpec("j", i, group=f"g{i % 300}") for i in range(2_500)])
    assert queue.drain() == 2_500
    assert len(queue.groups) == 0


# -- group_limit -----------------------------------------------------------------------------


def test_a_full_group_refuses_and_changes_nothing(manager: QueueManager, queue: Queue) -> None:
    push(manager, "a", 1, group_limit=2)
    push(manager, "a", 2, delay=9)
    before = queue.counts()
    with pytest.raises(GroupFullError, match=r"group 'a' of queue 'q' has 2 waiting jobs"):
        push(manager, "a", 3, group_limit=2)
    assert queue.counts() == before
    push(manager, "b", 3, group_limit=2)
    push(manager, "a", 4, group_limit=3)
    push(manager, "a", 5)
    assert queue.groups["a"].pending() == 4


def test_a_running_job_does_not_fill_its_group(manager: QueueManager) -> None:
    push(manager, "a", 1, group_limit=1)
    job = manager.pull("q")
    assert job is not None
    push(manager, "a", 2, group_limit=1)
    # and what comes back may overfill it: it was accepted once
    assert manager.release(job)
    with pytest.raises(GroupFullError):
        push(manager, "a", 3, group_limit=2)


def test_a_full_group_still_finds_the_live_job_of_a_custom_id(manager: QueueManager) -> None:
    (first,) = push(manager, "a", 1, group_limit=1, custom_id="x")
    again = manager.push("q", 2, group="a", group_limit=1, custom_id="x")
    assert again.duplicate
    assert again == first
    with pytest.raises(GroupFullError):
        push(manager, "a", 3, group_limit=1, custom_id="y")


def test_a_full_group_refuses_where_the_custom_id_is_of_a_finished_job(
    manager: QueueManager,
) -> None:
    (done,) = push(manager, "a", 1, custom_id="x")
    pulled = manager.pull("q")
    assert pulled is not None
    manager.ack(pulled)
    push(manager, "a", 2)
    with pytest.raises(GroupFullError):
        push(manager, "a", 3, group_limit=1, custom_id="x")
    assert manager.get_job(done.id) is not None, "the finished job has made room for nobody"


def test_a_full_group_refuses_no_job_of_a_new_queue(manager: QueueManager) -> None:
    assert manager.push("fresh", group="a", group_limit=1).group == "a"


# -- nothing left behind, nothing paid for ---------------------------------------------------


def records(queue: Queue) -> Any:
    groups = queue.manager._state.queues[queue.name].groups  # type: ignore[attr-defined]
    assert groups is not None
    return groups


def test_10_000_groups_used_once_leave_no_memory_behind(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    for i in range(10_000):
        group = f"g{i}"
        if i % 4 == 1:
            queue.groups[group].cool_down(1)
        elif i % 4 == 2:
            queue.groups[group].set_rate_limit(1, per=1)
        elif i % 4 == 3:
            queue.groups[group].pause()
        manager.push("q", group=group, remove_on_complete=True)
        if i % 4 == 1:
            clock.advance(seconds=1)
        elif i % 4 == 3:
            queue.groups[group].resume()
        job = manager.pull("q")
        assert job is not None
        assert job.group == group
        manager.ack(job)
        if i % 4 == 2:
            queue.groups[group].clear_rate_limit()
    manager.pull("q")
    groups = records(queue)
    for part in ("by_name", "line", "bounded", "passing", "timers"):
        assert len(getattr(groups, part)) == 0, part


def test_a_cool_down_of_a_group_without_jobs_is_forgotten_when_it_has_passed(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    for i in range(1_000):
        queue.groups[f"g{i}"].cool_down(5)
    queue.groups["g7"].cool_down(10)
    clock.advance(seconds=5)
    manager.pull("q")
    assert list(records(queue).by_name) == ["g7"]
    clock.advance(seconds=5)
    manager.pull("q")
    assert not records(queue).by_name


def test_a_timer_of_a_group_that_is_gone_does_not_touch_the_next_of_its_name(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    push(manager, "a", "old")
    queue.groups["a"].cool_down(10)
    assert take(manager) == []
    queue.groups["a"].cool_down(0)
    job = manager.pull("q")
    assert job is not None
    manager.ack(job)
    push(manager, "a", "new")
    clock.advance(seconds=10)
    check(manager._state)
    assert take(manager) == ["new"]


def calls_of(verb: Callable[[], object]) -> int:
    """How many calls the verb makes, in Python and in C: a cost that no machine changes."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        verb()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


@pytest.mark.slow
def test_999_blocked_groups_of_1000_cost_the_open_one_nothing(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """100,000 queued: a pull, an ack and a push look at the open group alone."""
    lonely = Queue("lonely", manager)
    lonely.add_bulk([JobSpec("j", i, group="g0") for i in range(200)])
    for i in range(1, 1_000):
        group = queue.groups[f"g{i}"]
        if i % 3 == 0:
            group.pause()
        elif i % 3 == 1:
            group.cool_down(3600)
        else:
            group.set_rate_limit(1, per=3600)
    queue.add_bulk([JobSpec("j", i, group=f"g{i % 1_000}") for i in range(100_000)])
    # the paced ones start one each, and are blocked from then on
    for _ in range(1 + 333):
        job = manager.pull("q")
        assert job is not None
        manager.ack(job)
    for name in ("lonely", "q"):
        manager.ack(manager.pull(name))  # type: ignore[arg-type]

    def cycle(name: str) -> Callable[[], object]:
        def verb() -> None:
            for i in range(20):
                job = manager.pull(name)
                assert job is not None
                assert job.group == "g0"
                manager.ack(job)
                manager.push(name, i, group="g0")
                # and what a worker's thread does
                for claimed in manager.backend.claim(
                    name, 1, 30_000, "w", manager.backend.wait_handle()
                ):
                    manager.ack(claimed)

        return verb

    alone, among = calls_of(cycle("lonely")), calls_of(cycle("q"))
    assert among <= alone * 1.5, f"{among} calls among blocked groups, {alone} alone"


def test_a_claim_of_several_does_not_look_through_the_groups(
    manager: QueueManager, queue: Queue
) -> None:
    """Whether any group has a limit is known, not looked for."""

    def claim() -> None:
        handle = manager.backend.wait_handle()
        assert len(manager.backend.claim("q", 4, 30_000, "w", handle)) == 4

    queue.add_bulk([JobSpec("j", i, group=f"g{i % 10}") for i in range(20)])
    few = calls_of(claim)
    queue.add_bulk([JobSpec("j", i, group=f"g{i}") for i in range(3_000)])
    assert calls_of(claim) <= few * 1.5
