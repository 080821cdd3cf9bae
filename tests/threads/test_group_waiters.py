"""Threads that wait for jobs of certain groups, or for limits to let a job start: whoever can be
served is woken, and nobody is counted on who cannot be. Nobody polls."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bunqueue_py import (
    ANY,
    Ack,
    Backoff,
    BunqueueError,
    Job,
    JobSpec,
    ManagerConfig,
    Queue,
    QueueManager,
    RateLimit,
    Worker,
)
from bunqueue_py.ops.query import check
from bunqueue_py.types import GroupChoice
from tests.threads.patience import TIMEOUT, until

SOON = 0.15
"""How long a thread is watched that must sleep on."""


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager(config=ManagerConfig(shards=1)) as opened:
        yield opened
        if opened.queues():
            check(opened._state)


class Waiting:
    """A thread that waits in `pull` for a job of that choice, and stands in line when made."""

    def __init__(self, manager: QueueManager, group: GroupChoice = ANY) -> None:
        self.job: Job | None = None
        self.done = threading.Event()
        self.manager = manager
        before = len(line(manager))

        def run() -> None:
            try:
                self.job = manager.pull("q", timeout=TIMEOUT, group=group)
            except BunqueueError:
                pass
            finally:
                self.done.set()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        # or has its job already, where a loaded machine let the moment pass meanwhile
        until(lambda: self.done.is_set() or len(line(manager)) > before, "it stands in line")

    def takes(self, data: object = ...) -> Job:
        """It is woken in time, by the job with that data."""
        assert self.done.wait(TIMEOUT / 2), "the waiter sleeps on"
        assert self.job is not None
        assert data is ... or self.job.data == data
        return self.job

    @property
    def sleeps(self) -> bool:
        return not self.done.is_set()


def until_served(waiting: list[Waiting], n: int) -> None:
    until(lambda: sum(not w.sleeps for w in waiting) >= n, f"{n} of them have a job")


def line(manager: QueueManager) -> Any:
    state = manager._state.queues.get("q")
    return () if state is None else state.waiters.line


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


# -- whose jobs ------------------------------------------------------------------------------


def test_a_push_passes_over_whoever_cannot_take_the_job(manager: QueueManager) -> None:
    none, b, a = (Waiting(manager, choice) for choice in (None, "b", "a"))
    manager.push("q", "for a", group="a")
    a.takes("for a")
    assert none.sleeps
    assert b.sleeps
    manager.push("q", "for nobody in particular")
    none.takes("for nobody in particular")
    manager.push("q", "for b", group="b")
    b.takes("for b")


def test_whoever_takes_anything_is_first_come_first_served_among_the_eligible(
    manager: QueueManager,
) -> None:
    none, one, a, two = (Waiting(manager, choice) for choice in (None, ANY, "a", ANY))
    manager.push("q", 1, group="a")
    one.takes(1)
    manager.push("q", 2, group="a")
    a.takes(2)
    manager.push("q", 3, group="b")
    two.takes(3)
    assert none.sleeps
    manager.push("q", 4)
    none.takes(4)


def test_two_jobs_at_once_find_the_two_that_want_them(manager: QueueManager) -> None:
    """The first waiter is woken for the plain job, and must not be counted on for the other."""
    for _ in range(20):
        waiting = [Waiting(manager, choice) for choice in (ANY, None, ANY)]
        manager.push_batch("q", [JobSpec("j", 1), JobSpec("j", 2, group="a")])
        until_served(waiting, 2)
        manager.push("q", 3)
        for one in waiting:
            one.takes()
        assert sorted(w.takes().data for w in waiting) == [1, 2, 3]


def test_a_resumed_queue_wakes_for_the_jobs_of_a_group_too(
    manager: QueueManager, queue: Queue
) -> None:
    queue.pause()
    none, a = Waiting(manager, None), Waiting(manager, "a")
    manager.push("q", 1, group="a")
    assert none.sleeps
    assert a.sleeps
    queue.resume()
    a.takes(1)
    assert none.sleeps
    manager.push("q", 2)
    none.takes(2)


def test_no_blocked_pull_is_served_while_the_queue_is_paused(
    manager: QueueManager, queue: Queue
) -> None:
    """B097: four threads in pull, pause, four pushes: nothing before resume, all four after."""
    waiting = [Waiting(manager, choice) for choice in (ANY, "a", None, "a")]
    queue.pause()
    for group in (None, "a", "a", None):
        manager.push("q", group=group)
    assert not waiting[0].done.wait(SOON)
    assert all(w.sleeps for w in waiting)
    queue.resume()
    for one in waiting:
        one.takes()


def test_a_delayed_job_of_a_group_wakes_whoever_waits_for_it_behind_others(
    manager: QueueManager,
) -> None:
    none, a = Waiting(manager, None), Waiting(manager, "a")
    manager.push("q", 1, group="a", delay=0.05)
    a.takes(1)
    assert none.sleeps
    manager.push("q", 2)
    none.takes(2)


# -- capacity that comes back ----------------------------------------------------------------


def ack(manager: QueueManager, job: Job) -> None:
    assert manager.ack(job).applied


ENDS: dict[str, Callable[[QueueManager, Job], object]] = {
    "ack": ack,
    "fail": lambda manager, job: manager.fail(job, "x"),
    "fail for good": lambda manager, job: manager.fail(job, "x", unrecoverable=True),
    "release": lambda manager, job: manager.release(job, delay=60),
    "ack_batch": lambda manager, job: manager.ack_batch([(job, None, None)]),  # type: ignore[list-item]
    "expiry": lambda manager, job: manager.extend_lock(job, 0.02),
    "timeout": lambda manager, job: None,
}


@pytest.mark.parametrize("limited", ["queue", "group", "workers"])
@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_run_wakes_for_the_place_that_it_held(
    manager: QueueManager, queue: Queue, end: str, limited: str
) -> None:
    if limited == "queue":
        queue.limits.set_concurrency(1)
    elif limited == "group":
        queue.groups["a"].set_concurrency(1)
    else:
        manager.backend.bound_groups("q", "w", 1)
    timeout = 0.02 if end == "timeout" else None
    manager.push("q", "first", group="a", timeout=timeout, backoff=Backoff.fixed(60))
    first = manager.pull("q", lock_duration=TIMEOUT)
    assert first is not None
    manager.push("q", "second", group="a")
    other, mine = Waiting(manager, None), Waiting(manager, "a")
    ENDS[end](manager, first)
    mine.takes("second")
    assert other.sleeps
    manager.ack(mine.takes())
    manager.push("q", "plain")
    other.takes("plain")


def test_a_batch_of_plain_jobs_that_end_wakes_for_all_its_places(
    manager: QueueManager, queue: Queue
) -> None:
    queue.limits.set_concurrency(2)
    queue.add_bulk([("n", n) for n in range(4)])
    jobs = [manager.pull("q"), manager.pull("q")]
    waiting = [Waiting(manager), Waiting(manager)]
    manager.ack_batch([Ack(job) for job in jobs if job is not None])
    for waiter in waiting:
        assert waiter.takes() is not None


CHANGES: dict[str, tuple[Callable[[Queue], object], Callable[[Queue], object]]] = {
    "raise the queue's concurrency": (
        lambda q: q.limits.set_concurrency(1),
        lambda q: q.limits.set_concurrency(3),
    ),
    "end the queue's concurrency": (
        lambda q: q.limits.set_concurrency(1),
        lambda q: q.limits.set_concurrency(None),
    ),
    "raise the queue's rate": (
        lambda q: q.limits.set_rate_limit(1, per=3600),
        lambda q: q.limits.set_rate_limit(3, per=3600),
    ),
    "clear the queue's rate": (
        lambda q: q.limits.set_rate_limit(1, per=3600),
        lambda q: q.limits.clear_rate_limit(),
    ),
    "end the queue's cool-down": (
        lambda q: q.limits.cool_down(3600),
        lambda q: q.limits.cool_down(0),
    ),
    "shorten the queue's cool-down": (
        lambda q: q.limits.cool_down(3600),
        lambda q: q.limits.cool_down(0.03),
    ),
    "raise the group's concurrency": (
        lambda q: q.groups["a"].set_concurrency(1),
        lambda q: q.groups["a"].set_concurrency(3),
    ),
    "raise the group's rate": (
        lambda q: q.groups["a"].set_rate_limit(1, per=3600),
        lambda q: q.groups["a"].set_rate_limit(3, per=3600),
    ),
    "clear the group's rate": (
        lambda q: q.groups["a"].set_rate_limit(1, per=3600),
        lambda q: q.groups["a"].clear_rate_limit(),
    ),
    "resume the group": (lambda q: q.groups["a"].pause(), lambda q: q.groups["a"].resume()),
    "end the group's cool-down": (
        lambda q: q.groups["a"].cool_down(3600),
        lambda q: q.groups["a"].cool_down(0),
    ),
    "shorten the group's cool-down": (
        lambda q: q.groups["a"].cool_down(3600),
        lambda q: q.groups["a"].cool_down(0.03),
    ),
    "close the worker that bounds": (
        lambda q: q.manager.backend.bound_groups("q", "w", 1),
        lambda q: q.manager.backend.bound_groups("q", "w", None),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_lets_jobs_start_wakes_as_many_as_it_lets(
    manager: QueueManager, queue: Queue, change: str
) -> None:
    block, unblock = CHANGES[change]
    block(queue)
    queue.add_bulk([JobSpec("j", i, group="a") for i in range(3)])
    manager.pull("q", lock_duration=None)
    waiting = [Waiting(manager, choice) for choice in (None, "a", ANY)]
    unblock(queue)
    waiting[1].takes()
    waiting[2].takes()
    assert waiting[0].sleeps
    manager.push("q")
    if "concurrency" in change or "rate" in change:
        queue.limits.set_concurrency(None)
        queue.limits.clear_rate_limit()
    waiting[0].takes()


# -- time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", [(ANY,), ("a",), (None, "a"), (None, "b", ANY)])
@pytest.mark.parametrize("limited", ["queue", "group", "cool queue", "cool group", "ttl"])
@pytest.mark.parametrize("order", ["wait first", "push first"])
def test_a_refill_wakes_at_its_moment_whoever_can_be_served(
    manager: QueueManager, queue: Queue, choices: tuple[GroupChoice, ...], limited: str, order: str
) -> None:
    per = 0.06
    if limited == "queue":
        queue.limits.set_rate_limit(1, per)
    elif limited == "group":
        queue.groups["a"].set_rate_limit(1, per)
    elif limited == "ttl":
        queue.limits.set_rate_limit(1, per=3600, ttl=per)
    manager.push("q", "first", group="a")
    first = manager.pull("q")
    assert first is not None
    if limited == "cool queue":
        queue.limits.cool_down(per)
    elif limited == "cool group":
        queue.groups["a"].cool_down(per)
    opens = (queue.limits.status().opens_at or manager.now).timestamp()
    started = first.started_at
    assert started is not None
    earliest = max(opens, started.timestamp() + (per if limited == "group" else 0))
    if order == "push first":
        manager.push("q", "second", group="a")
    waiting = [Waiting(manager, choice) for choice in choices]
    if order == "wait first":
        manager.push("q", "second", group="a")
    job = waiting[-1].takes("second")
    assert job.started_at is not None
    assert job.started_at.timestamp() >= earliest - 0.0005
    assert all(w.sleeps for w in waiting[:-1])
    queue.limits.clear_rate_limit()
    queue.limits.cool_down(0)
    for one, group in zip(waiting[:-1], choices, strict=False):
        manager.push("q", group=None if group is ANY else group)
        one.takes()


def test_a_waiter_that_cannot_be_served_does_not_spin_over_what_time_has_opened(
    manager: QueueManager, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.groups["a"].cool_down(0.03)
    manager.push("q", "grouped", group="a")
    none = Waiting(manager, None)
    looks = 0
    clock = manager._state.clock
    wait = clock.wait

    def counted(lock: Any, timeout_ms: int | None) -> bool:
        nonlocal looks
        looks += 1
        return wait(lock, timeout_ms)

    monkeypatch.setattr(clock, "wait", counted)
    queue.limits.cool_down(0.06)
    assert not none.done.wait(SOON)
    assert looks < 20
    manager.push("q", "plain")
    none.takes("plain")


def test_a_moment_that_begins_to_matter_with_a_later_waiter_is_minded(
    manager: QueueManager, queue: Queue
) -> None:
    """The head wants no group, and had no reason to mind the refill."""
    none = Waiting(manager, None)
    queue.groups["a"].set_rate_limit(1, per=0.05)
    queue.add_bulk([JobSpec("j", i, group="a") for i in range(2)])
    assert manager.pull("q") is not None
    Waiting(manager, "a").takes(1)
    manager.push("q", "plain")
    none.takes("plain")


def test_the_head_that_finds_nothing_minds_the_next_moment(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes the job that it woke for, before it has the lock."""
    clock = manager._state.clock
    wait, stolen = clock.wait, []

    def robbed(lock: Any, timeout_ms: int | None) -> bool:
        came = wait(lock, timeout_ms)
        if not came and not stolen:
            stolen.append(manager.pull("q"))
        return came

    monkeypatch.setattr(clock, "wait", robbed)
    manager.push("q", 1, delay=0.05)
    manager.push("q", 2, delay=0.1)
    first, second = Waiting(manager), Waiting(manager)
    first.takes(2)
    assert [job.data for job in stolen] == [1]
    assert second.sleeps
    manager.push("q", 3)
    second.takes(3)


