"""The clean-up: what it puts away, when it comes, and that it never touches a live job."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import Deduplication, Job, KeepJobs, ManagerConfig, Queue, QueueManager
from bunqueue_py.model.job import JobRecord
from bunqueue_py.ops import tidy
from bunqueue_py.ops.query import check
from bunqueue_py.shard.deadlines import LEASE, TTL, Deadlines
from bunqueue_py.stores.alarm import NEVER
from bunqueue_py.tasks.cleanup import Cleanup
from bunqueue_py.testing import VirtualClock

CONFIG = ManagerConfig(shards=1)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, config=CONFIG) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


def pulled(queue: Queue, **options: Any) -> Job:
    job = queue.manager.pull(queue, **options)  # type: ignore[attr-defined]
    assert job is not None
    return job  # type: ignore[no-any-return]


def pass_time(manager: QueueManager, clock: VirtualClock, seconds: float) -> None:
    """Stops wherever the scheduler's thread would wake."""
    end = clock.timeline_ms() + round(seconds * 1000)
    manager.run_pending()
    while (due := manager._state.alarm.due_ms) <= end:
        clock.advance(milliseconds=max(0, due - clock.timeline_ms()))
        manager.run_pending()
    clock.advance(milliseconds=end - clock.timeline_ms())


# -- stale entries ---------------------------------------------------------------------------------


