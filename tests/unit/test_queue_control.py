"""Looking into a queue and controlling it: pages, counts, pause, drain, obliterate, remove, retry,
and what every verb answers in every state."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import combinations
from typing import Any

import pytest

from bunqueue_py import (
    BunqueueError,
    JobCounts,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobState,
    JobStateError,
    LockError,
    ManagerClosedError,
    Queue,
    QueueManager,
    ValidationError,
    WaitTimeoutError,
)
from bunqueue_py.client.job import Ack, Job
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
STATES = ("waiting", "prioritized", "delayed", "active", "completed", "failed")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as opened:
        yield opened
        if not opened._state.shards.shards[0].gate:
            check(opened._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("mail", manager)


def names(jobs: list[Job]) -> list[str]:
    return [job.name for job in jobs]


def listed(queue: Queue) -> JobCounts:
    """The counts as a full listing gives them."""
    seen = [str(job.state).replace("-", "_") for job in queue.get_jobs(limit=1_000_000)]
    ready = seen.count("waiting") + seen.count("prioritized")
    counts = {state: seen.count(state) for state in STATES}
    if queue.is_paused:
        counts |= {"waiting": 0, "prioritized": 0, "paused": ready}
    return JobCounts(**counts)


class Book:
    """Fills a queue and remembers in which order jobs entered their states, one a millisecond."""

    def __init__(self, queue: Queue, clock: VirtualClock) -> None:
        self.queue, self.clock, self.manager = queue, clock, queue.manager
        self.entered: list[tuple[str, str]] = []  # (name, state), by time of entry
        self.numbers = iter(range(1000))

    def enter(self, name: str, state: str) -> None:
        self.entered = [entry for entry in self.entered if entry[0] != name]
        self.entered.append((name, state))

    def add(self, state: str = "waiting", **options: Any) -> Job:
        self.clock.advance(milliseconds=1)
        job = self.queue.add(f"job{next(self.numbers)}", **options)
        self.enter(job.name, state)
        return job

    def pull(self) -> Job:
        self.clock.advance(milliseconds=1)
        job = self.manager.pull(self.queue)
        self.enter(job.name, "active")
        return job

    def finish(self, job: Job, state: str) -> None:
        self.clock.advance(milliseconds=1)
        if state == "completed":
            assert self.manager.ack(job, job.name).applied
        else:
            assert self.manager.fail(job, "no", unrecoverable=True).applied
        self.enter(job.name, state)

    def fill(self) -> None:
        """Several jobs in every state, mixed in time."""
        self.add("delayed", delay=3600)
        for _ in range(3):
            self.add()
        for state in ("failed", "completed", "failed", "completed", "completed"):
            self.add("prioritized", priority=9)
            self.finish(self.pull(), state)
        self.add("delayed", delay=60)
        self.add("prioritized", priority=1)
        self.add("delayed", priority=5, delay=1800)
        held = [self.pull(), self.pull()]
        self.add(priority=-3)
        self.add("delayed", run_at=START + timedelta(hours=2))
        self.add("prioritized", priority=2)
        self.add(lifo=True)
        self.add("prioritized", priority=2, lifo=True)
        self.clock.advance(milliseconds=1)
        assert self.manager.release(held[0])
        self.enter(held[0].name, "prioritized")
        self.add()
        self.add("prioritized", priority=7)
        self.pull()

    def expected(self, states: tuple[str, ...]) -> list[str]:
        return [name for name, state in self.entered if state in states]


@pytest.fixture
def book(queue: Queue, clock: VirtualClock) -> Book:
    made = Book(queue, clock)
    made.fill()
    assert {state for _, state in made.entered} == set(STATES)
    return made


# -- pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_a_listing_of_one_state_is_in_the_order_of_entering_it(book: Book, state: str) -> None:
    expected = book.expected((state,))
    assert len(expected) >= 2
    assert names(book.queue.get_jobs(state)) == expected
    assert names(book.queue.get_jobs([JobState(state)])) == expected
    assert names(book.queue.get_jobs(state, newest_first=True)) == expected[::-1]
    assert {str(job.state) for job in book.queue.get_jobs(state)} == {state}


def test_a_listing_of_any_combination_of_states_is_in_the_order_of_entering_them(
    book: Book,
) -> None:
    wrong = []
    for size in range(1, len(STATES) + 1):
        for states in combinations(STATES, size):
            if names(book.queue.get_jobs(states)) != book.expected(states):
                wrong.append(states)
            if names(book.queue.get_jobs(states, newest_first=True)) != book.expected(states)[::-1]:
                wrong.append((*states, "newest first"))
    assert wrong == []


def test_a_listing_without_states_is_one_of_all_states_in_the_order_of_entering_them(
    book: Book,
) -> None:
    assert names(book.queue.get_jobs()) == book.expected(STATES)


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_put_together_are_the_whole_listing(book: Book, newest_first: bool) -> None:
    for states in (*STATES, ("waiting", "failed"), None):
        whole = names(book.queue.get_jobs(states, newest_first=newest_first))
        for limit in (1, 2, 3, 100):
            pages = []
            for offset in range(0, len(whole) + limit, limit):
                page = book.queue.get_jobs(
                    states, offset=offset, limit=limit, newest_first=newest_first
                )
                assert len(page) <= limit
                pages += names(page)
            assert pages == whole
        assert book.queue.get_jobs(states, offset=len(whole)) == []
        assert book.queue.get_jobs(states, limit=0) == []


def test_a_page_has_at_most_a_hundred_jobs_unless_asked_otherwise(queue: Queue) -> None:
    queue.add_bulk([("job", n) for n in range(150)])
    assert [job.data for job in queue.get_jobs()] == list(range(100))
    assert [job.data for job in queue.get_jobs(offset=100)] == list(range(100, 150))
    assert len(queue.get_jobs(limit=1000)) == 150


def test_jobs_of_one_moment_are_listed_in_the_order_in_which_they_came(queue: Queue) -> None:
    queue.add("a", lifo=True)
    queue.add("b")
    queue.add("c", priority=-1)
    queue.add("d")
    assert names(queue.get_jobs("waiting")) == ["a", "b", "c", "d"]


def test_newest_first_is_the_reverse_also_among_jobs_of_one_moment(queue: Queue) -> None:
    queue.add("a")
    queue.add("b", lifo=True)
    queue.add("c", priority=3)
    queue.add("d", delay=60)
    queue.add("e")
    for states in ("waiting", None, ["waiting", "delayed"]):
        whole = names(queue.get_jobs(states))
        assert names(queue.get_jobs(states, newest_first=True)) == whole[::-1]


@pytest.mark.parametrize("priority", [0, 5, -5])
def test_what_came_due_stands_where_it_came_due_before_and_after_it_was_moved(
    queue: Queue, manager: QueueManager, clock: VirtualClock, priority: int
) -> None:
    queue.add("due at 10", delay=10, priority=priority)
    clock.advance(seconds=5)
    queue.add("at 5", priority=priority, lifo=True)
    clock.advance(seconds=10)
    queue.add("at 15", priority=priority, lifo=True)
    expected = ["at 5", "due at 10", "at 15"]
    state = "prioritized" if priority > 0 else "waiting"
    assert names(queue.get_jobs(state)) == expected
    clock.advance(seconds=5)
    queue.add("pulled", priority=100)
    assert manager.pull(queue).name == "pulled"  # which moved what was due
    assert names(queue.get_jobs(state)) == expected
    assert names(queue.get_jobs(state, newest_first=True)) == expected[::-1]


@pytest.mark.parametrize("priority", [0, 5])
def test_jobs_due_by_delay_and_by_moment_stand_in_one_order(
    queue: Queue, manager: QueueManager, clock: VirtualClock, priority: int
) -> None:
    for second in (8, 2, 6, 4):
        moment = START + timedelta(seconds=second)
        queue.add(f"delayed to {second}", delay=second, priority=priority)
        queue.add(f"moment {second + 1}", run_at=moment + timedelta(seconds=1), priority=priority)
    expected = names(queue.get_jobs("delayed"))
    assert len(expected) == 8
    clock.advance(seconds=10)
    in_order = sorted(expected, key=lambda name: int(name.split()[-1]))
    state = "prioritized" if priority else "waiting"
    assert names(queue.get_jobs(state)) == in_order
    queue.add("pulled", priority=100)
    assert manager.pull(queue).name == "pulled"  # which moved what was due
    assert names(queue.get_jobs(state)) == in_order
    assert names(queue.get_jobs(state, newest_first=True)) == in_order[::-1]
    assert names(manager.pull_batch(queue, 8)) == in_order


def test_a_job_that_comes_back_stands_at_the_end(
    queue: Queue, manager: QueueManager, clock: VirtualClock
) -> None:
    for name in "abc":
        queue.add(name, backoff=0)
        clock.advance(seconds=1)
    held = manager.pull_batch(queue, 3)
    clock.advance(seconds=1)
    manager.release(held[1])
    clock.advance(seconds=1)
    manager.fail(held[0], "no")
    clock.advance(seconds=1)
    manager.ack(held[2])
    clock.advance(seconds=1)
    queue.retry(held[2])
    assert names(queue.get_jobs("waiting")) == ["b", "a", "c"]


def test_a_listing_does_not_hand_out_tokens(queue: Queue, manager: QueueManager) -> None:
    queue.add("a", custom_id="x")
    held = manager.pull(queue)
    assert held.token
    assert queue.get_jobs("active")[0].token is None
    assert queue.get_job(held.id).token is None
    assert queue.get_job(custom_id="x").token is None


def test_a_listing_without_data_of_a_job_that_is_gone_says_so(queue: Queue) -> None:
    queue.add("a", {"n": 1})
    queue.add("b", {"n": 2})
    gone, kept = queue.get_jobs(with_data=False)
    queue.remove(gone)
    with pytest.raises(JobNotFoundError, match=gone.id):
        gone.data
    assert kept.data == {"n": 2}


@pytest.mark.parametrize("states", ["bogus", ["waiting", "bogus"], [None], [5], [[]], "paused", ""])
def test_a_state_that_cannot_be_listed_is_refused_and_the_others_named(
    queue: Queue, states: Any
) -> None:
    with pytest.raises(ValidationError, match="waiting, prioritized, delayed, ") as caught:
        queue.get_jobs(states)
    assert "states" in str(caught.value)


@pytest.mark.parametrize("states", [5, True, 1.5, object()])
def test_what_are_no_states_is_refused(queue: Queue, states: Any) -> None:
    with pytest.raises((ValidationError, TypeError)):
        queue.get_jobs(states)


def test_states_may_come_twice_in_any_order_and_from_any_iterable(book: Book) -> None:
    expected = book.expected(("waiting", "failed"))
    for states in (
        ["failed", "waiting", "failed"],
        {"waiting", "failed"},
        iter([JobState.WAITING, JobState.FAILED]),
    ):
        assert names(book.queue.get_jobs(states)) == expected
    assert book.queue.get_jobs([]) == []


# -- counts ------------------------------------------------------------------------------------


def test_counts_equal_what_a_full_listing_says(
    book: Book, queue: Queue, clock: VirtualClock, manager: QueueManager
) -> None:
    by_book = JobCounts(**{s: sum(state == s for _, state in book.entered) for s in STATES})
    assert queue.counts() == listed(queue) == by_book
    for seconds in (60, 1800, 1800, 3600):
        clock.advance(seconds=seconds)
        for paused in (True, False):
            (queue.pause if paused else queue.resume)()
            assert queue.counts() == listed(queue)
            assert queue.counts().total == by_book.total
        check(manager._state)
    assert queue.counts().delayed == 0


def test_a_job_is_counted_as_ready_the_millisecond_it_comes_due(
    queue: Queue, clock: VirtualClock, manager: QueueManager
) -> None:
    plain = queue.add("a", delay=1)
    high = queue.add("b", delay=1, priority=1)
    anchored = queue.add("c", run_at=START + timedelta(seconds=1))
    clock.advance(milliseconds=999)
    assert queue.counts() == JobCounts(delayed=3)
    assert plain.refresh().state == "delayed"
    clock.advance(milliseconds=1)
    assert queue.counts() == JobCounts(waiting=2, prioritized=1)
    assert [plain.refresh().state, high.refresh().state, anchored.refresh().state] == [
        "waiting",
        "prioritized",
        "waiting",
    ]
    assert queue.get_jobs("delayed") == []
    check(manager._state)


def test_the_counts_of_a_manager_are_the_sum_over_its_queues(manager: QueueManager) -> None:
    one, two = Queue("one", manager), Queue("two", manager)
    one.add_bulk([("a", 1), JobSpec("b", priority=1), JobSpec("c", delay=5)])
    two.add("a")
    two.pause()
    manager.pull(one)
    assert manager.counts() == JobCounts(waiting=1, delayed=1, active=1, paused=1)
    assert manager.counts(one) == manager.counts("one") == JobCounts(waiting=1, delayed=1, active=1)
    assert manager.queues() == ["one", "two"]


def test_len_is_what_is_pending_and_a_queue_is_always_true(
    queue: Queue, manager: QueueManager
) -> None:
    assert len(queue) == 0
    assert queue
    queue.add_bulk([("a", 1), JobSpec("b", priority=1), JobSpec("c", delay=5), ("d", 1)])
    assert len(queue) == 4
    queue.pause()
    assert len(queue) == 4
    queue.resume()
    manager.ack(manager.pull(queue))
    held = manager.pull(queue)
    assert len(queue) == 2
    manager.fail(held, "no", unrecoverable=True)
    assert len(queue) == 2
    queue.obliterate()
    assert len(queue) == 0
    assert queue
    assert queue.dlq


# -- pause -------------------------------------------------------------------------------------


def test_a_paused_queue_gives_nothing_out_and_counts_its_ready_jobs_as_paused(
    queue: Queue, manager: QueueManager, clock: VirtualClock
) -> None:
    running = queue.add("a")
    held = manager.pull(queue)
    queue.add_bulk([("b", 1), JobSpec("c", priority=5), JobSpec("d", delay=60)])
    queue.pause()
    assert queue.is_paused
    assert queue.counts() == JobCounts(paused=2, delayed=1, active=1)
    assert manager.pull(queue) is None
    assert manager.pull_batch(queue, 5) == []
    queue.add("e")
    clock.advance(seconds=60)
    assert queue.counts() == JobCounts(paused=4, active=1)
    assert queue.counts() == listed(queue)
    assert manager.ack(held).applied  # what runs already goes on
    assert running.refresh().state == "completed"
    queue.resume()
    assert not queue.is_paused
    assert queue.counts() == JobCounts(waiting=3, prioritized=1, completed=1)
    assert names(manager.pull_batch(queue, 5)) == ["c", "b", "e", "d"]


def test_pausing_or_resuming_twice_changes_nothing_and_emits_once(
    queue: Queue, manager: QueueManager
) -> None:
    heard: list[str] = []
    manager.events.subscribe(lambda event: heard.append(event.type), types=["paused", "resumed"])
    for call in (queue.resume, queue.pause, queue.pause, queue.resume, queue.resume):
        call()
    manager.run_pending()
    assert heard == ["paused", "resumed"]


def test_a_pause_holds_for_the_queue_whatever_object_asks_and_for_no_other_queue(
    queue: Queue, manager: QueueManager
) -> None:
    queue.pause()
    assert Queue("mail", manager).is_paused
    assert not Queue("other", manager).is_paused
    Queue("other", manager).add("a")
    assert manager.pull("other") is not None


# -- drain and obliterate ------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True])
def test_drain_removes_what_waits_and_leaves_the_rest(
    book: Book, queue: Queue, manager: QueueManager, paused: bool
) -> None:
    before = queue.counts()
    waiting = book.expected(("waiting", "prioritized", "delayed"))
    jobs = {job.name: job for job in queue.get_jobs(limit=1000)}
    if paused:
        queue.pause()
    assert queue.drain() == len(waiting)
    check(manager._state)
    assert queue.counts() == JobCounts(
        active=before.active, completed=before.completed, failed=before.failed
    )
    assert {manager.get_state(jobs[name]) for name in waiting} == {JobState.UNKNOWN}
    with pytest.raises(JobNotFoundError):
        jobs[waiting[0]].result()
    assert queue.drain() == 0
    assert queue.is_paused is paused


def test_drain_without_the_delayed_leaves_them_but_takes_what_has_come_due(
    queue: Queue, clock: VirtualClock, manager: QueueManager
) -> None:
    queue.add_bulk(
        [
            ("a", 1),
            JobSpec("b", priority=1),
            JobSpec("due", delay=10),
            JobSpec("due too", run_at=START + timedelta(seconds=10)),
            JobSpec("later", delay=60),
            JobSpec("later too", run_at=START + timedelta(seconds=60)),
        ]
    )
    clock.advance(seconds=10)
    assert queue.drain(delayed=False) == 4
    assert sorted(names(queue.get_jobs())) == ["later", "later too"]
    assert queue.counts() == JobCounts(delayed=2)
    check(manager._state)
    clock.advance(seconds=50)
    assert len(manager.pull_batch(queue, 5)) == 2


def test_drain_takes_more_than_one_bite_of_everything(
    queue: Queue, clock: VirtualClock, manager: QueueManager
) -> None:
    queue.add_bulk([JobSpec("job", delay=n % 3) for n in range(3_000)])
    clock.advance(seconds=1)
    assert queue.drain(delayed=False) == 2_000
    assert queue.drain() == 1_000
    assert queue.counts().total == 0
    check(manager._state)


def test_a_custom_id_is_free_after_drain_remove_and_obliterate(queue: Queue) -> None:
    for forget in (queue.drain, lambda: queue.remove(queue.get_job(custom_id="x")),
                   queue.obliterate):  # fmt: skip
        assert not queue.add("a", custom_id="x").duplicate
        forget()
        assert queue.get_job(custom_id="x") is None


def test_drain_and_obliterate_say_how_much_once(queue: Queue, manager: QueueManager) -> None:
    heard: list[tuple[str, int | None]] = []
    manager.events.subscribe(
        lambda event: heard.append((event.type, event.count)), types=["drained", "obliterated"]
    )
    queue.add_bulk([("a", 1), ("b", 2)])
    queue.drain()
    queue.add("c")
    queue.obliterate()
    manager.run_pending()
    assert heard == [("drained", 2), ("obliterated", 1)]


def test_obliterate_refuses_while_jobs_are_active_and_changes_nothing(
    book: Book, queue: Queue, manager: QueueManager
) -> None:
    before = queue.counts()
    with pytest.raises(JobStateError, match="active"):
        queue.obliterate()
    assert queue.counts() == before
    check(manager._state)


def test_obliterate_with_force_removes_everything_of_this_queue_and_nothing_of_another(
    book: Book, queue: Queue, manager: QueueManager
) -> None:
    """SPEC 16.8: what one queue does never changes another."""
    other = Queue("other", manager)
    other.add("kept", custom_id="x")
    queue.add("y", custom_id="x")
    total = queue.counts().total
    held = manager.pull(queue)
    assert queue.obliterate(force=True) == total
    check(manager._state)
    assert queue.counts() == JobCounts()
    assert queue.get_jobs() == []
    assert len(queue.dlq) == 0
    assert manager.ack(held, "late").reason == "gone"
    assert manager.heartbeat(held) is False
    assert other.counts() == JobCounts(waiting=1)
    assert other.get_job(custom_id="x").name == "kept"
    assert queue.add("again").state == "waiting"


def test_obliterate_without_active_jobs_needs_no_force(queue: Queue, manager: QueueManager) -> None:
    queue.add_bulk([("a", 1), JobSpec("b", delay=5)])
    manager.ack(manager.pull(queue), "done")
    assert queue.obliterate() == 2
    assert queue.obliterate() == 0
    assert queue.counts() == JobCounts()


# -- every verb in every state -------------------------------------------------------------------


def in_state(queue: Queue, state: str) -> tuple[Job, str | None]:
    """A job that got into that state, and the last token issued for it (if one was)."""
    manager = queue.manager
    options: dict[str, Any] = {"backoff": 60}
    if state in ("prioritized", "released prioritized"):
        options["priority"] = 5
    if state == "delayed":
        options["delay"] = 60
    job = queue.add("job", {"n": 1}, **options)
    if state in ("waiting", "prioritized", "delayed"):
        return job, None
    if state == "removed":
        queue.remove(job)
        return job, None
    held = manager.pull(queue)
    if state in ("released", "released prioritized"):
        assert manager.release(held)
    elif state == "retrying":
        assert manager.fail(held, "no").applied
    elif state == "completed":
        assert manager.ack(held, "done").applied
    elif state == "failed":
        assert manager.fail(held, "no", unrecoverable=True).applied
    elif state == "finished and removed":
        assert manager.ack(held, "done").applied
        queue.remove(held)
    return job, held.token


PENDING = ("waiting", "prioritized", "delayed", "released", "released prioritized", "retrying")
GONE = ("removed", "finished and removed")
ALL = (*PENDING, "active", "completed", "failed", *GONE)
FOUND = tuple(state for state in ALL if state not in GONE)


def outcome(act: Callable[[], Any]) -> object:
    """What a call gives: its value, the reason of an outcome not applied, or its error's type."""
    try:
        value = act()
    except BunqueueError as error:
        return type(error)
    if hasattr(value, "applied"):
        return True if value.applied else value.reason
    return value


