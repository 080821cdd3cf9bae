"""What the clean-up and the registry did is so after a crash as well, and nothing that lives is
lost by it."""

from __future__ import annotations

import shutil
from pathlib import Path

from bunqueue_py import Deduplication, ManagerConfig, Queue, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.testing import Harness, VirtualClock
from tests.storage_check import check_storage


def crash(h: Harness, path: Path) -> None:
    h.manager.flush()
    check(h.manager._state)
    check_storage(h.manager, str(path))
    h.crash_and_restart()
    check(h.manager._state)


def test_keys_that_were_let_go_are_free_after_a_crash_and_the_others_held(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Harness(path) as h:
        queue = h.queue("q")
        for name, ttl in (("short", 60), ("long", 3600)):
            queue.add("n", deduplication=Deduplication(name, ttl=ttl, hold="ttl")).remove()
        h.advance(seconds=100)
        assert queue.deduplication.owner("short") is None
        crash(h, path)
        assert not queue.add("n", deduplication=Deduplication("short")).duplicate
        keys = h.manager._state.queues["q"].unique_keys
        assert sorted(keys.owners) == ["long", "short"]
        h.advance(seconds=3600)
        assert sorted(keys.owners) == ["short"], "its job lives"


def test_limits_that_were_forgotten_stay_so_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Harness(path) as h:
        queue, kept = h.queue("q"), h.queue("kept")
        queue.limits.set_rate_limit(5, per=1, ttl=30)
        queue.groups["g"].cool_down(40)
        kept.limits.set_concurrency(3)
        kept.groups["g"].cool_down(7200)
        h.advance(seconds=60)
        crash(h, path)
        assert h.manager.queues() == ["kept"], "nothing is left that would need it"
        assert queue.limits.status().rate_limit is None
        assert kept.limits.status().concurrency == 3
        assert list(kept.groups) == ["g"]
        h.advance(hours=3)
        crash(h, path)
        assert list(kept.groups) == []
        assert kept.limits.status().concurrency == 3


def test_a_queue_that_was_let_go_is_gone_after_a_crash_and_comes_back_with_a_job(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    with Harness(path) as h:
        manager = h.manager
        manager.push("gone").remove()
        manager.push("stays")
        manager.push("paused").remove()
        manager.pause("paused")
        h.advance(hours=3)
        assert manager.queues() == ["paused", "stays"]
        crash(h, path)
        manager = h.manager
        assert manager.queues() == ["paused", "stays"]
        assert Queue("paused", manager).is_paused
        job = manager.push("gone")
        crash(h, path)
        assert h.manager.get_state(job.id) == "waiting"


def test_finished_jobs_that_made_room_are_off_the_file_and_what_waits_for_them_goes_on(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    config = ManagerConfig(shards=1, keep_completed=20)

    def opened(path: Path) -> QueueManager:
        return QueueManager(path, clock=clock, background=False, config=config)

    first, second = tmp_path / "first.db", tmp_path / "second.db"
    with opened(first) as manager:
        queue = Queue("q", manager)
        waiting = [queue.add("later", delay=3600) for _ in range(30)]
        jobs = [queue.add("n", i) for i in range(60)]
        # the first to make room, and the dependent waits on
        dependent = queue.add("dependent", depends_on=[jobs[0], waiting[0]])
        for _ in jobs:
            job = manager.pull(queue)
            assert job is not None
            manager.ack(job)
        clock.advance(seconds=30)
        manager.run_pending()
        manager.flush()
        kept = [job.id for job in queue.get_jobs("completed")]
        assert 0 < len(kept) <= 20
        # what a kill right now would leave
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{first}{suffix}", f"{second}{suffix}")
    with opened(second) as manager:
        check(manager._state)
        queue = Queue("q", manager)
        assert [job.id for job in queue.get_jobs("completed")] == kept
        counts = queue.counts()
        assert (counts.delayed, counts.waiting_children) == (30, 1)
        assert jobs[0].id not in kept
        clock.advance(hours=2)
        seen = []
        while job := manager.pull(queue):
            seen.append(job.id)
            manager.ack(job)
        assert sorted(seen) == sorted([dependent.id, *(job.id for job in waiting)])
        assert manager.wait_for(dependent, timeout=0) is None


def test_what_an_owner_gave_back_is_uncharged_after_a_crash_and_what_another_held_is_lost(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    with Harness(path) as h:
        queue = h.queue("q")
        jobs = [queue.add("n", backoff=1) for _ in range(4)]
        for owner in ("ada", "bob", "ada", "bob"):
            assert h.manager.pull("q", owner=owner) is not None
        assert h.manager.release_owner("ada") == 2
        crash(h, path)
        seen = [job.refresh() for job in jobs]
        assert [(job.attempts_made, job.stall_count) for job in seen] == [(0, 0), (1, 1)] * 2
        assert h.manager.release_owner("bob") == 0
        assert h.manager.workers.list() == []
        h.worker(queue, lambda job: None)
        h.advance(seconds=5)
        assert queue.counts().completed == 4


def test_a_worker_that_fell_silent_and_left_is_nobody_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Harness(path) as h:
        queue = h.queue("q")
        worker = h.worker(queue, lambda job: h.hang(), name="ada")
        job = queue.add("n", attempts=5, backoff=1)
        h.run_until_idle()
        assert job.refresh().state == "active"
        h.lose_worker(worker)
        h.advance(minutes=5)
        assert h.manager.workers.list() == []
        before = job.refresh()
        assert (before.state, before.stall_count) == ("waiting", 1)
        crash(h, path)
        after = job.refresh()
        assert (after.state, after.attempts_made, after.stall_count) == ("waiting", 1, 1)
