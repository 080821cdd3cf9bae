"""Limits of a queue and of a group: how many at once, how many in a window, not at all for a
while. On a clock that stands still."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import (
    JobSpec,
    Queue,
    QueueManager,
    RateLimit,
    ValidationError,
    Worker,
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


Part = Callable[[Queue], Any]
PARTS = pytest.mark.parametrize(
    ("part", "group"),
    [(lambda queue: queue.limits, None), (lambda queue: queue.groups["a"], "a")],
    ids=["queue", "group"],
)


def fill(queue: Queue, n: int, group: str | None = None) -> None:
    queue.add_bulk([JobSpec("j", i, group=group) for i in range(n)])


def take(queue: Queue, n: int = 1_000_000) -> list[Any]:
    found: list[Any] = []
    while len(found) < n and (job := queue.manager.pull("q", lock_duration=None)) is not None:
        found.append(job)
    return found


# -- concurrency -----------------------------------------------------------------------------


@PARTS
def test_no_more_are_active_than_the_limit_allows(
    queue: Queue, part: Part, group: str | None
) -> None:
    fill(queue, 6, group)
    part(queue).set_concurrency(2)
    first = take(queue)
    assert len(first) == 2
    assert queue.manager.pull_batch("q", 10) == []
    assert queue.manager.ack(first[0]).applied
    assert len(queue.manager.pull_batch("q", 10)) == 1


@PARTS
def test_a_limit_set_late_counts_what_already_runs(
    queue: Queue, part: Part, group: str | None
) -> None:
    fill(queue, 8, group)
    running = take(queue, 4)
    part(queue).set_concurrency(3)
    assert take(queue) == []
    queue.manager.ack(running.pop())
    assert take(queue) == []
    queue.manager.ack(running.pop())
    assert len(take(queue)) == 1
    part(queue).set_concurrency(5)
    assert len(take(queue)) == 2
    part(queue).set_concurrency(None)
    assert len(take(queue)) == 1


@PARTS
@pytest.mark.parametrize("end", ["ack", "fail", "fail for good", "release", "expiry", "timeout"])
def test_every_end_of_a_run_gives_its_place_back_once(
    queue: Queue, clock: VirtualClock, part: Part, group: str | None, end: str
) -> None:
    """B020: whoever comes twice does not give it back twice."""
    manager = queue.manager
    part(queue).set_concurrency(1)
    queue.add("j", group=group, timeout=3 if end == "timeout" else None)
    fill(queue, 3, group)
    job = manager.pull("q", lock_duration=5)
    assert job is not None
    assert take(queue) == []
    if end == "ack":
        manager.ack(job)
    elif end == "fail":
        manager.fail(job, "broken")
    elif end == "fail for good":
        manager.fail(job, "broken", unrecoverable=True)
    elif end == "release":
        manager.release(job, delay=60)
    else:
        clock.advance(seconds=6)
        manager.run_pending()
    assert len(take(queue)) == 1
    for late in (
        lambda: manager.ack(job),
        lambda: manager.fail(job, "late"),
        lambda: manager.release(job),
    ):
        late()
        check(manager._state)  # type: ignore[attr-defined]
        assert take(queue) == []
    assert queue.counts().active == 1


def test_a_late_finisher_does_not_let_two_of_a_group_run(queue: Queue, clock: VirtualClock) -> None:
    """B020, B122: A's lease expires, B starts, A comes back; at most one is ever claimed."""
    manager = queue.manager
    queue.groups["a"].set_concurrency(1)
    fill(queue, 6, "a")
    late = manager.pull("q", lock_duration=5)
    assert late is not None
    clock.advance(seconds=6)
    manager.run_pending()
    running = manager.pull("q")
    assert running is not None
    assert running != late
    assert manager.pull("q") is None
    assert manager.ack(late).applied, "the work was done, and is not done again"
    assert manager.pull("q") is None
    assert queue.groups["a"].active() == 1
    manager.ack(running)
    done = 2
    while (job := manager.pull("q")) is not None:
        assert queue.groups["a"].active() == 1
        assert manager.pull("q") is None
        manager.ack(job)
        done += 1
    assert done == 6
    assert queue.groups["a"].active() == 0