def table(**by_verb: dict[tuple[str, ...] | str, object]) -> list[tuple[str, str, object]]:
    """Rows of (verb, state, what is right)."""
    rows = []
    for verb, right in by_verb.items():
        seen = []
        for states, value in right.items():
            for state in (states,) if isinstance(states, str) else states:
                rows.append((verb, state, value))
                seen.append(state)
        assert sorted(seen) == sorted(ALL), f"{verb} misses {set(ALL) ^ set(seen)}"
    return rows


OUTSIDE: dict[str, Callable[[Queue, Job], Any]] = {
    "remove": lambda queue, job: queue.remove(job),
    "remove_by_id": lambda queue, job: queue.remove(job.id),
    "retry": lambda queue, job: queue.retry(job),
    "dlq_retry": lambda queue, job: queue.dlq.retry(job),
    "dlq_remove": lambda queue, job: queue.dlq.remove(job.id),
    "job_remove": lambda queue, job: job.remove(),
    "job_retry": lambda queue, job: job.retry(),
    "get_result": lambda queue, job: queue.manager.get_result(job),
    "wait_for": lambda queue, job: queue.manager.wait_for(job, timeout=0),
    "state": lambda queue, job: str(queue.manager.get_state(job)),
    "refresh": lambda queue, job: job.refresh() is job,
    "found": lambda queue, job: queue.get_job(job.id) is not None,
}
NOT_FAILED = tuple(state for state in FOUND if state != "failed")
OUTSIDE_TABLE = table(
    remove={(*PENDING, "completed", "failed"): True, "active": JobStateError,
            GONE: JobNotFoundError},
    remove_by_id={(*PENDING, "completed", "failed"): True, "active": JobStateError,
                  GONE: JobNotFoundError},
    job_remove={(*PENDING, "completed", "failed"): True, "active": JobStateError,
                GONE: JobNotFoundError},
    retry={("completed", "failed"): True, (*PENDING, "active"): JobStateError,
           GONE: JobNotFoundError},
    job_retry={("completed", "failed"): True, (*PENDING, "active"): JobStateError,
               GONE: JobNotFoundError},
    dlq_retry={"failed": True, NOT_FAILED: JobStateError, GONE: JobNotFoundError},
    dlq_remove={"failed": True, NOT_FAILED: JobStateError, GONE: JobNotFoundError},
    get_result={(*PENDING, "active", "failed", "removed"): None,
                ("completed", "finished and removed"): "done"},
    wait_for={(*PENDING, "active"): WaitTimeoutError, "failed": JobFailedError,
              ("completed", "finished and removed"): "done", "removed": JobNotFoundError},
    state={("waiting", "released"): "waiting", ("prioritized", "released prioritized"):
           "prioritized", ("delayed", "retrying"): "delayed", "active": "active",
           "completed": "completed", "failed": "failed", GONE: "unknown"},
    refresh={FOUND: True, GONE: JobNotFoundError},
    found={FOUND: True, GONE: False},
)  # fmt: skip


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(("verb", "state", "right"), OUTSIDE_TABLE)
def test_a_verb_from_outside_answers_as_the_state_demands(
    queue: Queue, manager: QueueManager, verb: str, state: str, right: object, paused: bool
) -> None:
    job, _ = in_state(queue, state)
    if paused:
        queue.pause()
    before = queue.counts()
    assert outcome(lambda: OUTSIDE[verb](queue, job)) == right
    check(manager._state)
    if right is not True or verb in ("refresh", "found"):
        assert queue.counts() == before


