"""Jobs and results that memory has let go of, on a file: found there, under what is unwritten."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Deduplication,
    Job,
    JobNotFoundError,
    JobState,
    JobStateError,
    KeepJobs,
    ManagerConfig,
    QueueManager,
    ResultExpiredError,
    StorageError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.storage.sqlite.writer import Writer
from bunqueue_py.testing import VirtualClock

LONG = "x" * 5_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def opened(path: str | None, clock: VirtualClock | None = None, **config: Any) -> QueueManager:
    return QueueManager(
        path, config=ManagerConfig(**config), clock=clock or VirtualClock(), background=False
    )


def finish(manager: QueueManager, data: Any = None, result: Any = None, **options: Any) -> Job:
    job = manager.push("q", data, **options)
    manager.ack(manager.pull("q"), result)
    return job


def on_disk(path: str) -> set[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM jobs")}


def archived(manager: QueueManager, data: Any = None, result: Any = None, **options: Any) -> Job:
    """A completed job that only the file has."""
    job = finish(manager, data, result, **options)
    manager.flush()
    finish(manager, "pushes it out")
    assert job.id not in manager._state.index
    return job


# -- results ---------------------------------------------------------------------------------------

READS: dict[str, Callable[[QueueManager, Job], Any]] = {
    "get_result": lambda manager, job: manager.get_result(job.id),
    "wait_for": lambda manager, job: manager.wait_for(job.id, 1),
    "Job.result": lambda manager, job: job.result(1),
    "return_value": lambda manager, job: job.refresh().return_value,
    "await": lambda manager, job: asyncio.run(manager.wait_for_async(job.id)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("result", [0, "short", LONG])
@pytest.mark.parametrize("written", [False, True])
def test_a_result_that_made_room_in_memory_is_read_from_the_file(
    path: str, read: Callable[[QueueManager, Job], Any], result: Any, written: bool
) -> None:
    with opened(path, keep_results=0) as manager:
        job = finish(manager, result=result)
        if written:
            manager.flush()
        assert len(manager._state.results) == 0
        assert read(manager, job) == result


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_in_memory_it_has_expired(read: Callable[[QueueManager, Job], Any]) -> None:
    with opened(None, keep_results=0) as manager:
        job = finish(manager, result=1)
        with pytest.raises(ResultExpiredError):
            read(manager, job)


@pytest.mark.parametrize("result", [None, 7, LONG])
def test_results_are_there_after_the_manager_has_been_closed(path: str, result: Any) -> None:
    with opened(path) as manager:
        job = finish(manager, result=result)
    with opened(path) as manager:
        assert manager.get_result(job.id) == result
        assert manager.wait_for(job.id, 0) == result


def test_a_job_that_made_room_for_others_takes_its_result_along_in_the_file(path: str) -> None:
    with opened(path, keep_completed=1, keep_results=0) as manager:
        first = finish(manager, result=LONG)
        manager.flush()
        finish(manager)
        assert manager.get_job(first.id) is None
        for written in (False, True):
            with pytest.raises(ResultExpiredError):
                manager.get_result(first.id)
            if not written:
                manager.flush()
        assert first.id not in on_disk(path)


def test_the_result_of_a_job_that_ran_again_is_the_new_one(path: str) -> None:
    with opened(path, keep_results=0) as manager:
        job = finish(manager, result=LONG)
        manager.flush()
        manager.retry(job.id)
        assert manager.get_result(job.id) is None
        manager.ack(manager.pull("q"), 2)
        assert manager.get_result(job.id) == 2
        manager.flush()
        assert manager.get_result(job.id) == 2


def test_a_failing_read_of_the_file_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path, keep_results=0) as manager:
        job = finish(manager, result=1)
        manager.flush()

        def broken(job_id: str) -> None:
            raise StorageError("the disk is gone")

        monkeypatch.setattr(
            type(manager._state.storage), "read_result", lambda self, job_id: broken(job_id)
        )
        with pytest.raises(StorageError, match="the disk is gone"):
            manager.get_result(job.id)
        assert manager.get_state(job.id) is JobState.COMPLETED


# -- completed jobs beyond memory ------------------------------------------------------------------

ALL: dict[str, Any] = {"keep_completed": None, "max_completed_bytes": 0}


@pytest.mark.parametrize("size", [10, 5_000])
def test_with_all_kept_a_job_that_memory_let_go_is_found_in_the_file(path: str, size: int) -> None:
    data, result = "d" * size, "r" * size
    clock = VirtualClock()
    with opened(path, clock, **ALL) as manager:
        job = archived(manager, data, result, priority=3, tags=("a",), custom_id="c")
        for _ in range(2):  # with its proof, and without
            found = manager.get_job(job.id)
            assert found is not None
            assert (found.data, found.priority, found.tags) == (data, 3, ("a",))
            assert found.custom_id == "c"
            assert found.finished_at == manager.now
            assert manager.get_state(job.id) is JobState.COMPLETED
            assert manager.get_result(job.id) == result
            assert manager.wait_for(job.id, 0) == result
            assert job.refresh().return_value == result
            manager._state.proofs._chunks[0].clear()
            manager._state.results.drop(job.id)


def test_a_job_that_only_the_file_has_is_there_after_a_close_and_leaves_memory_again(
    path: str,
) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, 1, 2)
    with opened(path, **ALL) as manager:
        assert job.id not in manager._state.index
        assert manager.get_job(job.id).data == 1  # type: ignore[union-attr]
        assert manager.get_result(job.id) == 2
    assert job.id in on_disk(path)


def test_a_number_set_later_empties_the_file_down_to_it(path: str) -> None:
    with opened(path, **ALL) as manager:
        for n in range(20):
            finish(manager, n)
            manager.flush()
        assert len(manager._state.index) < 20
    assert len(on_disk(path)) == 20
    with opened(path, keep_completed=5) as manager:
        manager.flush()
        assert len(on_disk(path)) == 5


def test_what_is_not_written_yet_stays_in_memory(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Writer, "admit", lambda self: None)
    with opened(path, **ALL) as manager:
        state = manager._state
        marked = [finish(manager, n, n) for n in range(10)]
        assert all(job.id in state.index for job in marked), "marked, in no cut yet"
        writer = state.storage._writer  # type: ignore[union-attr]
        writer._collect(writer._begin_cut)
        finish(manager, "more")
        assert all(job.id in state.index for job in marked), "in a cut, not committed"
        writer._merge()
        finish(manager, "more")
        assert all(job.id in state.index for job in marked), "merged, not committed"
        manager.flush()
        finish(manager, "more")
        assert not any(job.id in state.index for job in marked)
        assert [manager.get_result(job.id) for job in marked] == list(range(10))


def test_in_memory_the_bound_in_bytes_holds_with_all_kept() -> None:
    with opened(None, **ALL) as manager:
        job = finish(manager, 1)
        assert manager.get_job(job.id) is None
        with pytest.raises(JobNotFoundError):
            manager.remove(job.id)


def test_a_job_with_a_bound_of_its_own_does_not_stay_in_the_file_without_it(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, 1, remove_on_complete=KeepJobs(count=5))
        assert manager.get_job(job.id) is None
        manager.flush()
        assert job.id not in on_disk(path)


def test_counts_and_pages_are_of_what_is_in_memory(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager)
        assert manager.counts("q").completed == 1
        assert job.id not in {each.id for each in manager.get_jobs("q", "completed")}
        with QueueManager.open_readonly(path) as view:
            manager.flush()
            assert view.counts("q").completed == 2


def test_remove_takes_it_out_of_the_file_for_good(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, LONG, LONG)
        assert manager.remove(job.id)
        for written in (False, True):
            assert manager.get_job(job.id) is None
            assert manager.get_state(job.id) is JobState.UNKNOWN
            with pytest.raises(JobNotFoundError):
                manager.remove(job.id)
            if not written:
                manager.flush()
        manager._state.proofs._chunks[0].clear()
        assert manager.get_result(job.id) is None
        check(manager._state)
    assert job.id not in on_disk(path)
    with closing(sqlite3.connect(path)) as connection:
        for table in ("payloads", "results"):
            assert not connection.execute(
                f"SELECT id FROM {table} WHERE id = ?", (job.id,)
            ).fetchall()


@pytest.mark.parametrize("data", [{"n": 1}, LONG])
def test_retry_runs_it_again_as_it_was(path: str, data: Any) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, data, "first", priority=7, custom_id="c")
        assert manager.retry(job.id)
        check(manager._state)
        assert manager.get_state(job.id) is JobState.PRIORITIZED
        assert manager.get_result(job.id) is None
        again = manager.pull("q")
        assert (again.id, again.data, again.custom_id) == (job.id, data, "c")
        manager.ack(again, "second")
        assert manager.get_result(job.id) == "second"
        manager.flush()
    with opened(path, **ALL) as manager:
        assert manager.get_result(job.id) == "second"


def test_retry_is_refused_while_a_live_job_has_its_custom_id(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, custom_id="c")
        manager.push("q", custom_id="c")
        with pytest.raises(JobStateError, match="custom id"):
            manager.retry(job.id)
        assert job.id not in manager._state.index
        assert manager.get_state(job.id) is JobState.COMPLETED
        check(manager._state)


CHANGES: dict[str, Callable[[QueueManager, str], Any]] = {
    "promote": lambda manager, job_id: manager.promote(job_id),
    "discard": lambda manager, job_id: manager.discard(job_id),
    "update_data": lambda manager, job_id: manager.update_data(job_id, 2),
    "change_priority": lambda manager, job_id: manager.change_priority(job_id, 2),
    "change_delay": lambda manager, job_id: manager.change_delay(job_id, 2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_only_a_waiting_job_can_have_is_refused_as_for_any_completed_one(
    path: str, change: Callable[[QueueManager, str], Any]
) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, 1)
        with pytest.raises(JobStateError, match=r"kept in the file only.*retry"):
            change(manager, job.id)
        with pytest.raises(JobNotFoundError):
            change(manager, "no such job")
        assert manager.get_job(job.id).data == 1  # type: ignore[union-attr]


def test_a_verb_of_another_queue_does_not_find_it(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager)
        for verb in (manager.remove, manager.retry, manager.promote):
            with pytest.raises(JobNotFoundError):
                verb(job.id, "another")
        assert manager.get_state(job.id) is JobState.COMPLETED


@pytest.mark.parametrize("released", [False, True])
def test_a_key_that_it_holds_beyond_its_end_is_held_on_and_can_be_released(
    path: str, released: bool
) -> None:
    key = Deduplication("k", ttl=3600, hold="ttl")
    with opened(path, **ALL) as manager:
        job = archived(manager, LONG, deduplication=key)
        assert manager.push("q", 2, deduplication=key).id == job.id
        found = manager.get_job(job.id)
        assert found is not None
        assert found.data == LONG
        if released:
            manager.deduplication_release("q", "k")
        manager.flush()
        assert manager.get_job(job.id).data == LONG  # type: ignore[union-attr]
    with opened(path, **ALL) as manager:
        assert (manager.push("q", 2, deduplication=key).id == job.id) is not released
        check(manager._state)


def test_many_threads_that_retry_one_such_job_run_it_once(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, 1)
        outcomes: list[str] = []

        def retry() -> None:
            try:
                manager.retry(job.id)
                outcomes.append("retried")
            except JobStateError:
                outcomes.append("refused")

        threads = [threading.Thread(target=retry) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["refused"] * 3 + ["retried"]
        assert manager.counts("q").waiting == 1
        check(manager._state)


def test_a_rebuild_leaves_what_only_the_file_has_alone(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, 1, 2)
        for shard in manager._state.shards.shards:
            shard.gate = BROKEN
        manager.push("q")
        manager.flush()
        assert manager.get_result(job.id) == 2
        assert manager.get_state(job.id) is JobState.COMPLETED
        check(manager._state)


def test_obliterate_removes_what_only_the_file_has_too_and_nothing_of_another_queue(
    path: str,
) -> None:
    clock = VirtualClock()
    with opened(path, clock, **ALL) as manager:
        jobs = [archived(manager, n, LONG) for n in range(5)]
        other = manager.push("other", 1)
        manager.ack(manager.pull("other"), 2)
        manager.flush()
        clock.advance(seconds=1)
        finish(manager)
        assert other.id not in manager._state.index
        manager.remove(jobs[0].id)
        assert manager.obliterate("q") == 10
        assert manager.obliterate("q") == 0
        assert manager.get_state(jobs[1].id) is JobState.UNKNOWN
        manager.flush()
        assert manager.obliterate("q") == 0
        assert manager.get_result(other.id) == 2
    assert on_disk(path) == {other.id}


def test_clean_removes_the_oldest_first_wherever_they_are(path: str) -> None:
    clock = VirtualClock()
    with opened(path, clock, **ALL) as manager:
        jobs = []
        for n in range(6):
            jobs.append(finish(manager, n))
            manager.flush()
            clock.advance(seconds=1)
        assert jobs[3].id not in manager._state.index
        assert jobs[5].id in manager._state.index
        assert manager.clean("q", 0, state="completed", limit=2) == [j.id for j in jobs[:2]]
        assert manager.clean("q", 3, state="completed") == [j.id for j in jobs[2:4]]
        assert manager.clean("q", 0, state="completed") == [j.id for j in jobs[4:]]
    assert on_disk(path) == set()


def test_retry_all_runs_those_in_memory_again(path: str) -> None:
    with opened(path, **ALL) as manager:
        job = archived(manager, 1)
        assert manager.retry_all("q", "completed") == 1
        assert manager.get_state(job.id) is JobState.COMPLETED