def test_ctrl_c_in_the_head_hands_its_timer_on(
    manager: QueueManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = manager._state.clock
    wait, strike = clock.wait, threading.Event()

    def interrupted(lock: Any, timeout_ms: int | None) -> bool:
        if threading.current_thread() is victim:
            assert strike.wait(TIMEOUT)
            raise KeyboardInterrupt
        return wait(lock, timeout_ms)

    def pull() -> None:
        with pytest.raises(KeyboardInterrupt):
            manager.pull("q", timeout=TIMEOUT)

    monkeypatch.setattr(clock, "wait", interrupted)
    manager.push("q", 1, delay=0.1)
    victim = threading.Thread(target=pull, daemon=True)
    victim.start()
    until(lambda: len(line(manager)) == 1, "the head stands in line")
    behind = Waiting(manager)
    strike.set()
    behind.takes(1)
    victim.join(TIMEOUT)


# -- many at once ----------------------------------------------------------------------------


def crowd(n: int, work: Callable[[], None]) -> None:
    """n threads do the work; what they raise fails the test."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT * 3)
        assert not thread.is_alive(), "a thread never ended"
    assert not problems, problems


def test_never_more_of_a_group_run_than_its_concurrency_with_8_threads(
    manager: QueueManager, queue: Queue
) -> None:
    """B020: limit 1, a lost lease and its late finisher among them; never two are claimed."""
    queue.groups["a"].set_concurrency(1)
    queue.groups["b"].set_concurrency(2)
    n = 60
    queue.add_bulk([JobSpec("j", i, group="ab"[i % 2], backoff=0.0) for i in range(n)])
    late = manager.pull("q", lock_duration=0.01, group="a")
    assert late is not None
    running: Counter[str | None] = Counter()
    guard = threading.Lock()
    done: Counter[str] = Counter()
    worst: Counter[str | None] = Counter()

    def work() -> None:
        while sum(done.values()) < n - 1:
            job = manager.pull("q", timeout=0.2)
            if job is None or job.id == late.id:
                if job is not None:
                    manager.ack(job)
                continue
            with guard:
                running[job.group] += 1
                worst[job.group] = max(worst[job.group], running[job.group])
            threading.Event().wait(0.001)
            with guard:
                running[job.group] -= 1
                done[job.id] += 1
            manager.ack(job)
            manager.ack(late)

    crowd(8, work)
    assert len(done) == n - 1
    assert set(done.values()) == {1}
    assert worst["a"] == 1
    assert worst["b"] <= 2
    assert (queue.groups["a"].active(), queue.groups["b"].active()) == (0, 0)
    assert queue.counts().completed == n


@pytest.mark.parametrize("group", [None, "a"])
def test_four_threads_never_overfill_a_window(
    manager: QueueManager, queue: Queue, group: str | None
) -> None:
    """B119: 10 in a window, 4 threads; the window slid over the stamped starts."""
    most, per, n = 10, 0.05, 80
    manager.set_rate_limit("q", most, per, group=group)
    queue.add_bulk([JobSpec("j", i, group=group) for i in range(n)])
    starts: list[float] = []
    guard = threading.Lock()

    def work() -> None:
        while len(starts) < n:
            job = manager.pull("q", timeout=0.3)
            if job is not None:
                assert job.started_at is not None
                with guard:
                    starts.append(job.started_at.timestamp())
                manager.ack(job)

    crowd(4, work)
    moments = sorted(round(start * 1000) for start in starts)
    assert len(moments) == n
    for at in moments:
        assert sum(1 for other in moments if at <= other < at + per * 1000) <= most


def test_limited_jobs_all_run_in_order_with_four_threads(
    manager: QueueManager, queue: Queue
) -> None:
    """B121: 2 in a window, 100 numbered jobs; a lock around the pull tells the order."""
    queue.limits.set_rate_limit(2, per=0.005)
    queue.add_bulk([JobSpec("j", i) for i in range(100)])
    seen: list[int] = []
    taking = threading.Lock()

    def work() -> None:
        while len(seen) < 100:
            with taking:
                job = manager.pull("q", timeout=0.1)
                if job is not None:
                    seen.append(job.data)
            if job is not None:
                manager.ack(job)

    crowd(4, work)
    assert seen == list(range(100))


# -- workers ---------------------------------------------------------------------------------


def test_a_worker_keeps_its_own_rate_limit(queue: Queue) -> None:
    most, per, n = 3, 0.03, 12
    started: list[int] = []
    with Worker(
        queue,
        lambda job: started.append(round(job.started_at.timestamp() * 1000)),
        concurrency=4,
        rate_limit=RateLimit(most, per),
    ):
        queue.add_bulk([("j", i) for i in range(n)])
        queue.wait_until_empty(timeout=TIMEOUT)
    started.sort()
    assert len(started) == n
    for at in started:
        assert sum(1 for other in started if at <= other < at + per * 1000) <= most


def test_a_worker_that_waits_for_its_rate_closes_at_once(queue: Queue) -> None:
    """The stop bell: no handler is under way, and nobody waits the hour."""
    worker = Worker(queue, lambda job: None, concurrency=3, rate_limit=RateLimit(1, 3600))
    with worker:
        jobs = queue.add_bulk([("j", i) for i in range(4)])
        jobs[0].result(timeout=TIMEOUT)
        began = time.monotonic()
        assert worker.close()
    assert time.monotonic() - began < TIMEOUT / 2
    assert (queue.counts().waiting, queue.counts().active) == (3, 0)
    assert worker.close(), "closing twice is no error"


def test_a_worker_with_a_rate_limit_takes_no_job_before_its_time(queue: Queue) -> None:
    with Worker(queue, lambda job: None, concurrency=2, rate_limit=RateLimit(1, 3600)):
        jobs = queue.add_bulk([("j", i) for i in range(3)])
        jobs[0].result(timeout=TIMEOUT)
        assert not threading.Event().wait(0.05)
        counts = queue.counts()
        assert (counts.waiting, counts.active) == (2, 0), "what cannot run is left for others"


def test_workers_keep_to_a_group_concurrency_and_take_it_along(
    manager: QueueManager, queue: Queue
) -> None:
    guard = threading.Lock()
    running: Counter[str | None] = Counter()
    worst: Counter[str | None] = Counter()

    def handler(job: Job) -> None:
        with guard:
            running[job.group] += 1
            worst[job.group] = max(worst[job.group], running[job.group])
        threading.Event().wait(0.002)
        with guard:
            running[job.group] -= 1

    queue.groups["own"].set_concurrency(3)
    # two of one name: the end of one must not end what the other asks for
    one = Worker(queue, handler, concurrency=4, group_concurrency=1, name="same")
    two = Worker(queue, handler, concurrency=4, group_concurrency=1, name="same")
    with one, two:
        one.close()
        queue.add_bulk([JobSpec("j", group=group) for group in ("a", "b", "own") * 12])
        queue.wait_until_empty(timeout=TIMEOUT)
        assert worst["a"] == worst["b"] == 1
        assert worst["own"] <= 3
    groups = manager._state.queues["q"].groups
    assert groups is not None
    assert groups.defaults == {}
    assert list(queue.groups) == ["own"]


def test_a_closed_manager_does_not_break_the_close_of_its_workers() -> None:
    manager = QueueManager()
    worker = Worker(
        Queue("q", manager), lambda job: None, group_concurrency=1, rate_limit=RateLimit(1)
    )
    worker.start()
    assert manager.close()
    assert worker.is_closed
    assert worker.close()