HELD: dict[str, Callable[[QueueManager, Job, str | None], Any]] = {
    "ack": lambda m, job, token: m.ack(job.id, "new", token=token),
    "fail": lambda m, job, token: m.fail(job.id, "no", token=token),
    "release": lambda m, job, token: m.release(job.id, token=token),
    "heartbeat": lambda m, job, token: m.heartbeat(job.id, token=token),
    "extend_lock": lambda m, job, token: m.extend_lock(job.id, 5, token=token),
    "update_progress": lambda m, job, token: m.update_progress(job.id, 5, token=token),
}
HAD_RUN = ("released", "released prioritized", "retrying")
ISSUED = {  # the last token that was issued, where there was one
    "ack": {"active": True, HAD_RUN: "lock_lost", ("completed", "failed"): "already_finalized",
            "finished and removed": "gone"},
    "fail": {"active": True, HAD_RUN: "lock_lost", ("completed", "failed"): "already_finalized",
             "finished and removed": "gone"},
    "release": {"active": True, (*HAD_RUN, "completed", "failed", "finished and removed"): False},
    "heartbeat": {"active": True, (*HAD_RUN, "completed", "failed", "finished and removed"): False},
    "extend_lock": {"active": True,
                    (*HAD_RUN, "completed", "failed", "finished and removed"): False},
    "update_progress": {"active": None, (*HAD_RUN, "completed", "failed"): LockError,
                        "finished and removed": JobNotFoundError},
}  # fmt: skip
STRANGE = {  # no token, or one that was never issued for this job
    "ack": {FOUND: LockError, GONE: "gone"},
    "fail": {FOUND: LockError, GONE: "gone"},
    "release": {FOUND: LockError, GONE: False},
    "heartbeat": {FOUND: LockError, GONE: False},
    "extend_lock": {FOUND: LockError, GONE: False},
    "update_progress": {FOUND: LockError, GONE: JobNotFoundError},
}