def test_an_index_of_deadlines_with_more_than_a_fifth_stale_is_swept(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    jobs = [queue.add("n", ttl=100_000) for _ in range(300)]
    extra = [queue.add("n", ttl=100_000) for _ in range(100)]
    deadlines = manager._state.shards.shards[0].deadlines
    for job in extra:
        job.discard()
    assert len(deadlines) > 400, "they stand there still"
    queue.dlq.purge()
    manager._state.cleanup.arm(clock.timeline_ms())
    manager.run_pending()
    assert len(deadlines) == 300
    deadlines.check()
    assert deadlines.stale <= 64
    clock.advance(seconds=100_000)
    manager.run_pending()
    manager.run_pending()
    assert all(job.refresh().state == "failed" for job in jobs), "no live one was swept"


def test_a_few_stale_entries_are_let_be(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    for _ in range(400):
        queue.add("n", ttl=100_000)
    for job in queue.get_jobs(limit=70, newest_first=True):
        job.remove()
    manager._state.cleanup.arm(clock.timeline_ms())
    before = len(manager._state.shards.shards[0].deadlines)
    manager.run_pending()
    assert len(manager._state.shards.shards[0].deadlines) == before, "70 of 400 are not a fifth"


def test_the_share_that_may_be_stale_is_a_setting(clock: VirtualClock) -> None:
    config = ManagerConfig(shards=1, stale_share=0.1)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        queue = Queue("q", manager)
        for _ in range(400):
            queue.add("n", ttl=100_000)
        for job in queue.get_jobs(limit=70, newest_first=True):
            job.remove()
        clock.advance(seconds=10)
        manager.run_pending()
        assert len(manager._state.shards.shards[0].deadlines) == 330


@pytest.mark.parametrize("stale_every", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("bite", [1, 3, 100])
def test_a_sweep_in_bites_takes_out_the_stale_and_nothing_else(
    queue: Queue, stale_every: int, bite: int
) -> None:
    deadlines = Deadlines()
    manager: Any = queue.manager
    ids = [queue.add("n", ttl=1000).id for _ in range(97)]
    records: list[JobRecord] = [manager._state.index[job_id] for job_id in ids]
    for i, record in enumerate(records):
        deadlines.push((i * 37) % 50, TTL, record)
    for record in records[::stale_every]:
        manager.remove(record.id)
    deadlines.begin_sweep()
    gone = 0
    while deadlines.old:
        gone += deadlines.sweep_some(bite)
        deadlines.check()
    live = {record.id for record in records} & set(manager._state.index)
    left: list[Any] = [entry[3] for entry in deadlines.entries()]
    assert sorted(record.id for record in left) == sorted(live)
    assert gone == len(records[::stale_every])


def test_the_order_of_queues_by_their_oldest_finished_job_does_not_grow_for_ever(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    for _ in range(500):
        queue.add("n")
        job = pulled(queue)
        manager.ack(job)
        manager.remove(job)
    heads = manager._state.shards.shards[0].heads
    assert len(heads.heap) == 500
    clock.advance(seconds=10)
    manager.run_pending()
    assert len(manager._state.shards.shards[0].heads) == 0


def test_that_order_is_made_anew_a_bite_of_queues_at_a_time_and_misses_none(
    manager: QueueManager, clock: VirtualClock
) -> None:
    state, n = manager._state, 600
    names = [f"q{i}" for i in range(n)]
    for name in names * 4:
        # three of each leave at once, and their entries stay
        manager.push(name)
        job = manager.pull(name)
        assert job is not None
        manager.ack(job)
        clock.advance(milliseconds=1)
        if state.index[job.id].queue.admitted < 4:
            manager.remove(job)
    shard = state.shards.shards[0]
    assert tidy.has_stale_heads(shard)
    cleanup = Cleanup(state)
    steps = cleanup._tidy_heads(shard)
    next(steps)
    late: list[str] = []
    for name in names[:5]:
        # meanwhile some of them go on
        manager.remove(manager.get_jobs(name, ["completed"])[0])
        job = manager.push(name)
        late.append(job.id)
        held = manager.pull(name)
        assert held is not None
        manager.ack(held)
        clock.advance(milliseconds=1)
    # broken off, and begun once more
    steps.close()
    assert shard.heads.old
    for _ in cleanup._tidy_heads(shard):
        shard.heads.next_ms()
    assert shard.heads.old == []
    assert len(shard.heads) <= 3 * n
    order = []
    while (queue := shard.heads.pop()) is not None:
        record = queue.completed.oldest()
        assert record is not None
        order.append(record.entered_ms)
        manager.remove(record.id)
        shard.heads.push(queue)
    assert len(order) == n
    assert order == sorted(order)


# -- keys and limits -------------------------------------------------------------------------------


def test_an_expired_key_leaves_although_nobody_asks_for_it(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    for i in range(1000):
        queue.add("n", deduplication=Deduplication(f"k{i}", ttl=100 + i, hold="ttl"))
    queue.add("n", deduplication=Deduplication("long", ttl=10_000, hold="ttl"))
    assert queue.drain() == 1001
    keys = manager._state.queues["q"].unique_keys
    assert len(keys) == 1001
    pass_time(manager, clock, 1200)
    assert list(keys.owners) == ["long"]
    pass_time(manager, clock, 10_000)
    assert len(keys) == 0


def test_a_key_that_still_holds_is_never_let_go(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    key = Deduplication("k", ttl=60, mode="extend", hold="ttl")
    first = queue.add("n", deduplication=key)
    for _ in range(10):
        pass_time(manager, clock, 50)
        again = queue.add("n", deduplication=key)
        assert (again.id, again.duplicate) == (first.id, True)


def test_a_limit_that_has_ended_by_time_is_forgotten(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.limits.set_rate_limit(5, per=1, ttl=30)
    queue.limits.cool_down(20)
    queue.groups["g"].cool_down(40)
    state = manager._state.queues["q"]
    pass_time(manager, clock, 29)
    assert state.limits is not None
    pass_time(manager, clock, 2)
    assert state.limits is None
    assert state.groups is not None
    assert "g" in state.groups.by_name
    pass_time(manager, clock, 10)
    assert state.groups.by_name == {}
    assert manager._state.alarm.due_ms >= clock.timeline_ms() + 3_000_000, "nothing more is near"


def test_moments_of_groups_that_no_longer_matter_do_not_pile_up(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.groups["g"].cool_down(3600)
    for _ in range(300):
        queue.add("n", group="g").remove()
    groups = manager._state.queues["q"].groups
    assert groups is not None
    assert len(groups.passing) > 200
    pass_time(manager, clock, 10)
    assert len(groups.passing) == 1
    assert list(queue.groups) == ["g"]
    pass_time(manager, clock, 3600)
    assert groups.by_name == {}


def test_a_limit_without_an_end_stays(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.limits.set_concurrency(2)
    queue.limits.cool_down(20)
    queue.groups["g"].set_rate_limit(1, per=1)
    queue.add("n").remove()
    pass_time(manager, clock, 100_000)
    assert queue.limits.status().concurrency == 2
    assert list(queue.groups) == ["g"]


# -- finished jobs ---------------------------------------------------------------------------------


def test_finished_jobs_beyond_the_bounds_go_in_bites_and_live_ones_stay(
    clock: VirtualClock,
) -> None:
    config = ManagerConfig(shards=1, keep_completed=100, max_completed_bytes=10_000)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        queue = Queue("q", manager)
        for i in range(2000):
            queue.add("n", "x" * (i % 50))
            manager.ack(pulled(queue))
        kept = [queue.add("n", "y" * 5000).id for _ in range(5)]
        held = pulled(queue)
        pass_time(manager, clock, 20)
        assert queue.counts().completed <= 100
        assert manager._state.shards.shards[0].finished_bytes <= 10_000
        assert {job.id for job in queue.get_jobs(["waiting", "active"])} == set(kept)
        assert manager.ack(held).applied
        check(manager._state)


# -- the index -------------------------------------------------------------------------------------


def test_entries_of_the_index_without_a_job_are_taken_out(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    live = [queue.add("n") for _ in range(20)]
    strays = [queue.add("n") for _ in range(3)]
    index = manager._state.index
    records = [index[job.id] for job in strays]
    for job in strays:
        job.remove()
    # as an exception at a bad moment might leave them
    index.update({record.id: record for record in records})
    pass_time(manager, clock, 30)
    assert set(index) == {job.id for job in live}


# -- queues ----------------------------------------------------------------------------------------


def test_a_queue_that_is_empty_for_an_hour_with_nothing_set_is_let_go(
    manager: QueueManager, clock: VirtualClock
) -> None:
    for i in range(50):
        Queue(f"once-{i}", manager).add("n").remove()
    kept = Queue("kept", manager)
    kept.add("n")
    kept.add("n").remove()
    assert len(manager.queues()) == 51
    pass_time(manager, clock, 3590)
    assert len(manager.queues()) == 51
    pass_time(manager, clock, 30)
    assert manager.queues() == ["kept"]
    assert list(manager._state.shards.shards[0].queues) == ["kept"]
    assert manager._state.alarm.due_ms == NEVER
    again = Queue("once-7", manager)
    job = again.add("n")
    assert pulled(again).id == job.id
    assert manager.queues() == ["kept", "once-7"]


def hold(queue: Queue, what: str) -> Any:
    manager: Any = queue.manager
    if what == "ready":
        return queue.add("n")
    if what == "delayed":
        return queue.add("n", delay=86_400 * 10)
    if what == "active":
        queue.add("n", timeout=86_400)
        return pulled(queue, lock_duration=86_400)
    if what == "completed":
        queue.add("n")
        return manager.ack(pulled(queue))
    if what == "failed":
        queue.dlq.configure(max_age=None)
        queue.add("n")
        manager.fail(pulled(queue), "no", unrecoverable=True)
        return queue.dlq.configure()
    if what == "pause":
        return queue.pause()
    if what == "limit":
        return queue.limits.set_concurrency(1)
    if what == "group":
        return queue.groups["g"].pause()
    if what == "stalls":
        return queue.stalls.configure(interval=7)
    if what == "dlq":
        return queue.dlq.configure(max_entries=7)
    assert what == "key"
    queue.add("n", deduplication=Deduplication("k", ttl=86_400, hold="ttl"))
    return queue.drain()


@pytest.mark.parametrize(
    "what",
    "ready delayed active completed failed pause limit group stalls dlq key".split(),
)
def test_a_queue_with_a_job_a_setting_or_history_stays(
    manager: QueueManager, queue: Queue, clock: VirtualClock, what: str
) -> None:
    hold(queue, what)
    before = manager._state.queues["q"]
    for _ in range(20):
        manager._state.cleanup.arm(clock.timeline_ms())
        pass_time(manager, clock, 3600)
    assert manager._state.queues.get("q") is before


def test_a_queue_in_which_something_happens_now_and_then_stays(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    before = manager._state.queues["q"]
    for _ in range(10):
        queue.add("n").remove()
        pass_time(manager, clock, 3000)
    assert manager._state.queues["q"] is before
    del before
    pass_time(manager, clock, 4000)
    assert manager.queues() == []


def test_empty_queues_may_stay_for_good(clock: VirtualClock) -> None:
    config = ManagerConfig(empty_queue_after=None)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        Queue("q", manager).add("n").remove()
        pass_time(manager, clock, 86_400)
        assert manager.queues() == ["q"]


def test_a_queue_that_somebody_is_about_to_use_is_not_let_go(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """A verb looks its queue up without a lock, and may wait for it while the clean-up has it."""
    state = manager._state
    Queue("q", manager).add("n").remove()
    shard = state.shards.of("q")
    seen = tidy.signature_if_empty(state, shard, "q")
    assert seen is not None
    verb_has = state.queues["q"]
    assert not tidy.let_go(state, shard, "q", seen)
    assert state.queues["q"] is verb_has
    assert shard.queues["q"] is verb_has
    del verb_has
    gc.collect()
    assert tidy.let_go(state, shard, "q", seen)
    assert state.queues == {}
    assert shard.queues == {}


def test_a_queue_whose_finished_jobs_are_in_the_file_stays(
    tmp_path: Path, clock: VirtualClock
) -> None:
    config = ManagerConfig(keep_completed=None, max_completed_bytes=0)
    with QueueManager(
        tmp_path / "kept.db", clock=clock, background=False, config=config
    ) as manager:
        queue = Queue("q", manager)
        job = queue.add("n", "data")
        manager.ack(pulled(queue))
        manager.flush()
        queue.add("n").remove()
        for _ in range(5):
            pass_time(manager, clock, 3600)
        assert manager.queues() == ["q"]
        assert manager.get_state(job) == "completed"


def test_a_clean_up_that_breaks_off_begins_anew(
    manager: QueueManager, queue: Queue, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add("n", deduplication=Deduplication("k", ttl=5, hold="ttl"))
    queue.drain()
    broken = [True]
    tidy_queues = tidy.tidy_queues

    def breaks(*arguments: Any) -> Any:
        if broken:
            broken.clear()
            raise MemoryError
        return tidy_queues(*arguments)

    monkeypatch.setattr(tidy, "tidy_queues", breaks)
    pass_time(manager, clock, 12)
    assert len(manager._state.queues["q"].unique_keys) == 0
    line = next(task for task in manager.health().tasks if task.name == "clean-up")
    assert (line.failures, line.failures_in_a_row) == (1, 0)


# -- arming ----------------------------------------------------------------------------------------


def test_a_pass_over_many_queues_is_cut_into_bounded_ones(
    manager: QueueManager, clock: VirtualClock
) -> None:
    for i in range(1000):
        Queue(f"q{i}", manager).add("n").remove()
    state = manager._state
    state.cleanup.arm(clock.timeline_ms())
    passes = 0
    while state.cleanup.due_ms <= clock.timeline_ms():
        manager.run_pending()
        passes += 1
    assert passes >= 1000 // 64


def test_a_busy_shard_has_the_clean_up_come_by_itself(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    runs = next(t for t in manager.health().tasks if t.name == "clean-up").runs
    for i in range(300):
        queue.add("n", remove_on_complete=KeepJobs(count=5))
        manager.ack(pulled(queue))
        if i % 100 == 0:
            pass_time(manager, clock, 40)
    pass_time(manager, clock, 60)
    assert next(t for t in manager.health().tasks if t.name == "clean-up").runs > runs


def test_leases_that_have_ended_do_not_lie_about(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    live = [queue.add("n") for _ in range(200)]
    held = [pulled(queue, lock_duration=1000) for _ in range(200)]
    for _ in range(95):
        queue.add("n")
        manager.ack(pulled(queue, lock_duration=5000))
    deadlines = manager._state.shards.shards[0].deadlines
    assert len(deadlines) == 295
    assert all(manager.heartbeat_batch(held))
    pass_time(manager, clock, 999)
    manager.heartbeat_batch(held)
    pass_time(manager, clock, 900)
    assert len([e for e in deadlines.entries() if e[2] == LEASE]) == 200
    assert all(job.refresh().state == "active" for job in live)