def test_limits_of_groups_are_independent_of_each_other(queue: Queue) -> None:
    """B124: per key."""
    for group in "abc":
        fill(queue, 3, group)
    queue.groups["a"].set_concurrency(1)
    queue.groups["b"].set_rate_limit(2, per=60)
    names = [job.group for job in take(queue)]
    assert sorted(names) == ["a", "b", "b", "c", "c", "c"]


def test_the_limit_of_the_queue_holds_over_all_groups(queue: Queue) -> None:
    for group in ("a", "b", None):
        fill(queue, 2, group)
    queue.limits.set_concurrency(3)
    assert [job.group for job in take(queue)] == [None, None, "a"]


def test_a_queue_that_is_obliterated_has_all_its_places_again(queue: Queue) -> None:
    queue.limits.set_concurrency(2)
    queue.groups["a"].set_concurrency(1)
    fill(queue, 3, "a")
    fill(queue, 3)
    assert len(take(queue)) == 2
    queue.obliterate(force=True)
    fill(queue, 3, "a")
    assert len(take(queue)) == 1
    fill(queue, 3)
    assert len(take(queue)) == 1


# -- rate ------------------------------------------------------------------------------------


@PARTS
def test_no_window_holds_more_starts_than_the_limit(
    queue: Queue, clock: VirtualClock, part: Part, group: str | None
) -> None:
    """B119: 10 in a second, 200 jobs; a window slid over the starts."""
    part(queue).set_rate_limit(10, per=1)
    fill(queue, 200, group)
    starts: list[int] = []
    while len(starts) < 200:
        starts += [clock.timeline_ms()] * len(take(queue, 7))
        clock.advance(milliseconds=37)
    for start in starts:
        assert sum(1 for other in starts if start <= other < start + 1000) <= 10
    # and no slower than it must be
    assert starts[-1] - starts[0] <= 20 * 1_040


@PARTS
def test_jobs_over_the_limit_are_neither_dropped_nor_reordered(
    queue: Queue, clock: VirtualClock, part: Part, group: str | None
) -> None:
    """B121: 2 per second, 100 numbered jobs, paused half way."""
    part(queue).set_rate_limit(2, per=1)
    fill(queue, 100, group)
    seen: list[int] = []
    for second in range(60):
        if second == 20:
            queue.pause()
            assert take(queue) == []
        if second == 30:
            queue.resume()
        seen += [job.data for job in take(queue)]
        clock.advance(seconds=1)
    assert seen == list(range(100))


@PARTS
def test_the_refill_comes_at_its_exact_moment(
    queue: Queue, clock: VirtualClock, part: Part, group: str | None
) -> None:
    part(queue).set_rate_limit(2, per=10)
    fill(queue, 9, group)
    assert len(take(queue, 1)) == 1
    clock.advance(seconds=4)
    assert len(take(queue)) == 1
    clock.advance(seconds=5.999)
    assert take(queue) == []
    clock.advance(milliseconds=1)
    assert len(take(queue)) == 1
    clock.advance(seconds=3.999)
    assert take(queue) == []
    clock.advance(milliseconds=1)
    assert len(take(queue)) == 1


@PARTS
def test_a_start_counts_even_if_the_job_is_given_back(
    queue: Queue, part: Part, group: str | None
) -> None:
    part(queue).set_rate_limit(1, per=10)
    fill(queue, 1, group)
    (job,) = take(queue)
    assert queue.manager.release(job, token=job.token)
    assert take(queue) == []


@PARTS
def test_a_new_limit_takes_over_what_the_old_one_let_start(
    queue: Queue, clock: VirtualClock, part: Part, group: str | None
) -> None:
    part(queue).set_rate_limit(5, per=10)
    fill(queue, 20, group)
    assert len(take(queue)) == 5
    clock.advance(seconds=2)
    part(queue).set_rate_limit(2, per=10)
    clock.advance(seconds=7.999)
    assert take(queue) == []
    clock.advance(milliseconds=1)
    assert len(take(queue)) == 2
    part(queue).set_rate_limit(3, per=10)
    assert len(take(queue)) == 1
    part(queue).clear_rate_limit()
    assert len(take(queue)) == 12