def rows(
    by_verb: dict[str, dict[tuple[str, ...] | str, object]],
) -> list[tuple[str, str, object]]:
    return [
        (verb, state, value)
        for verb, right in by_verb.items()
        for states, value in right.items()
        for state in ((states,) if isinstance(states, str) else states)
    ]


@pytest.mark.parametrize(("verb", "state", "right"), rows(ISSUED))
def test_a_verb_with_the_token_that_was_issued_answers_as_the_state_demands(
    queue: Queue, manager: QueueManager, verb: str, state: str, right: object
) -> None:
    """B014: SPEC 5's table of tokens."""
    job, token = in_state(queue, state)
    assert token is not None
    before = queue.counts(), manager.get_state(job), manager.get_result(job)
    assert outcome(lambda: HELD[verb](manager, job, token)) == right
    check(manager._state)
    if state != "active":
        assert (queue.counts(), manager.get_state(job), manager.get_result(job)) == before


@pytest.mark.parametrize("token", [None, "", "never issued"])
@pytest.mark.parametrize(("verb", "state", "right"), rows(STRANGE))
def test_a_verb_with_no_token_or_a_strange_one_answers_as_the_state_demands(
    queue: Queue, manager: QueueManager, verb: str, state: str, right: object, token: str | None
) -> None:
    """B014: SPEC 5's table of tokens."""
    job, _ = in_state(queue, state)
    before = queue.counts(), manager.get_state(job), manager.get_result(job)
    assert outcome(lambda: HELD[verb](manager, job, token)) == right
    check(manager._state)
    assert (queue.counts(), manager.get_state(job), manager.get_result(job)) == before


