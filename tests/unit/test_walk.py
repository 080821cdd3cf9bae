"""iter_jobs under change, counts_per_priority, and what reading costs in a long queue."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from types import FrameType
from typing import Any

import pytest

import bunqueue_py
from bunqueue_py import (
    Backoff,
    Job,
    JobSpec,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.ops.walk import PAGE
from bunqueue_py.testing import VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    config = ManagerConfig(shards=1)
    with QueueManager(clock=clock, background=False, config=config) as opened:
        yield opened
        if not opened._state.shards.shards[0].gate:
            check(opened._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("mail", manager)


FILLS: dict[str, Callable[[Queue, Any, int], list[JobSpec]]] = {
    "waiting": lambda queue, manager, n: [JobSpec("job", i) for i in range(n)],
    "low": lambda queue, manager, n: [JobSpec("job", i, priority=-1 - i % 5) for i in range(n)],
    "prioritized": lambda queue, manager, n: [
        JobSpec("j", i, priority=1 + i % 5) for i in range(n)
    ],
    "lifo": lambda queue, manager, n: [JobSpec("job", i, lifo=True) for i in range(n)],
    "delayed": lambda queue, manager, n: [
        JobSpec("job", i, delay=100 + i % 7, priority=i % 3) for i in range(n)
    ],
    "on the wall clock": lambda queue, manager, n: [
        JobSpec("job", i, run_at=START + timedelta(days=1 + i % 3)) for i in range(n)
    ],
}


def fill(queue: Queue, n: int, kinds: Any = FILLS) -> list[Job]:
    manager: Any = queue.manager
    return [job for kind in kinds for job in queue.add_bulk(FILLS[kind](queue, manager, n))]


def finish(queue: Queue, n: int) -> list[Job]:
    """That many completed, failed and active jobs each."""
    manager: Any = queue.manager
    if not n:
        return []
    queue.add_bulk([JobSpec("job", i, priority=1_000_000, attempts=1) for i in range(3 * n)])
    held = manager.pull_batch(queue, 3 * n)
    for job in held[:n]:
        manager.ack(job)
    for job in held[n : 2 * n]:
        manager.fail(job, "no")
    return held  # type: ignore[no-any-return]


def ids(jobs: Any) -> list[str]:
    return sorted(job.id for job in jobs)


@pytest.mark.parametrize("n", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 10])
def test_every_job_comes_once(queue: Queue, n: int) -> None:
    jobs = [*finish(queue, n), *fill(queue, n)]
    assert ids(queue.iter_jobs()) == ids(jobs)


@pytest.mark.parametrize(
    "states",
    ["waiting", "prioritized", "delayed", "active", "completed", "failed", ("failed", "waiting")],
)
def test_only_the_states_asked_for_come(clock: VirtualClock, queue: Queue, states: Any) -> None:
    finish(queue, PAGE + 3)
    fill(queue, PAGE + 3)
    clock.advance(seconds=103)  # some of what was delayed is due
    assert ids(queue.iter_jobs(states)) == ids(queue.get_jobs(states, limit=100_000))


def test_a_walk_begins_with_its_first_job_and_ends_there(queue: Queue) -> None:
    fill(queue, 3)
    walk = queue.iter_jobs()
    late = queue.add("before the first")
    first = next(walk)
    too_late = queue.add("after the first", priority=5)
    rest = list(walk)
    assert late in rest
    assert too_late not in [first, *rest]


@pytest.mark.parametrize("states", ["paused", "nothing", 5, ["waiting", None]])
def test_a_bad_state_is_refused_at_the_call(queue: Queue, states: Any) -> None:
    with pytest.raises((ValidationError, TypeError)):
        queue.iter_jobs(states)


def test_a_walk_ends_with_the_manager(manager: QueueManager, queue: Queue) -> None:
    fill(queue, PAGE)
    walk = queue.iter_jobs()
    next(walk)
    manager.close()
    with pytest.raises(ManagerClosedError):
        list(walk)
    with pytest.raises(ManagerClosedError):
        queue.iter_jobs()


def retry_and_finish(manager: QueueManager, queue: Queue, job: Job) -> None:
    queue.retry(job)
    queue.change_priority(job, 1_000_000)
    held = manager.pull("mail")
    assert held == job
    if job.state == "completed":
        manager.ack(held)
    else:
        manager.fail(held, "no", unrecoverable=True)


def release_and_pull(manager: QueueManager, queue: Queue, job: Job) -> None:
    delivery = manager._state.index[job.id].delivery
    assert delivery is not None
    manager.release(job.id, token=delivery.token)
    if job._state == "active" and len(queue) % 2:
        queue.change_priority(job, 1_000_000)
        manager.pull("mail")


def pull_and_release(manager: QueueManager, queue: Queue, job: Job) -> None:
    queue.change_priority(job, 1_000_000)
    queue.promote(job)
    held = manager.pull("mail")
    assert held == job
    manager.release(held)
    queue.change_priority(job, 5)


def lose_and_ack_late(manager: QueueManager, queue: Queue, job: Job) -> None:
    queue.change_priority(job, 1_000_000)
    queue.promote(job)
    held = manager.pull("mail", lock_duration=0.001)
    assert held == job
    manager._state.clock.advance(milliseconds=1)  # type: ignore[attr-defined]
    manager.run_pending()
    manager.ack(held)


CHANGES: dict[str, tuple[tuple[str, ...], Callable[[QueueManager, Queue, Job], Any]]] = {
    "retry": (("completed", "failed"), lambda m, q, job: q.retry(job)),
    "retry and finish": (("completed", "failed"), retry_and_finish),
    "release": (("active",), release_and_pull),
    "promote": (("delayed", "waiting", "prioritized"), lambda m, q, job: q.promote(job)),
    "up": (("delayed", "waiting", "prioritized"), lambda m, q, job: q.change_priority(job, 9)),
    "down": (("delayed", "waiting", "prioritized"), lambda m, q, job: q.change_priority(job, -9)),
    "later": (("delayed", "waiting", "prioritized"), lambda m, q, job: q.change_delay(job, 10**6)),
    "now": (("delayed",), lambda m, q, job: q.change_delay(job, 0)),
    "pull and release": (("delayed", "waiting", "prioritized"), pull_and_release),
    "lose and ack late": (("delayed", "waiting", "prioritized"), lose_and_ack_late),
    "discard": (("delayed", "waiting", "prioritized"), lambda m, q, job: q.discard(job)),
    "remove": (("delayed", "waiting", "prioritized", "failed"), lambda m, q, job: q.remove(job)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_job_that_moves_when_it_has_come_does_not_come_again(
    manager: QueueManager, queue: Queue, change: str
) -> None:
    """And those that stay where they are come once, whatever the others do."""
    states, act = CHANGES[change]
    finish(queue, PAGE // 2)
    fill(queue, PAGE // 2)
    seen: Counter[str] = Counter()
    moved: set[str] = set()
    everybody = set(ids(queue.get_jobs(limit=100_000)))
    for n, job in enumerate(queue.iter_jobs()):
        seen[job.id] += 1
        if n % 3 == 0 and job.state in states:
            moved.add(job.id)
            act(manager, queue, job)
    assert len(moved) > PAGE // 8
    assert set(seen) == everybody, "those that moved had come before"
    assert max(seen.values()) == 1


@pytest.mark.parametrize("change", ["promote", "up", "later", "discard", "remove"])
def test_a_job_that_moves_before_it_has_come_comes_at_most_once(
    manager: QueueManager, queue: Queue, change: str
) -> None:
    states, act = CHANGES[change]
    fill(queue, PAGE)
    walk = queue.iter_jobs()
    seen = Counter(job.id for job in islice(walk, PAGE + 10))
    moved = set()
    for job in queue.get_jobs(limit=100_000)[::2]:
        if job.state in states and job.id not in seen:
            act(manager, queue, job)
            moved.add(job.id)
    stayed = set(ids(queue.get_jobs(limit=100_000))) - moved
    seen.update(job.id for job in walk)
    assert max(seen.values()) == 1
    assert stayed <= set(seen)


def test_what_comes_due_and_is_moved_by_a_pull_comes_once(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    """Time alone made these jobs ready before the walk began; a pull moves them meanwhile."""
    jobs = queue.add_bulk([JobSpec("job", n, delay=1 + n % 3) for n in range(3 * PAGE)])
    clock.advance(seconds=10)
    walk = queue.iter_jobs()
    seen = [next(walk).id]
    held = manager.pull_batch("mail", 5)
    seen += [job.id for job in walk]
    assert len(seen) == len(set(seen))
    assert set(ids(jobs)) - set(ids(held)) <= set(seen)


def test_a_retried_run_comes_once(clock: VirtualClock, manager: QueueManager, queue: Queue) -> None:
    jobs = queue.add_bulk([JobSpec("j", n, backoff=Backoff.fixed(0)) for n in range(2 * PAGE)])
    held = manager.pull_batch("mail", PAGE + 20)
    seen: Counter[str] = Counter()
    for n, job in enumerate(queue.iter_jobs()):
        seen[job.id] += 1
        if n < len(held):
            manager.fail(held[n], "again")
    assert max(seen.values()) == 1
    assert set(ids(jobs)) - set(ids(held)) <= set(seen)


def test_a_lane_full_of_gaps_is_walked_through(manager: QueueManager, queue: Queue) -> None:
    jobs = fill(queue, 4 * PAGE, ["waiting"])
    gone = {job.id for n, job in enumerate(jobs) if n % 6 == 0 or 300 <= n < 420}
    walk = queue.iter_jobs()
    seen = [next(walk).id]
    for job_id in gone - set(seen):
        queue.change_priority(job_id, 0, lifo=True)
    seen += [job.id for job in walk]
    assert len(seen) == len(set(seen))
    assert set(ids(jobs)) - gone <= set(seen)


# -- counts_per_priority -------------------------------------------------------------------------


def test_what_waits_is_counted_by_priority_highest_first(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    for priority in (0, 0, 3, -5, 1_000_000):
        queue.add("job", priority=priority)
    queue.add("job", priority=3, delay=5)
    queue.add("job", priority=-6, run_at=START + timedelta(seconds=7))
    assert list(queue.counts_per_priority().items()) == [
        (1_000_000, 1),
        (3, 2),
        (0, 2),
        (-5, 1),
        (-6, 1),
    ]
    queue.pause()
    clock.advance(seconds=6)
    assert queue.counts_per_priority()[3] == 2
    queue.resume()
    assert len(manager.pull_batch("mail", 5)) == 5
    assert queue.counts_per_priority() == {-5: 1, -6: 1}
    queue.drain()
    assert queue.counts_per_priority() == {}


# -- cost ----------------------------------------------------------------------------------------

PACKAGE = bunqueue_py.__path__[0]


def steps(call: Callable[[], Any]) -> int:
    """How many lines of the package, and of what it builds on, the call runs; each round of a
    generator is one at least."""
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) and "sortedcontainers" not in name:
            return None
        count += event == "call"
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


KINDS = ("waiting", "low", "prioritized", "delayed", "due")
READS: dict[str, Callable[[Queue], Any]] = {
    "counts": lambda queue: queue.counts(),
    "counts_per_priority": lambda queue: queue.counts_per_priority(),
    "the first page": lambda queue: queue.get_jobs(limit=10),
    "the first page, newest first": lambda queue: queue.get_jobs(limit=10, newest_first=True),
    "the first waiting": lambda queue: queue.get_jobs("waiting", limit=10),
    "the first delayed": lambda queue: queue.get_jobs("delayed", limit=10),
    "the first prioritized": lambda queue: queue.get_jobs("prioritized", limit=10),
    "a change of priority": lambda queue: queue.change_priority(queue.get_jobs(limit=1)[0], 77),
    "clean": lambda queue: queue.clean(0, state="waiting", limit=10),
}


def long_queue(clock: VirtualClock, manager: QueueManager, kind: str, n: int) -> Queue:
    """A queue of one kind of job alone, a quarter of which has come and gone."""
    queue = Queue(f"{kind}-{n}", manager)
    fill(queue, n, ["delayed" if kind == "due" else kind])
    if kind == "due":
        clock.advance(seconds=200)
    if kind != "delayed":
        for job in manager.pull_batch(queue, n // 4):
            manager.ack(job)
        completed = manager._state.queues[queue.name].completed
        completed.pop_oldest(completed.first(n))
    return queue


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_read_takes_no_more_steps_in_a_long_queue(clock: VirtualClock, kind: str) -> None:
    """32 times the jobs, not twice the steps: neither those passed over (of another priority,
    delayed, gone) nor those behind are looked at."""
    config = ManagerConfig(shards=1)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        short = long_queue(clock, manager, kind, 500)
        long = long_queue(clock, manager, kind, 16_000)
        dear = []
        for read, call in READS.items():
            for queue in (short, long):
                call(queue)  # indexes are built
            few = steps(lambda call=call: call(short))  # type: ignore[misc]
            many = steps(lambda call=call: call(long))  # type: ignore[misc]
            if many > 1.8 * few + 60:
                dear.append(f"{read}: {few} steps with 500 jobs, {many} with 16,000")
        assert not dear, "\n".join(dear)


# whether the i-th of n jobs is due, and nobody has moved it
AMID: dict[str, Callable[[int, int], bool]] = {
    "all are due": lambda i, n: True,
    "the first half is due": lambda i, n: i < n // 2,
    "the second half is due": lambda i, n: i >= n // 2,
    "every other one is due": lambda i, n: bool(i % 2),
    "one in twenty is delayed": lambda i, n: bool(i % 20),
    "both come in stretches": lambda i, n: bool(i // 37 % 2),
    "a few are delayed, far apart": lambda i, n: i % (n // 16) != n // 32,
    "the last ones are delayed": lambda i, n: i < n - 10,
}


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("amid", AMID)
@pytest.mark.slow
def test_a_page_of_delayed_jobs_steps_over_those_that_are_due(
    clock: VirtualClock, manager: QueueManager, amid: str, newest_first: bool
) -> None:
    """Nobody pulls, so nobody has moved them. What lies between two delayed jobs takes a number of
    steps that grows with its logarithm."""
    taken = {}
    for n in (250, 4000):
        queue = Queue(f"q{n}", manager)
        due = [AMID[amid](i, n) for i in range(n)]
        queue.add_bulk([JobSpec("job", i, delay=1 if due[i] else 999) for i in range(n)])
        clock.advance(seconds=10)
        page: list[Job] = []

        def read(queue: Queue = queue, page: list[Job] = page) -> None:
            page += queue.get_jobs("delayed", limit=10, newest_first=newest_first)

        taken[n] = steps(read)
        waiting = [i for i in range(n) if not due[i]]
        if newest_first:
            waiting.reverse()
        assert [job.data for job in page] == waiting[:10]
    assert taken[4000] <= 1.8 * taken[250]


def test_a_page_of_a_walk_takes_no_more_steps_in_a_long_queue(
    clock: VirtualClock, manager: QueueManager
) -> None:
    pages = {}
    for n in (2000, 16_000):
        queue = Queue(f"q{n}", manager)
        fill(queue, n // 4, ["waiting", "low", "prioritized", "delayed"])
        walk = queue.iter_jobs()
        pages[n] = [steps(lambda walk=walk: list(islice(walk, PAGE))) for _ in range(n // PAGE)]  # type: ignore[misc]
    assert max(pages[16_000]) <= 1.5 * max(pages[2000])


def test_a_page_of_a_walk_takes_no_more_steps_among_many_groups(
    manager: QueueManager, queue: Queue
) -> None:
    """Neither among many with ready jobs, nor past many with none."""
    pages = {}
    for n in (2 * PAGE, 12 * PAGE):
        many = Queue(f"q{n}", manager)
        many.add_bulk([JobSpec("job", i, group=f"g{i}", delay=100 * (i % 2)) for i in range(n)])
        many.add_bulk([JobSpec("job", i, group=f"last{i}") for i in range(PAGE)])
        walk = many.iter_jobs(["waiting"])
        pages[n] = [steps(lambda walk=walk: next(walk))]  # type: ignore[misc]
        pages[n] += [
            steps(lambda walk=walk: list(islice(walk, PAGE // 2))) for _ in range(n // PAGE)
        ]  # type: ignore[misc]
        assert len(list(walk)) == n // 2 + PAGE - 1 - PAGE // 2 * (n // PAGE)
    assert max(pages[12 * PAGE]) <= 1.3 * max(pages[2 * PAGE])


def test_a_walk_goes_on_where_it_was_when_its_group_is_gone(
    manager: QueueManager, queue: Queue
) -> None:
    jobs = queue.add_bulk([JobSpec("job", i, group=f"g{i}") for i in range(3 * PAGE)])
    walk = queue.iter_jobs()
    seen = [next(walk) for _ in range(PAGE)]
    for job in jobs[PAGE - 5 : PAGE + 5]:
        queue.remove(job)
    again = queue.add_bulk([JobSpec("again", group=f"g{i}") for i in (0, PAGE, PAGE + 1)])
    seen += walk
    assert ids(seen) == ids([*jobs[:PAGE], *jobs[PAGE + 5 :]])
    assert not set(ids(again)) & set(ids(seen))


def test_ten_thousand_groups_that_came_and_went_leave_no_memory_behind(
    manager: QueueManager, queue: Queue
) -> None:
    for i in range(10_000):
        queue.remove(queue.add("job", group=f"g{i}"))
    groups = manager._state.queues["mail"].groups
    assert groups is not None
    assert (len(groups.by_name), len(groups.by_number)) == (0, 0)
    assert len(groups.numbered) < 100