@pytest.mark.parametrize("looks", [False, True])
@PARTS
def test_a_new_limit_counts_the_same_whether_or_not_somebody_has_looked_before(
    queue: Queue, clock: VirtualClock, part: Part, group: str | None, looks: bool
) -> None:
    part(queue).set_rate_limit(1, per=1)
    fill(queue, 3, group)
    assert len(take(queue)) == 1
    clock.advance(seconds=2)
    if looks:
        part(queue).set_concurrency(None)
        queue.limits.status()
    part(queue).set_rate_limit(1, per=60)
    assert len(take(queue)) == 1


@pytest.mark.parametrize("looks", [False, True])
def test_a_limit_whose_time_is_over_leaves_nothing_to_the_next_one(
    queue: Queue, clock: VirtualClock, looks: bool
) -> None:
    queue.limits.set_rate_limit(1, per=60, ttl=1)
    fill(queue, 2)
    assert len(take(queue)) == 1
    clock.advance(seconds=2)
    if looks:
        queue.limits.status()
    queue.limits.set_rate_limit(1, per=60)
    assert len(take(queue)) == 1


def test_a_limit_with_a_ttl_ends_by_itself(queue: Queue, clock: VirtualClock) -> None:
    queue.limits.set_rate_limit(1, per=60, ttl=5)
    fill(queue, 4)
    assert len(take(queue, 4)) == 1
    assert queue.limits.status().rate_limit_ends_at == clock.now + timedelta(seconds=5)
    assert queue.limits.status().opens_at == clock.now + timedelta(seconds=5)
    clock.advance(seconds=4.999)
    assert take(queue) == []
    clock.advance(milliseconds=1)
    assert len(take(queue)) == 3
    status = queue.limits.status()
    assert (status.rate_limit, status.rate_limit_ends_at, status.used) == (None, None, 0)


def test_a_limit_set_anew_without_a_ttl_stays(queue: Queue, clock: VirtualClock) -> None:
    queue.limits.set_rate_limit(1, per=60, ttl=5)
    queue.limits.set_rate_limit(1, per=60)
    fill(queue, 2)
    assert len(take(queue)) == 1
    clock.advance(seconds=6)
    assert take(queue) == []


# -- cool-down -------------------------------------------------------------------------------


@PARTS
def test_nothing_starts_while_it_cools_down(
    queue: Queue, clock: VirtualClock, part: Part, group: str | None
) -> None:
    fill(queue, 3, group)
    part(queue).cool_down(timedelta(seconds=5))
    assert take(queue) == []
    clock.advance(seconds=4.999)
    assert take(queue) == []
    clock.advance(milliseconds=1)
    assert len(take(queue, 1)) == 1
    part(queue).cool_down(5)
    part(queue).cool_down(0)
    assert len(take(queue, 1)) == 1
    part(queue).cool_down(9)
    part(queue).cool_down(2)
    clock.advance(seconds=2)
    assert len(take(queue)) == 1


def test_a_cool_down_and_a_window_open_together_at_the_later_moment(
    queue: Queue, clock: VirtualClock
) -> None:
    fill(queue, 3)
    queue.limits.set_rate_limit(1, per=10)
    take(queue)
    queue.limits.cool_down(3)
    assert queue.limits.status().opens_at == clock.now + timedelta(seconds=10)
    clock.advance(seconds=9)
    queue.limits.cool_down(3)
    assert queue.limits.status().opens_at == clock.now + timedelta(seconds=3)
    clock.advance(seconds=2)
    assert take(queue) == []
    clock.advance(seconds=1)
    assert len(take(queue)) == 1


# -- status ----------------------------------------------------------------------------------


def test_the_status_of_a_queue_without_limits_says_so(queue: Queue) -> None:
    fill(queue, 2)
    take(queue, 1)
    status = queue.limits.status()
    assert (status.concurrency, status.active, status.rate_limit) == (None, 1, None)
    assert (status.used, status.cooling_until, status.opens_at) == (0, None, None)


