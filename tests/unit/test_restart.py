"""A restart in good order changes nothing: all that can be seen of a queue is as it was, and what
happens from then on is what would have happened without it.

It is over 400 lines because each kind of state has a life of its own here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Deduplication,
    GroupFullError,
    Job,
    JobSpec,
    KeepJobs,
    ManagerConfig,
    Queue,
    QueueManager,
    ResultExpiredError,
    SqliteStorage,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.testing import SeededIds, VirtualClock
from tests.storage_check import check_storage

LARGE = "x" * 5000
KEYS = [
    Deduplication(f"{mode}-{hold}", ttl, mode, hold)  # type: ignore[arg-type]
    for mode in ("skip", "extend", "replace")
    for hold, ttl in (("live", None), ("live", 15), ("ttl", 15))
]


class House:
    """A manager on a virtual clock that can be closed and opened again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.ids = SeededIds()
        self.open()

    def open(self) -> None:
        self.manager = QueueManager(
            None if self.path is None else SqliteStorage(self.path),
            clock=self.clock,
            background=False,
            config=ManagerConfig(shards=1),
            _ids=self.ids,
        )
        self.queue = Queue("q", self.manager)

    def close(self) -> None:
        check(self.manager._state)
        if self.path is not None:
            check_storage(self.manager, str(self.path))
        self.manager.close()

    def restart(self) -> None:
        """Nothing at all in memory."""
        if self.path is not None:
            self.close()
            self.open()

    def pull(self) -> Job:
        job = self.manager.pull("q")
        assert job is not None
        return job

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)
        self.manager.run_pending()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "jobs.db")
    yield house
    house.close()


def result_of(manager: QueueManager, job: Job) -> Any:
    """Its result, from the file where memory has let go of it."""
    try:
        return job.return_value
    except ResultExpiredError:
        storage = manager._state.storage
        kept = None if storage is None else storage.read_result(job.id)
        return None if kept is None else manager._state.loads(kept)


def picture(house: House) -> dict[str, Any]:
    """All that the public interface shows of the queue, but for the order of jobs that entered
    their state in the same millisecond: after a restart that is the order of admission."""
    manager, queue = house.manager, house.queue
    listed = {
        state: manager.get_jobs("q", states=(state,), limit=1000)
        for state in ("waiting", "prioritized", "delayed", "active", "completed", "failed")
    }
    jobs = {
        state: sorted(
            ({**job.to_dict(), "result": result_of(manager, job)} for job in found),
            key=lambda shown: shown["id"],
        )
        for state, found in listed.items()
    }
    return {
        "jobs": jobs,
        "finished": [job.finished_at for job in (*listed["completed"], *listed["failed"])],
        "queues": manager.queues(),
        "counts": queue.counts(),
        "priorities": queue.counts_per_priority(),
        "paused": queue.is_paused,
        "limits": queue.limits.status(),
        "groups": {
            name: (group.pending(), group.active(), group.is_paused, group.counts_per_priority())
            for name in queue.groups
            for group in [queue.groups[name]]
        },
        "stalls": queue.stalls.config,
        "dead": (queue.dlq.config, queue.dlq.stats(), queue.dlq.entries()),
        "keys": {key.key: queue.deduplication.owner(key.key) for key in KEYS},
    }


def what_follows(house: House) -> list[Any]:
    """What two minutes bring: which runs there are, when, and how pushes are answered."""
    manager, queue, seen = house.manager, house.queue, []
    for i in range(12):
        manager.run_pending()
        while (job := manager.pull("q")) is not None:
            seen.append((house.clock.now, job.id, job.name, job.data, job.attempt, job.progress))
            if job.name == "bad" and job.attempts_made < 4:
                manager.fail(job, ValueError("again"))
            else:
                manager.ack(job, job.data)
        answer = queue.add("again", i, custom_id="c", delay=12)
        seen.append(("custom id", answer.id, answer.duplicate))
        for key in KEYS:
            answer = queue.add("again", i, deduplication=key, delay=4)
            seen.append((key.key, answer.id, answer.duplicate))
        if i == 5:
            queue.resume()
            queue.groups["b"].resume()
        seen.append((queue.counts(), queue.limits.status(), queue.dlq.stats()))
        house.clock.advance(seconds=10)
    seen.append(picture(house))
    return seen


def waiting(house: House) -> None:
    for i in range(5):
        house.queue.add("job", i)


def priorities_and_lifo(house: House) -> None:
    for i in range(12):
        house.queue.add("job", i, priority=(0, 5, -3)[i % 3], lifo=i % 4 == 1)
    house.queue.change_priority(house.queue.get_jobs()[0], 7)
    house.queue.change_priority(house.queue.get_jobs()[3], 0, lifo=True)