@pytest.mark.parametrize("job_id", ["", "x", "no such job", "\ud83d", "x" * 10_000])
def test_an_unknown_id_is_not_found_by_any_verb_of_a_queue(queue: Queue, job_id: str) -> None:
    for verb in (queue.remove, queue.retry, queue.dlq.remove, queue.dlq.retry):
        with pytest.raises(JobNotFoundError) as caught:
            verb(job_id)
        assert caught.value.job_id == job_id
        assert isinstance(caught.value, LookupError)
    assert queue.get_job(job_id) is None
    assert queue.manager.get_state(job_id) == "unknown"
    assert queue.manager.get_result(job_id) is None


def test_an_error_names_the_job_and_its_state(queue: Queue) -> None:
    job, _ = in_state(queue, "delayed")
    with pytest.raises(JobStateError, match="delayed") as caught:
        queue.retry(job)
    assert caught.value.job_id == job.id
    assert job.id in str(caught.value)


# -- remove and retry ----------------------------------------------------------------------------


def test_a_removed_job_is_gone_for_whoever_waits_for_it_later(
    queue: Queue, manager: QueueManager
) -> None:
    heard: list[str | None] = []
    manager.events.subscribe(lambda event: heard.append(event.job_id), types=["removed"])
    job = queue.add("a")
    assert queue.remove(job) is True
    with pytest.raises(JobNotFoundError):
        job.result()
    with pytest.raises(JobNotFoundError):
        queue.remove(job)
    manager.run_pending()
    assert heard == [job.id]