def test_the_status_says_what_limits_a_queue_and_until_when(
    queue: Queue, clock: VirtualClock
) -> None:
    queue.limits.set_concurrency(7)
    queue.limits.set_rate_limit(3, per=2.5)
    fill(queue, 9)
    assert len(take(queue)) == 3
    status = queue.limits.status()
    assert (status.concurrency, status.active, status.used) == (7, 3, 3)
    assert status.rate_limit == RateLimit(3, 2.5)
    assert status.rate_limit_ends_at is None
    assert status.opens_at == clock.now + timedelta(seconds=2.5)
    clock.advance(seconds=2.5)
    assert (queue.limits.status().used, queue.limits.status().opens_at) == (0, None)
    queue.limits.cool_down(4)
    assert queue.limits.status().cooling_until == clock.now + timedelta(seconds=4)
    clock.advance(seconds=4)
    assert queue.limits.status().cooling_until is None


def test_a_queue_whose_limits_have_passed_is_a_plain_one_again(
    queue: Queue, clock: VirtualClock
) -> None:
    fill(queue, 9)
    queue.limits.cool_down(5)
    queue.manager.pull("q")
    clock.advance(seconds=5)
    handle = queue.manager.backend.wait_handle()
    assert len(queue.manager.backend.claim("q", 1, 30_000, "w", handle)) == 1
    claimed = queue.manager.backend.claim("q", 5, 30_000, "w", handle)
    assert len(claimed) == 5, "workers may prefetch again"


# -- prefetching -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        lambda queue: queue.limits.set_concurrency(9),
        lambda queue: queue.limits.set_rate_limit(9, per=1),
        lambda queue: queue.groups["a"].set_concurrency(9),
        lambda queue: queue.groups["a"].set_rate_limit(9, per=1),
        lambda queue: queue.manager.backend.bound_groups("q", "w", 9),
    ],
)
def test_nobody_prefetches_where_limits_are(queue: Queue, limit: Callable[[Queue], None]) -> None:
    backend = queue.manager.backend
    fill(queue, 8)
    fill(queue, 8, "a")
    assert len(backend.claim("q", 4, 30_000, "w", backend.wait_handle())) == 4
    limit(queue)
    for _ in range(5):
        assert len(backend.claim("q", 4, 30_000, "w", backend.wait_handle())) == 1


@pytest.mark.parametrize("first", ["plain", "grouped"])
def test_a_grouped_job_with_a_timeout_is_never_handed_out_unstarted(
    queue: Queue, first: str
) -> None:
    backend = queue.manager.backend
    queue.add("j", group=None if first == "plain" else "a")
    queue.add("j", group="a", ttl=1)
    queue.add("j", group="a", timeout=5)
    queue.add("j", group="a")
    sizes = []
    while queue.counts().waiting:
        jobs = backend.claim("q", 4, 30_000, "w", backend.wait_handle())
        sizes.append(len(jobs))
        assert all(job._options.timeout_ms is None for job in jobs[1:])
    # neither a job with a ttl nor one with a timeout waits in a batch
    assert sizes == [1, 1, 1, 1]


def test_an_expired_job_brings_no_job_with_a_timeout_into_a_claim(
    queue: Queue, clock: VirtualClock
) -> None:
    backend = queue.manager.backend
    for group in (None, "a"):
        queue.add("j", group=group)
        queue.add("j", group=group, ttl=1)
        queue.add("j", group=group, timeout=5)
    clock.advance(seconds=2)
    while queue.counts().waiting:
        jobs = backend.claim("q", 9, 30_000, "w", backend.wait_handle())
        assert jobs
        assert all(job._options.timeout_ms is None for job in jobs[1:])


# -- what workers ask for --------------------------------------------------------------------


def test_the_smallest_group_concurrency_of_running_workers_holds(queue: Queue) -> None:
    backend = queue.manager.backend
    for group in "ab":
        fill(queue, 20, group)
    queue.groups["b"].set_concurrency(5)
    backend.bound_groups("q", "one", 3)
    backend.bound_groups("q", "two", 2)

    def active() -> tuple[int, int]:
        take(queue)
        return queue.groups["a"].active(), queue.groups["b"].active()

    assert active() == (2, 5)
    backend.bound_groups("q", "two", None)
    assert active() == (3, 5)
    backend.bound_groups("q", "one", None)
    assert active() == (20, 5)
    backend.bound_groups("q", "nobody", None)
    queue.groups["b"].set_concurrency(None)
    assert active() == (20, 20)


# -- bad values ------------------------------------------------------------------------------