def delayed_and_promoted(house: House) -> None:
    jobs = [house.queue.add("job", i, delay=10 * (i % 4) + 5, priority=i % 2) for i in range(8)]
    house.queue.promote(jobs[3])
    house.queue.change_delay(jobs[4], 33)
    house.wait(6)
    house.queue.add("late", 1)


def at_a_moment(house: House) -> None:
    house.clock.set_wall_clock(house.clock.now + timedelta(hours=5))
    wall = house.clock.now + timedelta(hours=5)
    for seconds in (30, 10, 50, -20):
        house.queue.add("job", seconds, run_at=wall + timedelta(seconds=seconds))
    house.queue.add("job", "by the timeline", delay=20)


def grouped(house: House) -> None:
    for i in range(9):
        house.queue.add("job", i, group="abc"[i % 3], priority=i % 2)
    house.queue.add("job", "of none")
    house.queue.groups["b"].pause()
    house.queue.groups["c"].set_concurrency(1)
    house.queue.groups["a"].set_rate_limit(1, per=25)
    house.queue.groups["empty"].cool_down(100)
    with pytest.raises(GroupFullError):
        house.queue.add("job", group="a", group_limit=3)


def paused(house: House) -> None:
    waiting(house)
    house.queue.pause()


def limited(house: House) -> None:
    waiting(house)
    house.queue.limits.set_concurrency(3)
    house.queue.limits.set_rate_limit(2, per=30)
    house.manager.ack(house.pull())
    house.wait(7)
    house.manager.ack(house.pull())


def limited_for_a_while(house: House) -> None:
    waiting(house)
    house.queue.limits.set_rate_limit(1, per=60, ttl=20)
    house.queue.limits.cool_down(15)
    house.wait(3)


def limits_that_have_ended(house: House) -> None:
    limited_for_a_while(house)
    house.queue.groups["b"].cool_down(5)
    house.wait(50)


def keys_of_live_jobs(house: House) -> None:
    for i in range(2):
        for key in KEYS:
            house.queue.add("job", i, deduplication=key, delay=30)
        house.wait(5)


def keys_of_jobs_that_have_ended(house: House) -> None:
    for gone in (False, True):
        for key in KEYS:
            key = Deduplication(f"{key.key}", key.ttl, key.mode, key.hold)
            house.queue.add("job", gone, deduplication=key, remove_on_complete=gone)
        while (job := house.manager.pull("q")) is not None:
            house.manager.ack(job)
        house.wait(8 if gone else 16)


def keys_of_jobs_that_are_gone(house: House) -> None:
    for key in KEYS:
        house.queue.remove(house.queue.add("job", deduplication=key))
    house.wait(5)
    for key in KEYS:
        house.queue.add("job", deduplication=key, delay=1)
    house.queue.deduplication.release("skip-ttl")


def custom_ids(house: House) -> None:
    house.queue.add("one", 1, custom_id="a")
    house.manager.ack(house.pull(), 1)
    house.queue.add("two", 2, custom_id="b", delay=5)
    house.queue.add("three", 3, custom_id="c", remove_on_complete=True)
    house.manager.ack(house.pull())
    house.queue.add("four", 4, custom_id="a", delay=5)


def dead_letters(house: House) -> None:
    house.queue.dlq.configure(True, retry_interval=20, max_retries=2, max_age=90, max_entries=3)
    for i in range(5):
        house.queue.add("bad", i, attempts=1 + i % 2, backoff=Backoff.fixed(3), stack_trace_limit=i)
    for _ in range(5):
        while (job := house.manager.pull("q")) is not None:
            house.manager.fail(job, ValueError(f"{job.data}"))
        house.wait(7)
    house.queue.dlq.retry(house.queue.dlq.entries()[0].job)


def completed(house: House) -> None:
    results = (None, 0, "small", LARGE, [None], {"a": LARGE}, "y" * 4094, "y" * 4095)
    for result in results:
        house.queue.add("job", result)
        house.manager.ack(house.pull(), result)
        house.wait(1)
    house.queue.retry(house.queue.get_jobs(("completed",))[3])
    house.queue.clean(0, state="completed", limit=1)


def kept_for_a_while(house: House) -> None:
    for i in range(6):
        keep = (KeepJobs(count=2), KeepJobs(age=25), True)[i % 3]
        house.queue.add("job", i, remove_on_complete=keep, remove_on_fail=keep, attempts=1)
        job = house.pull()
        if i < 3:
            house.manager.fail(job, "boom")
        else:
            house.manager.ack(job, i)
        house.wait(2)


def retries(house: House) -> None:
    for i, rule in enumerate((7, Backoff.fixed(9), Backoff.custom(three_times), timedelta(1))):
        house.queue.add("bad", i, attempts=3, backoff=rule)
    while (job := house.manager.pull("q")) is not None:
        house.manager.fail(job, ValueError("first"))