def test_a_retried_job_starts_afresh_at_the_end_of_the_line(
    queue: Queue, manager: QueueManager, clock: VirtualClock
) -> None:
    """B067: full fresh attempts, the history kept."""
    job = queue.add("a", {"n": 1}, attempts=2, backoff=0, priority=0)
    for _ in range(2):
        held = manager.pull(queue)
        held.update_progress(50, "half")
        manager.fail(held, "no")
    assert job.refresh().failed_reason == "max_attempts_exceeded"
    clock.advance(seconds=10)
    queue.add("b")
    assert queue.retry(job) is True
    job.refresh()
    assert (job.state, job.attempts_made, job.attempt, job.stall_count) == ("waiting", 0, 1, 0)
    assert (job.progress, job.progress_message, job.failed_reason) == (0, None, None)
    assert (job.started_at, job.finished_at) == (None, None)
    assert len(queue.dlq) == 0
    assert names(manager.pull_batch(queue, 2)) == ["b", "a"]
    check(manager._state)


def test_a_completed_job_that_is_retried_has_no_result_until_it_completes_again(
    queue: Queue, manager: QueueManager
) -> None:
    job = queue.add("a")
    manager.ack(manager.pull(queue), "first")
    assert queue.retry(job)
    assert manager.get_result(job) is None
    with pytest.raises(WaitTimeoutError):
        job.result(timeout=0)
    manager.ack(manager.pull(queue), "second")
    assert job.result() == "second"
    assert queue.counts() == JobCounts(completed=1)