BAD_MAX = [0, -1, 100_001, 10**400, 1.0, math.nan, math.inf, True, "5", None, [], timedelta(1)]
BAD_PER = [0, -1, 0.0, math.nan, math.inf, 1e300, True, "5", None, [], timedelta(0),
           timedelta(days=36_501)]  # fmt: skip


@PARTS
@pytest.mark.parametrize("bad", BAD_MAX)
def test_a_bad_bound_is_refused_and_nothing_changed(
    queue: Queue, part: Part, group: str | None, bad: Any
) -> None:
    before = queue.limits.status()
    if bad is not None:
        with pytest.raises(ValidationError, match="concurrency"):
            part(queue).set_concurrency(bad)
    with pytest.raises(ValidationError, match="max"):
        part(queue).set_rate_limit(bad, per=1)
    assert queue.limits.status() == before
    assert list(queue.groups) == []


@PARTS
@pytest.mark.parametrize("bad", BAD_PER)
def test_a_bad_span_is_refused_and_nothing_changed(
    queue: Queue, part: Part, group: str | None, bad: Any
) -> None:
    before = queue.limits.status()
    with pytest.raises(ValidationError, match="per"):
        part(queue).set_rate_limit(1, per=bad)
    if bad not in (0, timedelta(0)):
        with pytest.raises(ValidationError, match="duration"):
            part(queue).cool_down(bad)
    if group is None and bad is not None:
        with pytest.raises(ValidationError, match="ttl"):
            queue.limits.set_rate_limit(1, per=1, ttl=bad)
    assert queue.limits.status() == before
    assert list(queue.groups) == []


@PARTS
@pytest.mark.parametrize("bound", [1, 100_000])
def test_the_bounds_themselves_are_accepted(
    queue: Queue, part: Part, group: str | None, bound: int
) -> None:
    part(queue).set_concurrency(bound)
    part(queue).set_rate_limit(bound, per=timedelta(days=36_500))
    fill(queue, 3, group)
    assert len(take(queue)) == min(3, bound)


@pytest.mark.parametrize(
    "misplaced",
    [
        lambda manager, queue: Queue("q", manager, rate_limit=RateLimit(1)),
        lambda manager, queue: Queue("q", manager, concurrency=1),
        lambda manager, queue: queue.add("j", rate_limit=RateLimit(1)),
        lambda manager, queue: queue.add("j", group_concurrency=1),
        lambda manager, queue: JobSpec("j", concurrency=1),
        lambda manager, queue: Worker(queue, print, limiter=RateLimit(1)),
        lambda manager, queue: Worker(queue, print, limits=1),
        lambda manager, queue: manager.pull("q", groups="a"),
        lambda manager, queue: queue.groups["a"].set_rate_limit(1, per=1, ttl=5),
        lambda manager, queue: queue.limits.set_rate_limit(1, duration=1),
    ],
)
def test_a_limit_in_the_wrong_place_is_a_type_error(
    manager: QueueManager, queue: Queue, misplaced: Callable[[QueueManager, Queue], object]
) -> None:
    """B124: never silently ignored."""
    with pytest.raises(TypeError):
        misplaced(manager, queue)


@pytest.mark.parametrize("bad", [5, "5", (1, 1), {"max": 1}, True, math.nan])
def test_a_worker_takes_a_rate_limit_and_nothing_else_for_one(queue: Queue, bad: Any) -> None:
    with pytest.raises(ValidationError, match="rate_limit must be a RateLimit"):
        Worker(queue, print, rate_limit=bad)


@pytest.mark.parametrize("bad", BAD_MAX)
def test_bad_numbers_of_a_workers_limits_are_refused(queue: Queue, bad: Any) -> None:
    with pytest.raises(ValidationError, match="rate_limit: max"):
        Worker(queue, print, rate_limit=RateLimit(bad))
    if bad is not None:
        with pytest.raises(ValidationError, match="group_concurrency"):
            Worker(queue, print, group_concurrency=bad)


@pytest.mark.parametrize("bad", BAD_PER)
def test_bad_spans_of_a_workers_limits_are_refused(queue: Queue, bad: Any) -> None:
    with pytest.raises(ValidationError, match="rate_limit: per"):
        Worker(queue, print, rate_limit=RateLimit(1, bad))