def stalled(house: House) -> None:
    house.queue.stalls.configure(True, interval=10, max_stalls=2, grace=1)
    house.queue.add("job", 1, backoff=0, stall_timeout=20)
    house.queue.add("job", 2, backoff=0, attempts=5)
    for _ in range(2):
        house.manager.pull("q", lock_duration=2)
        house.wait(3)


def payloads(house: House) -> None:
    for first in ("small", LARGE, "z" * 4094, "z" * 4095):
        for then in ("other", LARGE + "!", None):
            job = house.queue.add("job", first)
            if then is not None:
                house.manager.flush()
                house.queue.update_data(job, then)


def progress_and_tags(house: House) -> None:
    house.queue.add("bad", 1, tags=["red", "blue"], attempts=4, backoff=5, timeout=50, ttl=70)
    job = house.pull()
    job.update_progress(41.5, "nearly")
    house.manager.fail(job, "boom")
    house.queue.add("job", 2, tags=["ä"], ttl=40, delay=45)
    house.queue.discard(house.queue.add("job", 3))


def given_back(house: House) -> None:
    waiting(house)
    house.manager.release(house.pull(), delay=15)
    house.manager.release(house.pull())


def three_times(attempt: int, error: BaseException | str) -> float:
    """A back-off that a file can keep by its name."""
    return attempt * 3


LIVES: list[Callable[[House], None]] = [
    waiting,
    priorities_and_lifo,
    delayed_and_promoted,
    at_a_moment,
    grouped,
    paused,
    limited,
    limited_for_a_while,
    limits_that_have_ended,
    keys_of_live_jobs,
    keys_of_jobs_that_have_ended,
    keys_of_jobs_that_are_gone,
    custom_ids,
    dead_letters,
    completed,
    kept_for_a_while,
    retries,
    stalled,
    payloads,
    progress_and_tags,
    given_back,
]


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_a_restart_changes_nothing_that_can_be_seen(
    house: House, life: Callable[[House], None]
) -> None:
    life(house)
    before = picture(house)
    for _ in range(2):
        house.restart()
        assert picture(house) == before


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_what_follows_a_restart_is_what_would_have_followed_without(
    house: House, life: Callable[[House], None]
) -> None:
    other = House(None)
    for each in (house, other):
        life(each)
        each.restart()
    try:
        for after, without in zip(what_follows(house), what_follows(other), strict=True):
            assert after == without
    finally:
        other.close()
    before = picture(house)
    house.restart()
    assert picture(house) == before


# -- back-offs that are functions ------------------------------------------------------------------


@pytest.mark.parametrize("wait", [lambda n, e: 1, House.wait, House.__init__, print])
def test_a_back_off_is_refused_just_if_the_file_cannot_keep_it(house: House, wait: Any) -> None:
    importable = "lambda" not in wait.__name__
    if importable:
        assert not house.queue.add("job", backoff=Backoff.custom(wait)).duplicate
        return
    for _ in range(2):
        with pytest.raises(ValidationError, match=r"^backoff must be a function at the top"):
            house.queue.add("job", backoff=Backoff.custom(wait), attempts=2)
        with pytest.raises(ValidationError, match=r"^jobs\[1\]: backoff must be a function"):
            house.manager.push_batch("q", [("a", 1), JobSpec("b", 2, backoff=Backoff.custom(wait))])
    assert house.queue.counts().total == 0


def test_a_back_off_may_be_a_lambda_where_all_is_in_memory() -> None:
    house = House(None)
    house.queue.add("job", backoff=Backoff.custom(lambda n, e: 1))
    house.close()


def test_a_back_off_that_is_kept_by_name_is_used_after_a_restart(house: House) -> None:
    job = house.queue.add("job", attempts=5, backoff=Backoff.custom(three_times))
    for n in (1, 2, 3):
        house.restart()
        house.manager.fail(house.pull(), "boom")
        found = house.manager.get_job(job.id)
        assert found is not None
        assert found.run_at == house.clock.now + timedelta(seconds=3 * n)
        house.restart()
        house.wait(3 * n)


# -- keys that are held by jobs that are gone ------------------------------------------------------