def test_a_job_retried_in_a_paused_queue_waits(queue: Queue, manager: QueueManager) -> None:
    job = queue.add("a")
    manager.fail(manager.pull(queue), "no", unrecoverable=True)
    queue.pause()
    queue.retry(job)
    assert queue.counts() == JobCounts(paused=1)
    assert manager.pull(queue) is None


# -- whose job, whose queue ----------------------------------------------------------------------


def test_get_job_finds_by_id_or_custom_id_in_this_queue_alone(
    queue: Queue, manager: QueueManager
) -> None:
    other = Queue("other", manager)
    mine = queue.add("mine", custom_id="x")
    theirs = other.add("theirs", custom_id="x")
    assert queue.get_job(mine.id) == mine
    assert queue.get_job(theirs.id) is None
    assert queue.get_job(custom_id="x") == mine
    assert other.get_job(custom_id="x") == theirs
    assert queue.get_job(custom_id="y") is None
    assert manager.get_job(mine) == mine
    assert manager.get_job(queue=other, custom_id="x") == theirs


@pytest.mark.parametrize(
    "arguments", [{}, {"job_id": "a", "custom_id": "b"}, {"custom_id": ""}, {"custom_id": 5}]
)
def test_get_job_wants_exactly_one_valid_id(queue: Queue, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        queue.get_job(**arguments)


def test_a_custom_id_finds_its_job_in_every_state_and_the_newest_one(
    queue: Queue, manager: QueueManager
) -> None:
    first = queue.add("a", custom_id="x")
    held = manager.pull(queue)
    assert queue.get_job(custom_id="x") == first
    manager.ack(held)
    assert queue.get_job(custom_id="x").state == "completed"
    second = queue.add("b", custom_id="x")
    assert queue.get_job(custom_id="x") == second
    manager.fail(manager.pull(queue), "no", unrecoverable=True)
    assert queue.get_job(custom_id="x").state == "failed"
    queue.remove(second)
    assert queue.get_job(custom_id="x") is None


@pytest.mark.parametrize("verb", ["remove", "retry", "dlq.remove", "dlq.retry"])
def test_a_queue_does_not_touch_the_job_of_another_queue(
    queue: Queue, manager: QueueManager, verb: str
) -> None:
    """SPEC 16.8: what one queue does never changes another."""
    other = Queue("other", manager)
    theirs = other.add("theirs")
    manager.fail(manager.pull(other), "no", unrecoverable=True)
    act = {
        "remove": queue.remove,
        "retry": queue.retry,
        "dlq.remove": queue.dlq.remove,
        "dlq.retry": queue.dlq.retry,
    }[verb]
    with pytest.raises(JobNotFoundError, match=theirs.id):
        act(theirs)
    assert theirs.refresh().state == "failed"
    assert other.counts() == JobCounts(failed=1)


def test_a_queue_serves_where_its_name_does(queue: Queue, manager: QueueManager) -> None:
    manager.push(queue, 1)
    manager.push_batch(queue, [("a", 2)])
    assert [job.data for job in manager.get_jobs(queue)] == [1, 2]
    assert manager.pull(queue).data == 1
    assert len(manager.pull_batch(queue, 5)) == 1
    assert manager.counts(queue) == queue.counts()


def test_a_job_does_not_serve_where_a_queue_is_asked_for(
    queue: Queue, manager: QueueManager
) -> None:
    job = queue.add("other")
    for call in (manager.push, manager.pull, manager.counts, manager.pause, manager.get_jobs):
        with pytest.raises(ValidationError, match="queue"):
            call(job)
    assert manager.queues() == ["mail"]


def test_a_queue_of_another_manager_serves_as_its_name(queue: Queue, manager: QueueManager) -> None:
    with QueueManager(clock=VirtualClock(), background=False) as second:
        theirs = Queue("mail", second)
        theirs.add("theirs")
        queue.add("mine")
        assert manager.pull(theirs).name == "mine"
        assert theirs.counts() == JobCounts(waiting=1)


def test_a_job_of_another_manager_is_not_found(queue: Queue) -> None:
    with QueueManager(clock=VirtualClock(), background=False) as second:
        theirs = Queue("mail", second).add("theirs")
        with pytest.raises(JobNotFoundError):
            queue.remove(theirs)
        assert queue.manager.get_state(theirs) == "unknown"
        assert theirs.refresh().state == "waiting"


@pytest.mark.parametrize("bad", [5, "manager", object(), True, {}])
def test_a_queue_wants_a_manager(bad: Any) -> None:
    with pytest.raises(ValidationError, match="manager"):
        Queue("mail", bad)


def test_a_queue_knows_its_name_and_manager(queue: Queue, manager: QueueManager) -> None:
    assert queue.name == "mail"
    assert queue.manager is manager
    assert "mail" in repr(queue)
    with pytest.raises(AttributeError):
        queue.name = "other"


def test_looking_at_a_queue_that_nobody_made_does_not_make_it(manager: QueueManager) -> None:
    assert manager.counts("nowhere") == JobCounts()
    assert manager.get_jobs("nowhere") == []
    assert manager.get_job(queue="nowhere", custom_id="x") is None
    assert not manager.is_paused("nowhere")
    assert manager.queues() == []


# -- waiting until empty -------------------------------------------------------------------------


def test_an_empty_queue_is_not_waited_for(queue: Queue, manager: QueueManager) -> None:
    queue.wait_until_empty()
    queue.wait_until_empty(timeout=0)
    queue.add("a")
    manager.ack(manager.pull(queue))
    queue.add("b")
    manager.fail(manager.pull(queue), "no", unrecoverable=True)
    queue.wait_until_empty()


@pytest.mark.parametrize("state", ["waiting", "delayed", "active", "retrying", "prioritized"])
def test_a_queue_with_work_is_not_empty_whatever_the_work_waits_for(
    queue: Queue, manager: QueueManager, state: str
) -> None:
    in_state(queue, state)
    with pytest.raises(WaitTimeoutError, match="mail"):
        queue.wait_until_empty(timeout=0)
    with pytest.raises(BunqueueError, match="advance"):
        queue.wait_until_empty()
    assert manager._state.queues["mail"].empty_waiters == []


# -- closed --------------------------------------------------------------------------------------


def test_every_call_of_a_queue_is_refused_once_its_manager_is_closed(
    queue: Queue, manager: QueueManager
) -> None:
    job = queue.add("a", custom_id="x")
    manager.close()
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: queue.add("b"),
        "add_bulk": lambda: queue.add_bulk([("b", 1)]),
        "get_job": lambda: queue.get_job(job.id),
        "get_job of an unknown id": lambda: queue.get_job("unknown"),
        "get_job by custom id": lambda: queue.get_job(custom_id="x"),
        "get_jobs": queue.get_jobs,
        "counts": queue.counts,
        "len": lambda: len(queue),
        "pause": queue.pause,
        "resume": queue.resume,
        "is_paused": lambda: queue.is_paused,
        "drain": queue.drain,
        "obliterate": queue.obliterate,
        "remove": lambda: queue.remove(job),
        "remove of an unknown id": lambda: queue.remove("unknown"),
        "retry": lambda: queue.retry(job),
        "retry of an unknown id": lambda: queue.retry("unknown"),
        "wait_until_empty": queue.wait_until_empty,
        "dlq.entries": queue.dlq.entries,
        "len of dlq": lambda: len(queue.dlq),
        "dlq.retry": lambda: queue.dlq.retry(job),
        "dlq.remove": lambda: queue.dlq.remove(job),
        "Queue": lambda: Queue("fresh", manager),
        "ack of an unknown id": lambda: manager.ack("unknown"),
        "ack_batch of an unknown id": lambda: manager.ack_batch([Ack("unknown")]),
        "empty ack_batch": lambda: manager.ack_batch([]),
        "fail of an unknown id": lambda: manager.fail("unknown", "no"),
        "release of an unknown id": lambda: manager.release("unknown"),
        "heartbeat of an unknown id": lambda: manager.heartbeat("unknown"),
        "heartbeat_batch of an unknown id": lambda: manager.heartbeat_batch(["unknown"]),
        "extend_lock of an unknown id": lambda: manager.extend_lock("unknown", 5),
        "update_progress of an unknown id": lambda: manager.update_progress("unknown", 5),
    }
    answers = {}
    for name, call in calls.items():
        try:
            answers[name] = call()
        except ManagerClosedError:
            pass
        except BunqueueError as error:
            answers[name] = error
    assert answers == {}