def held_rows(house: House) -> list[str]:
    house.manager.flush()
    with closing(sqlite3.connect(f"file:{house.path}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT key FROM rest WHERE kind = 'held_key'").fetchall()
    return sorted(key.partition("\0")[2] for (key,) in rows)


def hold(house: House, key: str, ttl: float = 10, **options: Any) -> Job:
    """A job that is gone and holds its key."""
    job = house.queue.add("job", deduplication=Deduplication(key, ttl, hold="ttl"), **options)
    house.queue.remove(job)
    return job


def test_held_keys_leave_the_file_as_newer_ones_are_taken(house: House) -> None:
    for i in range(60):
        hold(house, f"k{i}", 1)
        house.clock.advance(milliseconds=250)
    assert len(held_rows(house)) <= 10
    assert len(house.manager._state.queues["q"].unique_keys) <= 10


def test_a_key_that_another_job_takes_leaves_the_one_that_is_gone(house: House) -> None:
    hold(house, "k")
    assert held_rows(house) == ["k"]
    house.wait(11)
    house.queue.add("live", deduplication=Deduplication("k"))
    assert held_rows(house) == []


def test_a_held_key_that_is_released_leaves_the_file(house: House) -> None:
    hold(house, "k")
    assert house.queue.deduplication.release("k") is True
    assert held_rows(house) == []
    house.restart()
    assert house.queue.deduplication.owner("k") is None


def test_a_held_key_whose_time_passes_while_all_is_closed_leaves_the_file(house: House) -> None:
    hold(house, "k")
    hold(house, "longer", 100)
    house.close()
    house.clock.advance(seconds=50)
    house.open()
    assert held_rows(house) == ["longer"]


def test_a_held_key_of_a_job_that_is_gone_is_extended_on_disk(house: House) -> None:
    gone = hold(house, "k", 10)
    house.wait(8)
    again = house.queue.add("job", deduplication=Deduplication("k", 10, "extend"))
    assert (again.id, again.duplicate) == (gone.id, True)
    house.restart()
    house.wait(9)
    assert house.queue.deduplication.owner("k") == gone.id
    house.wait(1)
    assert house.queue.deduplication.owner("k") is None


def test_a_rebuild_leaves_only_the_held_keys_that_still_stand(house: House) -> None:
    hold(house, "short", 5)
    hold(house, "long", 50)
    house.clock.advance(seconds=6)
    house.manager._state.shards.shards[0].gate = BROKEN
    assert house.queue.deduplication.owner("long") is not None
    assert held_rows(house) == ["long"]


# -- dead letters ----------------------------------------------------------------------------------


def test_moments_that_other_settings_have_taken_from_dead_letters_do_not_come_back(
    house: House,
) -> None:
    house.queue.dlq.configure(auto_retry=True, retry_interval=60, max_age=600)
    house.queue.discard(house.queue.add("job", 1))
    house.queue.add("job", 2, attempts=1)
    house.manager.fail(house.pull(), "boom")
    assert [entry.next_retry_at is None for entry in house.queue.dlq.entries()] == [True, False]
    house.queue.dlq.configure(auto_retry=False, max_age=None)
    house.restart()
    for entry in house.queue.dlq.entries():
        assert (entry.next_retry_at, entry.expires_at) == (None, None)
    assert house.queue.dlq.stats().retriable == 0


# -- admission numbers -----------------------------------------------------------------------------


def test_a_job_that_is_given_back_after_a_restart_has_its_old_place_after_the_next(
    house: House,
) -> None:
    first, second = (house.queue.add("job", n) for n in (1, 2))
    house.restart()
    house.manager.release(house.pull())
    house.restart()
    assert [house.pull(), house.pull()] == [first, second]


# -- the order in which jobs entered their state ---------------------------------------------------


def moved_about(house: House) -> list[int]:
    """Waiting jobs that became ready in another order than that of their admission; the data of
    them in the order in which they did."""
    queue, clock = house.queue, house.clock
    for n in range(6):
        queue.add("job", n, delay=3 if n == 1 else 0, group="g" if n > 4 else None, lifo=n == 4)
        clock.advance(seconds=1)
    jobs = {job.data: job for job in queue.get_jobs()}
    for priority in (7, 0):
        queue.change_priority(jobs[0], priority)
        clock.advance(seconds=1)
    house.manager.release(house.pull())  # the fifth, LIFO
    clock.advance(seconds=1)
    queue.add("job", 6)
    return [2, 3, 1, 5, 0, 4, 6]


@pytest.mark.parametrize("broken_off", [False, True])
def test_listings_show_ready_jobs_as_they_became_ready_whatever_came_between(
    house: House, broken_off: bool
) -> None:
    order = moved_about(house)
    # the delayed one came due with the admission of another
    assert [job.data for job in house.queue.get_jobs("waiting")] == order
    if broken_off:
        house.manager._state.shards.shards[0].gate = BROKEN
    else:
        house.restart()
    assert [job.data for job in house.queue.get_jobs("waiting")] == order


def test_a_clean_after_a_restart_takes_the_oldest_and_misses_none(house: House) -> None:
    order = moved_about(house)
    house.restart()
    gone = house.queue.clean(3, state="waiting")
    assert len(gone) == 4
    assert [job.data for job in house.queue.get_jobs("waiting")] == order[4:]
