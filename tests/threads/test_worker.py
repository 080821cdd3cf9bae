"""Workers on real threads: handlers, failures, heartbeats, prefetch, closing, listeners."""

from __future__ import annotations

import asyncio
import builtins
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BunqueueError,
    FailureReason,
    Job,
    JobFailedError,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueManager,
    UnrecoverableError,
    ValidationError,
    Worker,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock
from tests.threads.patience import TIMEOUT, until


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager(config=ManagerConfig(shards=1)) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager, defaults={"backoff": Backoff.fixed(0)})


class Gate:
    """A handler that says that it has begun, then waits to be let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, job: Job) -> Any:
        self.begun.release()
        assert self.open.wait(TIMEOUT)
        return job.data

    def await_begun(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.begun.acquire(timeout=TIMEOUT), "the handler never began"


def let_pass(seconds: float) -> None:
    """Real time has to pass here: it is what the test is about."""
    threading.Event().wait(seconds)


# -- handlers and results --------------------------------------------------------------------


def test_a_worker_runs_a_job_and_its_return_value_is_the_result(queue: Queue) -> None:
    job = queue.add("add", [1, 2, 3])
    with Worker(queue, lambda job: sum(job.data)):
        assert job.result(timeout=TIMEOUT) == 6
    assert job.refresh().return_value == 6


def test_a_handler_without_a_return_value_gives_none(queue: Queue) -> None:
    job = queue.add("nothing")
    with Worker(queue, lambda job: None):
        assert job.result(timeout=TIMEOUT) is None
    assert job.refresh().state == "completed"


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_as_many_handlers_run_at_once_as_the_concurrency_says(
    queue: Queue, concurrency: int
) -> None:
    gate = Gate()
    queue.add_bulk([("n", n) for n in range(2 * concurrency)])
    with Worker(queue, gate, concurrency=concurrency, prefetch=1):
        gate.await_begun(concurrency)
        assert queue.counts().active == concurrency
        assert not gate.begun.acquire(blocking=False)
        gate.open.set()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert queue.counts().completed == 2 * concurrency


def test_one_thread_runs_the_jobs_in_order(queue: Queue) -> None:
    ran: list[int] = []
    queue.add_bulk([("n", n) for n in range(300)])
    with Worker(queue, lambda job: ran.append(job.data)):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert ran == list(range(300))


def test_the_handler_sees_the_job_with_its_attempt_and_token(queue: Queue) -> None:
    seen: list[tuple[str, str, int, str, bool]] = []

    def handler(job: Job) -> None:
        seen.append((job.name, job.data, job.attempt, str(job.state), job.token is not None))

    added = queue.add("welcome", "ada")
    with Worker(queue, handler):
        added.result(timeout=TIMEOUT)
    assert seen == [("welcome", "ada", 1, "active", True)]


def test_a_handler_reports_progress_and_extends_its_lock(queue: Queue) -> None:
    def handler(job: Job) -> bool:
        job.update_progress(50, "half")
        return job.extend_lock(60)

    job = queue.add("n")
    with Worker(queue, handler):
        assert job.result(timeout=TIMEOUT) is True
    job.refresh()
    assert (job.progress, job.progress_message) == (50, "half")


def test_a_handler_may_add_jobs_to_its_own_queue(queue: Queue) -> None:
    def handler(job: Job) -> int:
        if job.data:
            queue.add("next", job.data - 1)
        return int(job.data)

    queue.add("first", 20)
    with Worker(queue, handler):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert queue.counts().completed == 21


def test_a_handler_may_wait_for_a_job_that_another_thread_of_the_worker_runs(
    queue: Queue,
) -> None:
    """The outcome must not be held back while somebody waits for it."""

    def handler(job: Job) -> int:
        if job.data == "outer":
            return int(queue.add("n", "inner").result(timeout=TIMEOUT)) + 1
        return 1

    job = queue.add("n", "outer")
    with Worker(queue, handler, concurrency=2):
        assert job.result(timeout=TIMEOUT) == 2


def test_a_worker_made_from_a_queue_name_and_a_manager_serves_that_queue(
    manager: QueueManager,
) -> None:
    job = manager.push("named", 4)
    with Worker("named", lambda job: job.data * 2, manager=manager):
        assert job.result(timeout=TIMEOUT) == 8


def test_jobs_of_other_queues_are_left_alone(manager: QueueManager, queue: Queue) -> None:
    other = manager.push("other")
    job = queue.add("mine")
    with Worker(queue, lambda job: None):
        job.result(timeout=TIMEOUT)
    assert manager.get_state(other) == "waiting"


def test_a_worker_can_be_started_from_another_thread_and_touches_no_signal_handler(
    queue: Queue,
) -> None:
    """B083."""
    import signal

    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    results: list[Any] = []

    def program() -> None:
        with Worker(queue, lambda job: job.data):
            results.append(queue.add("n", 5).result(timeout=TIMEOUT))

    thread = threading.Thread(target=program, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert results == [5]
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_worker_can_be_started_from_a_coroutine(queue: Queue) -> None:
    """B083."""

    async def program() -> Any:
        with Worker(queue, lambda job: job.data):
            return await queue.add("n", 6)

    assert asyncio.run(asyncio.wait_for(program(), TIMEOUT)) == 6


# -- failures --------------------------------------------------------------------------------


def test_a_handler_that_raises_is_run_again_until_it_succeeds(queue: Queue) -> None:
    attempts: list[int] = []

    def handler(job: Job) -> str:
        attempts.append(job.attempt)
        if job.attempt < 3:
            raise ValueError(f"attempt {job.attempt}")
        return "at last"

    job = queue.add("flaky", attempts=3)
    with Worker(queue, handler):
        assert job.result(timeout=TIMEOUT) == "at last"
    assert attempts == [1, 2, 3]
    assert job.refresh().attempts_made == 2


def test_a_job_without_attempts_left_fails_with_the_handlers_error(queue: Queue) -> None:
    def handler(job: Job) -> None:
        raise ValueError("no way")

    job = queue.add("hopeless", attempts=2)
    with Worker(queue, handler), pytest.raises(JobFailedError) as caught:
        job.result(timeout=TIMEOUT)
    assert caught.value.reason == FailureReason.MAX_ATTEMPTS_EXCEEDED
    assert caught.value.error == "ValueError: no way"
    assert any("handler" in line for line in caught.value.stacktrace)
    (entry,) = queue.dlq.entries()
    assert [attempt.attempt for attempt in entry.attempts] == [1, 2]


def test_an_unrecoverable_error_fails_the_job_at_once(queue: Queue) -> None:
    def handler(job: Job) -> None:
        raise UnrecoverableError("the account is closed")

    job = queue.add("n", attempts=5)
    with Worker(queue, handler), pytest.raises(JobFailedError) as caught:
        job.result(timeout=TIMEOUT)
    assert caught.value.reason == FailureReason.UNRECOVERABLE
    assert "the account is closed" in caught.value.error
    assert job.refresh().attempts_made == 1


def test_handlers_are_chosen_by_the_jobs_name(queue: Queue) -> None:
    jobs = [queue.add(name, 3) for name in ("double", "square", "other")]
    routes: dict[str, Callable[[Job], Any]] = {
        "double": lambda job: job.data * 2,
        "square": lambda job: job.data**2,
        "*": lambda job: job.name,
    }
    with Worker(queue, routes):
        assert [job.result(timeout=TIMEOUT) for job in jobs] == [6, 9, "other"]


def test_a_job_that_no_handler_knows_fails_for_good_and_runs_once_one_does(queue: Queue) -> None:
    """B076: others proceed, and replay works once the handler is back."""
    old, new = queue.add("old", 1, attempts=5), queue.add("new", 2)
    with Worker(queue, {"new": lambda job: job.data}):
        assert new.result(timeout=TIMEOUT) == 2
        with pytest.raises(JobFailedError, match="no handler for jobs named 'old'") as caught:
            old.result(timeout=TIMEOUT)
    assert caught.value.reason == FailureReason.UNRECOVERABLE
    assert old.refresh().attempts_made == 1
    assert queue.dlq.retry(old)
    with Worker(queue, {"new": lambda job: 0, "old": lambda job: "back"}):
        assert old.result(timeout=TIMEOUT) == "back"


class Odd(BaseException):
    """Neither an `Exception` nor known to anybody."""


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise ValueError("at the bottom")


def endless() -> None:
    endless()


BASE_ERRORS = [
    SystemExit(0),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    Odd("odd"),
    RecursionError("deep"),
    MemoryError(),
    StopIteration(3),
]


@pytest.mark.parametrize("error", BASE_ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_handler_raises_fails_the_job_and_not_the_worker(
    queue: Queue, error: BaseException
) -> None:
    """B079: each is recorded with its type, and 20 normal jobs behind are served."""

    def handler(job: Job) -> int:
        if job.name == "bad":
            raise error
        return int(job.data)

    bad = queue.add("bad", attempts=1)
    good = [queue.add("good", n) for n in range(20)]
    with Worker(queue, handler) as worker:
        with pytest.raises(JobFailedError) as caught:
            bad.result(timeout=TIMEOUT)
        assert [job.result(timeout=TIMEOUT) for job in good] == list(range(20))
        assert worker.is_running
    assert caught.value.error.startswith(type(error).__name__)


def test_a_group_of_a_thousand_exceptions_is_kept_within_bounds(queue: Queue) -> None:
    """B079. (Before Python 3.11 it is a ValueError that carries as many.)"""
    kind = getattr(builtins, "ExceptionGroup", ValueError)

    def handler(job: Job) -> None:
        raise kind("many", [ValueError("x" * 1000 + str(n)) for n in range(1000)])

    job = queue.add("n", attempts=1, stack_trace_limit=1000)
    with Worker(queue, handler), pytest.raises(JobFailedError) as caught:
        job.result(timeout=TIMEOUT)
    assert caught.value.error.startswith(f"{kind.__name__}: ")
    assert len(caught.value.error) <= 8_192
    assert sum(map(len, caught.value.stacktrace)) <= 1_000_000


def test_a_traceback_of_ten_thousand_frames_is_kept_within_bounds(queue: Queue) -> None:
    def handler(job: Job) -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(50_000)
        try:
            deep(10_000)
        finally:
            sys.setrecursionlimit(limit)

    before = threading.stack_size(256 * 1024 * 1024)
    try:
        worker = Worker(queue, handler).start()
    finally:
        threading.stack_size(before)
    job = queue.add("n", attempts=1, stack_trace_limit=1000)
    with worker, pytest.raises(JobFailedError) as caught:
        job.result(timeout=TIMEOUT)
    assert caught.value.error == "ValueError: at the bottom"
    assert 1 < len(caught.value.stacktrace) <= 1000


def test_endless_recursion_fails_the_job_and_not_the_worker(queue: Queue) -> None:
    """B079."""

    def handler(job: Job) -> str:
        if job.data:
            endless()
        return "fine"

    bad, good = queue.add("n", True, attempts=1), queue.add("n", False)
    with Worker(queue, handler):
        with pytest.raises(JobFailedError, match="RecursionError"):
            bad.result(timeout=TIMEOUT)
        assert good.result(timeout=TIMEOUT) == "fine"


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_whose_text_cannot_be_had_still_fails_the_job(
    queue: Queue, raised: type[BaseException]
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise raised

    def handler(job: Job) -> None:
        raise Mute

    job = queue.add("n", attempts=1)
    with Worker(queue, handler), pytest.raises(JobFailedError, match="Mute") as caught:
        job.result(timeout=TIMEOUT)
    assert raised.__name__ in caught.value.error


ODD_TEXTS = [
    "日本語",
    "\N{ROCKET}",
    "e\N{COMBINING ACUTE ACCENT}",
    "a\0b",
    "\ud800",
    "\r\n\x1b[31m",
]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
def test_odd_text_in_an_exception_reaches_the_dead_letters_escaped(
    queue: Queue, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B070: the worker goes on, and what is kept is valid text."""

    def handler(job: Job) -> str:
        if job.name == "bad":
            raise ValueError(text)
        return "fine"

    bad, good = queue.add("bad", attempts=1), queue.add("good")
    with Worker(queue, handler):
        with pytest.raises(JobFailedError) as caught:
            bad.result(timeout=TIMEOUT)
        assert good.result(timeout=TIMEOUT) == "fine"
    caught.value.error.encode()
    assert all(line.encode() is not None for line in caught.value.stacktrace)
    if text != "\ud800":
        assert text in caught.value.error


@pytest.mark.parametrize("text", [text for text in ODD_TEXTS if text != "\ud800"], ids=ascii)
def test_odd_text_in_payload_and_result_comes_back_as_it_went_in(queue: Queue, text: str) -> None:
    """B070."""
    job = queue.add("n", {"text": text})
    with Worker(queue, lambda job: job.data["text"]):
        assert job.result(timeout=TIMEOUT) == text


def unencodable() -> dict[str, Any]:
    circular: list[Any] = []
    circular.append(circular)
    return {
        "lock": threading.Lock(),
        "generator": (n for n in range(3)),
        "circular": circular,
        "closure": lambda: circular,
        "surrogate": {"text": "\ud800"},
        "nan": float("nan"),
    }


@pytest.mark.parametrize("kind", unencodable())
def test_a_result_that_cannot_be_encoded_fails_the_job_once(queue: Queue, kind: str) -> None:
    """B068, and B070's surrogate: the work is done and must not be repeated."""
    runs: list[int] = []

    def handler(job: Job) -> Any:
        if job.name == "good":
            return "fine"
        runs.append(job.attempt)
        return unencodable()[kind]

    bad, good = queue.add("bad", attempts=5), queue.add("good")
    with Worker(queue, handler):
        with pytest.raises(JobFailedError, match=r"SerializationError.*\$") as caught:
            bad.result(timeout=TIMEOUT)
        assert good.result(timeout=TIMEOUT) == "fine"
    assert caught.value.reason == FailureReason.UNRECOVERABLE
    assert runs == [1]


def test_a_result_that_is_too_large_fails_the_job_once() -> None:
    runs: list[int] = []

    def handler(job: Job) -> str:
        runs.append(job.attempt)
        return "x" * 2000

    with QueueManager(config=ManagerConfig(max_data_bytes=1000)) as manager:
        job = manager.push("q", attempts=5)
        with (
            Worker("q", handler, manager=manager),
            pytest.raises(JobFailedError, match="max_data_bytes"),
        ):
            job.result(timeout=TIMEOUT)
    assert runs == [1]


class Bomb(BaseException):
    """What a serializer should never raise."""


class MoodySerializer:
    """Text only; raises something worse than an error for "bomb"."""

    name = "moody"

    def dumps(self, value: Any) -> bytes:
        if value == "bomb":
            raise Bomb
        return repr(value).encode()

    def loads(self, data: bytes) -> Any:
        return data.decode()


def test_a_hundred_faults_after_the_handler_returned_cost_no_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B080: result encoding, listeners and payload decoding all misbehave; the two threads
    serve every job."""
    caplog.set_level(logging.CRITICAL)
    config = ManagerConfig(serializer=MoodySerializer())
    with QueueManager(config=config) as manager:
        worker = Worker("q", lambda job: "bomb" if job.name == "bad" else 1, manager=manager)

        @worker.on("completed")
        def completed(job: Job, result: Any) -> None:
            raise Bomb

        @worker.on("failed")
        def failed(job: Job, error: BaseException, will_retry: bool) -> None:
            raise SystemExit

        with worker:
            bad = [manager.push("q", n, name="bad", attempts=5) for n in range(100)]
            good = [manager.push("q", n) for n in range(20)]
            for job in good:
                assert job.result(timeout=TIMEOUT) == "1"
            for job in bad:
                with pytest.raises(JobFailedError, match="Bomb"):
                    job.result(timeout=TIMEOUT)
                assert job.refresh().attempts_made == 1
            assert worker.is_running
        check(manager._state)


def test_a_job_that_vanishes_under_its_handler_costs_the_worker_nothing(queue: Queue) -> None:
    gate = Gate()
    job = queue.add("n")
    with Worker(queue, gate):
        gate.await_begun()
        assert queue.obliterate(force=True) == 1
        gate.open.set()
        after = queue.add("after", 7)
        assert after.result(timeout=TIMEOUT) == 7
    assert queue.get_job(job.id) is None


# -- heartbeats ------------------------------------------------------------------------------


@pytest.mark.slow
def test_heartbeats_keep_the_lock_of_a_handler_that_outlasts_it(queue: Queue) -> None:
    """Six times the lock, and the job runs once."""
    runs: list[int] = []

    def handler(job: Job) -> str:
        runs.append(job.attempt)
        let_pass(1.2)
        return "done"

    job = queue.add("long")
    with Worker(queue, handler, lock_duration=0.2), Worker(queue, handler, lock_duration=0.2):
        assert job.result(timeout=TIMEOUT) == "done"
    assert runs == [1]
    assert job.refresh().stall_count == 0


@pytest.mark.slow
def test_busy_python_handlers_are_never_taken_for_lost(queue: Queue) -> None:
    """B013: four busy threads, for six times their lock, at a switch interval of 0.1 s."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.1)
    runs: list[int] = []

    def busy(job: Job) -> int:
        runs.append(job.data)
        end = time.monotonic() + 12
        while time.monotonic() < end:
            pass
        return int(job.data)

    try:
        jobs = queue.add_bulk([("n", n) for n in range(4)])
        with Worker(queue, busy, concurrency=4, lock_duration=2, prefetch=1):
            assert [job.result(timeout=60) for job in jobs] == [0, 1, 2, 3]
    finally:
        sys.setswitchinterval(before)
    assert sorted(runs) == [0, 1, 2, 3]
    assert all(job.refresh().stall_count == 0 for job in jobs)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 10, 50])
def test_no_gap_between_heartbeats_is_as_long_as_half_the_lock(
    manager: QueueManager, queue: Queue, concurrency: int
) -> None:
    """B019: what is left of a lock is never under half of it, so that one skipped beat loses
    nothing. No public call tells how long a lock has left, so this looks at the records."""
    gate = Gate()
    lease = 1.0
    state = manager._state
    queue.add_bulk([("n", n) for n in range(concurrency)])
    with Worker(queue, gate, concurrency=concurrency, lock_duration=lease, prefetch=1):
        gate.await_begun(concurrency)
        shortest = lease * 1000
        end = time.monotonic() + 3 * lease
        while time.monotonic() < end:
            now = state.now()
            for record in list(state.index.values()):
                delivery = record.delivery
                if delivery is not None and delivery.expires_ms is not None:
                    shortest = min(shortest, delivery.expires_ms - now)
            let_pass(0.005)
        gate.open.set()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert shortest > lease * 1000 / 2


def test_prefetched_jobs_that_wait_behind_a_long_handler_keep_their_locks(queue: Queue) -> None:
    """Their locks are renewed with that of the job that runs."""
    runs: list[int] = []

    def handler(job: Job) -> None:
        runs.append(job.data)
        if job.data == 0:
            let_pass(0.5)

    queue.add_bulk([("n", n) for n in range(4)])
    with Worker(queue, handler, lock_duration=0.3, prefetch=4):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert runs == [0, 1, 2, 3]
    assert all(job.stall_count == 0 for job in queue.get_jobs("completed"))


@pytest.mark.slow
def test_a_handler_that_holds_the_interpreter_for_longer_than_its_lock_is_not_taken_for_lost(
    queue: Queue,
) -> None:
    """B013, its second half, as SPEC 6 puts it: a sweep that comes late judges nobody, because the
    heartbeats could not run either."""
    began = time.perf_counter()
    sum(range(1_000_000))
    # some five seconds: later than half of the stall check's period, by far
    numbers = int(1_000_000 * 5 / (time.perf_counter() - began))
    runs: list[int] = []

    def handler(job: Job) -> int:
        runs.append(job.data)
        sum(range(numbers))  # one call in C that never gives the interpreter up
        let_pass(0.05)
        return 1

    job = queue.add("n", 0)
    with Worker(queue, handler, lock_duration=0.5, prefetch=1):
        assert job.result(timeout=60) == 1
    assert runs == [0]
    assert job.refresh().stall_count == 0


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1.2])
def test_a_short_hold_of_the_interpreter_loses_no_short_lock(queue: Queue, seconds: float) -> None:
    """The scheduler's thread and the beat's wake at once, and whichever is first: no run is lost.
    Four holds, one after the other, with one heartbeat between at the most."""
    began = time.perf_counter()
    sum(range(1_000_000))
    numbers = int(1_000_000 * seconds / (time.perf_counter() - began))
    runs: list[int] = []

    def handler(job: Job) -> None:
        runs.append(job.data)
        for _ in range(4):
            sum(range(numbers))  # one call in C that never gives the interpreter up
            let_pass(0.02)

    job = queue.add("n", 0)
    with Worker(queue, handler, lock_duration=0.5, prefetch=1):
        job.result(timeout=60)
    assert runs == [0]
    assert job.refresh().stall_count == 0


# -- prefetch --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_thread_claims_as_many_jobs_as_prefetch_says(queue: Queue, prefetch: int) -> None:
    gate = Gate()
    queue.add_bulk([("n", n) for n in range(10)])
    with Worker(queue, gate, prefetch=prefetch):
        gate.await_begun()
        assert queue.counts().active == prefetch
        gate.open.set()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert queue.counts().completed == 10


def test_prefetch_auto_starts_with_one_job(queue: Queue) -> None:
    gate = Gate()
    queue.add_bulk([("n", n) for n in range(10)])
    with Worker(queue, gate):
        gate.await_begun()
        assert queue.counts().active == 1
        gate.open.set()


def test_jobs_with_a_timeout_are_never_prefetched(queue: Queue) -> None:
    """Their time runs from their start, so they must not be claimed before."""
    gate = Gate()
    for n in range(5):
        queue.add("n", n, timeout=60)
    with Worker(queue, gate, prefetch=4):
        gate.await_begun()
        assert queue.counts().active == 1
        gate.open.set()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert queue.counts().completed == 5


def test_unstarted_jobs_go_back_when_a_handler_turns_slow_and_another_worker_waits(
    queue: Queue,
) -> None:
    """SPEC 5: nobody sits idle while a slow handler's thread holds unstarted jobs."""
    slow, fast = Gate(), Gate()
    fast.open.set()
    jobs = queue.add_bulk([("n", n) for n in range(4)])
    with Worker(queue, slow, prefetch=4):
        slow.await_begun()
        assert queue.counts().active == 4
        with Worker(queue, fast):
            assert [job.result(timeout=TIMEOUT) for job in jobs[1:]] == [1, 2, 3]
        assert jobs[0].refresh().state == "active"
        slow.open.set()
    for job in jobs:
        job.refresh()
        assert (str(job.state), job.attempts_made, job.stall_count) == ("completed", 0, 0)


def test_a_prefetched_job_is_not_started_before_its_handler_runs(
    manager: QueueManager, queue: Queue
) -> None:
    """`active` and `started_at` are of the handler's start, not of the claim."""
    gate = Gate()
    started: list[str] = []
    manager.events.subscribe(lambda event: started.append(event.job_id or ""), types="active")
    jobs = queue.add_bulk([("n", n) for n in range(3)])
    with Worker(queue, gate, prefetch=3):
        gate.await_begun()
        until(lambda: len(started) == 1, "the first job is announced")
        gate.open.set()
        queue.wait_until_empty(timeout=TIMEOUT)
        until(lambda: len(started) == 3, "all are announced")
    assert started == [job.id for job in jobs]


def test_a_high_priority_job_waits_for_no_more_than_the_claimed_jobs(queue: Queue) -> None:
    """B094: 1,000 low jobs before it, and it runs after those already claimed."""
    gate = Gate()
    ran: list[str] = []

    def handler(job: Job) -> None:
        ran.append(job.name)
        gate(job)

    queue.add_bulk([("low", n) for n in range(1000)])
    with Worker(queue, handler, prefetch=5):
        gate.await_begun()
        queue.add("high", priority=1)
        gate.open.set()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert ran.index("high") == 5


@pytest.mark.slow
def test_prefetch_auto_keeps_a_high_priority_job_waiting_for_milliseconds_only(
    queue: Queue,
) -> None:
    """B094: what is claimed at once is what should take about 5 ms, however short handlers are;
    10,000 low jobs take a multiple of that."""
    ran: list[str] = []
    reached = threading.Event()

    def handler(job: Job) -> None:
        ran.append(job.name)
        if len(ran) == 3000:
            reached.set()

    queue.add_bulk([("low", n) for n in range(10_000)])
    with Worker(queue, handler):
        assert reached.wait(TIMEOUT)
        before = len(ran)
        queue.add("high", priority=1)
        queue.wait_until_empty(timeout=TIMEOUT)
    assert ran.index("high") <= before + 3000


# -- outcomes held back ----------------------------------------------------------------------


def test_an_outcome_is_flushed_at_once_when_somebody_waits_for_it(queue: Queue) -> None:
    """The first of two prefetched jobs is done, the second blocks: the first one's result must
    not wait for it."""
    gate = Gate()
    first, second = queue.add_bulk([("fast", 1), ("slow", 2)])
    with Worker(queue, {"fast": lambda job: job.data, "slow": gate}, prefetch=2):
        gate.await_begun()
        assert first.result(timeout=TIMEOUT) == 1
        assert second.refresh().state == "active"
        gate.open.set()
        assert second.result(timeout=TIMEOUT) == 2


def test_an_outcome_that_nobody_waits_for_is_held_but_briefly(
    manager: QueueManager, queue: Queue
) -> None:
    gate = Gate()
    completed = threading.Event()
    manager.events.subscribe(lambda event: completed.set(), types="completed")
    queue.add_bulk([("fast", 1), ("slow", 2)])
    with Worker(queue, {"fast": lambda job: job.data, "slow": gate}, prefetch=2):
        gate.await_begun()
        assert completed.wait(TIMEOUT), "the outcome was held until the next handler returned"
        assert queue.counts().active == 1
        gate.open.set()


def test_an_outcome_is_not_lost_when_its_thread_goes_on_to_a_long_job(queue: Queue) -> None:
    """Held outcomes are settled although their job's lock is shorter than the next handler."""
    gate = Gate()
    runs: list[str] = []

    def fast(job: Job) -> None:
        runs.append(job.name)

    queue.add_bulk([("fast", 1), ("slow", 2)])
    with Worker(queue, {"fast": fast, "slow": gate}, prefetch=2, lock_duration=0.03):
        gate.await_begun()
        let_pass(0.1)
        assert queue.counts().completed == 1
        gate.open.set()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert runs == ["fast"]


# -- closing ---------------------------------------------------------------------------------


def test_close_waits_for_the_handler_under_way_and_takes_no_more_jobs(queue: Queue) -> None:
    gate = Gate()
    jobs = queue.add_bulk([("n", n) for n in range(3)])
    worker = Worker(queue, gate, prefetch=1).start()
    gate.await_begun()
    closed = threading.Thread(target=worker.close, daemon=True)
    closed.start()
    until(lambda: worker.is_closed, "close has begun")
    gate.open.set()
    closed.join(TIMEOUT)
    assert not closed.is_alive()
    states = [str(job.refresh().state) for job in jobs]
    assert states == ["completed", "waiting", "waiting"]
    assert worker.unfinished == []


def test_prefetched_jobs_go_back_at_close_to_their_old_places_uncharged(queue: Queue) -> None:
    gate = Gate()
    jobs = queue.add_bulk([("n", n) for n in range(5)])
    worker = Worker(queue, gate, prefetch=4).start()
    gate.await_begun()
    assert worker.close(timeout=0.01) is False
    assert queue.counts().waiting == 5
    gate.open.set()
    assert worker.close(timeout=TIMEOUT)
    order: list[int] = []
    with Worker(queue, lambda job: order.append(job.data)):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert order == [0, 1, 2, 3, 4]
    assert all(job.refresh().attempts_made == 0 for job in jobs)


def test_close_with_a_timeout_gives_unfinished_jobs_back_uncharged_and_names_them(
    queue: Queue,
) -> None:
    """B085, the first half: it returns in time, says what is unfinished, and that is redelivered;
    what the late handler returns has no effect."""
    gate = Gate()
    job = queue.add("long", "data")
    worker = Worker(queue, gate).start()
    gate.await_begun()
    began = time.monotonic()
    assert worker.close(timeout=0.05) is False
    assert time.monotonic() - began < 5
    assert worker.unfinished == [job.id]
    job.refresh()
    assert (str(job.state), job.attempts_made, job.stall_count) == ("waiting", 0, 0)
    with Worker(queue, lambda job: "second"):
        assert job.result(timeout=TIMEOUT) == "second"
    gate.open.set()
    assert worker.close(timeout=TIMEOUT) is True
    assert job.refresh().return_value == "second"


def test_a_forced_close_waits_for_nobody(queue: Queue) -> None:
    gate = Gate()
    job = queue.add("long")
    worker = Worker(queue, gate).start()
    gate.await_begun()
    assert worker.close(force=True) is False
    assert worker.unfinished == [job.id]
    gate.open.set()
    assert worker.close()


def test_close_timeout_bounds_a_close_without_a_timeout(queue: Queue) -> None:
    gate = Gate()
    queue.add("long")
    worker = Worker(queue, gate, close_timeout=0.02).start()
    gate.await_begun()
    assert worker.close() is False
    gate.open.set()
    assert worker.close(timeout=TIMEOUT)


def test_a_handler_may_close_its_own_worker(queue: Queue) -> None:
    """B091: it waits for the others only, and the job that does it completes."""
    worker = Worker(queue, lambda job: worker.close(timeout=TIMEOUT), concurrency=3)
    job = queue.add("n")
    worker.start()
    assert job.result(timeout=TIMEOUT) is True
    assert worker.is_closed
    assert worker.close(timeout=TIMEOUT)


def test_two_handlers_may_close_their_worker_at_once(queue: Queue) -> None:
    """Each would wait for the other: the timeout ends it."""
    both = threading.Barrier(2)
    closed = threading.Semaphore(0)

    def handler(job: Job) -> None:
        both.wait(TIMEOUT)
        worker.close(timeout=0.05)
        closed.release()

    worker = Worker(queue, handler, concurrency=2, prefetch=1)
    queue.add_bulk([("n", 1), ("n", 2)])
    worker.start()
    assert closed.acquire(timeout=TIMEOUT)
    assert closed.acquire(timeout=TIMEOUT)
    assert worker.close(timeout=TIMEOUT)


def test_close_before_start_is_fine_and_final(queue: Queue) -> None:
    """B091."""
    worker = Worker(queue, lambda job: None)
    assert worker.close()
    assert worker.is_closed
    assert not worker.is_running
    with pytest.raises(BunqueueError, match="closed"):
        worker.start()


def test_close_twice_and_start_twice_do_nothing_more(queue: Queue) -> None:
    worker = Worker(queue, lambda job: job.data)
    assert not worker.is_running
    assert worker.start() is worker
    assert worker.start() is worker
    assert worker.is_running
    assert queue.add("n", 1).result(timeout=TIMEOUT) == 1
    assert worker.close()
    assert worker.close()
    assert not worker.is_running


def test_an_exception_in_the_with_block_passes_through_a_clean_close(queue: Queue) -> None:
    """B091."""
    worker = Worker(queue, lambda job: None)
    with pytest.raises(ZeroDivisionError), worker:
        raise ZeroDivisionError
    assert worker.is_closed


def test_closing_the_manager_waits_for_the_handlers_of_its_workers() -> None:
    gate = Gate()
    manager = QueueManager()
    job = manager.push("q", 3)
    results: list[Any] = []
    worker = Worker("q", gate, manager=manager).start()
    gate.await_begun()
    waiting = threading.Thread(target=lambda: results.append(job.result(TIMEOUT)), daemon=True)
    waiting.start()
    closing = threading.Thread(target=manager.close, daemon=True)
    closing.start()
    until(lambda: worker.is_closed, "the worker is told")
    gate.open.set()
    closing.join(TIMEOUT)
    waiting.join(TIMEOUT)
    assert results == [3], "the handler was under way and should have been waited for"


def test_a_manager_closed_with_a_timeout_takes_the_result_of_a_late_handler_no_more() -> None:
    gate = Gate()
    manager = QueueManager()
    manager.push("q")
    worker = Worker("q", gate, manager=manager).start()
    gate.await_begun()
    assert manager.close(timeout=0.02) is False
    assert len(worker.unfinished) == 1
    gate.open.set()
    assert worker.close(timeout=TIMEOUT)


def test_a_worker_of_a_closed_manager_cannot_take_jobs() -> None:
    manager = QueueManager()
    queue = Queue("q", manager)
    manager.close()
    with pytest.raises(ManagerClosedError):
        Worker(queue, lambda job: None).start()


# -- listeners -------------------------------------------------------------------------------


def test_listeners_hear_of_starts_completions_and_failures_in_order(queue: Queue) -> None:
    heard: list[tuple[Any, ...]] = []

    def handler(job: Job) -> int:
        if job.attempt == 1:
            raise ValueError("once")
        return int(job.data)

    worker = Worker(queue, handler)
    worker.on("active", lambda job: heard.append(("active", job.attempt)))

    @worker.on("completed")
    def completed(job: Job, result: Any) -> None:
        heard.append(("completed", job.id, result))

    @worker.on("failed")
    def failed(job: Job, error: BaseException, will_retry: bool) -> None:
        heard.append(("failed", str(error), will_retry))

    with worker:
        job = queue.add("n", 4)
        assert job.result(timeout=TIMEOUT) == 4
    assert heard == [
        ("active", 1),
        ("failed", "once", True),
        ("active", 2),
        ("completed", job.id, 4),
    ]


def test_a_final_failure_is_heard_as_such(queue: Queue) -> None:
    heard: list[bool] = []

    def handler(job: Job) -> None:
        raise UnrecoverableError("no")

    worker = Worker(queue, handler)
    worker.on("failed", lambda job, error, will_retry: heard.append(will_retry))
    with worker, pytest.raises(JobFailedError):
        queue.add("n").result(timeout=TIMEOUT)
    assert heard == [False]


def test_a_decorator_returns_the_function_and_off_ends_it(queue: Queue) -> None:
    heard: list[int] = []
    worker = Worker(queue, lambda job: None)

    @worker.on("completed")
    def completed(job: Job, result: Any) -> None:
        heard.append(job.data)

    with worker:
        queue.add("n", 1).result(timeout=TIMEOUT)
        until(lambda: heard == [1], "the listener is called")
        assert worker.off("completed", completed)
        assert not worker.off("completed", completed)
        queue.add("n", 2).result(timeout=TIMEOUT)
    assert heard == [1]


def test_close_delivers_what_listeners_have_yet_to_hear(queue: Queue) -> None:
    heard: list[int] = []
    queue.add_bulk([("n", n) for n in range(200)])
    worker = Worker(queue, lambda job: None)
    worker.on("completed", lambda job, result: heard.append(job.data))
    with worker:
        queue.wait_until_empty(timeout=TIMEOUT)
    assert heard == list(range(200))


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_listener_that_raises_costs_neither_jobs_nor_other_listeners_anything(
    queue: Queue, raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """B125: jobs finish, other listeners are called, the error is logged."""
    heard: list[int] = []

    def broken(*values: Any) -> None:
        raise raised("broken listener")

    worker = Worker(queue, lambda job: job.data)
    for event in ("active", "completed"):
        worker.on(event, broken)
    worker.on("completed", lambda job, result: heard.append(result))
    with worker:
        jobs = queue.add_bulk([("n", n) for n in range(10)])
        assert [job.result(timeout=TIMEOUT) for job in jobs] == list(range(10))
    assert heard == list(range(10))
    assert "listener" in caplog.text
    assert "broken listener" in caplog.text


def test_a_listener_that_blocks_costs_jobs_and_event_subscribers_nothing(
    queue: Queue, manager: QueueManager
) -> None:
    """B125: jobs finish on time while the listener hangs."""
    release = threading.Event()
    elsewhere: list[str] = []
    manager.events.subscribe(lambda event: elsewhere.append(event.type), types="completed")
    worker = Worker(queue, lambda job: job.data)
    worker.on("active", lambda job: release.wait(TIMEOUT))
    with worker:
        jobs = queue.add_bulk([("n", n) for n in range(20)])
        assert [job.result(timeout=TIMEOUT) for job in jobs] == list(range(20))
        until(lambda: len(elsewhere) == 20, "subscribers hear all")
        assert not release.is_set()
        release.set()


def test_a_close_with_a_timeout_does_not_wait_for_a_listener_that_hangs(queue: Queue) -> None:
    """B125: neither the caller nor the worker's own threads."""
    release, hangs = threading.Event(), threading.Event()
    worker = Worker(queue, lambda job: job.data)

    @worker.on("completed")
    def completed(job: Job, result: Any) -> None:
        hangs.set()
        release.wait(TIMEOUT)

    with worker:
        queue.add("n", 1).result(timeout=TIMEOUT)
        assert hangs.wait(TIMEOUT)
        answers: list[bool] = []
        closing = threading.Thread(
            target=lambda: answers.append(worker.close(timeout=0.1)), daemon=True
        )
        closing.start()
        closing.join(TIMEOUT / 2)
        in_time = list(answers)
        release.set()
    assert in_time == [True], "in time, and every handler had returned"


def test_a_listener_may_add_jobs_end_itself_and_close_the_worker(queue: Queue) -> None:
    """B125: no deadlock."""
    done = threading.Event()
    worker = Worker(queue, lambda job: job.data)

    @worker.on("completed")
    def completed(job: Job, result: Any) -> None:
        if job.data == 1:
            queue.add("second", 2)
        else:
            worker.off("completed", completed)
            assert worker.close(timeout=TIMEOUT)
            done.set()

    worker.start()
    queue.add("first", 1)
    assert done.wait(TIMEOUT)
    assert worker.is_closed
    queue.add("third", 3)
    assert queue.counts().waiting == 1


def test_a_subscriber_of_every_event_may_raise_block_add_and_unsubscribe(
    queue: Queue, manager: QueueManager, caplog: pytest.LogCaptureFixture
) -> None:
    """B125, on the manager's side: each has its own thread, and the jobs finish."""
    release = threading.Event()
    heard: list[str] = []

    def raising(event: Any) -> None:
        raise SystemExit("subscriber")

    def adding(event: Any) -> None:
        if event.type == "completed" and len(heard) < 200:
            queue.add("more", custom_id="one more")
        stop_adding()

    manager.events.subscribe(raising)
    manager.events.subscribe(lambda event: release.wait(TIMEOUT))
    manager.events.subscribe(lambda event: heard.append(event.type))
    stop_adding = manager.events.subscribe(adding, types="completed")
    with Worker(queue, lambda job: job.data):
        jobs = queue.add_bulk([("n", n) for n in range(20)])
        assert [job.result(timeout=TIMEOUT) for job in jobs] == list(range(20))
        until(lambda: heard.count("completed") == 21, "the healthy subscriber hears all")
        until(lambda: "subscriber" in caplog.text, "the error is logged")
        release.set()


# -- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", 0),
        ("concurrency", 10_001),
        ("concurrency", 1.0),
        ("concurrency", True),
        ("concurrency", "2"),
        ("lock_duration", 0),
        ("lock_duration", -1),
        ("lock_duration", float("nan")),
        ("lock_duration", None),
        ("heartbeat_interval", 0),
        ("heartbeat_interval", 15),
        ("heartbeat_interval", timedelta(seconds=30)),
        ("prefetch", 0),
        ("prefetch", 1_001),
        ("prefetch", "all"),
        ("prefetch", None),
        ("close_timeout", -1),
        ("name", ""),
        ("name", 3),
    ],
)
def test_an_option_out_of_bounds_is_refused_by_name(queue: Queue, option: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=option):
        Worker(queue, lambda job: None, **{option: value})


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 64},
        {"lock_duration": timedelta(seconds=1)},
        {"lock_duration": 1, "heartbeat_interval": 0.499},
        {"prefetch": 1_000},
        {"close_timeout": None},
        {"close_timeout": 0},
        {"name": "mine"},
    ],
    ids=str,
)
def test_an_option_within_bounds_is_taken(queue: Queue, options: dict[str, Any]) -> None:
    job = queue.add("n", 1)
    with Worker(queue, lambda job: job.data, **options):
        assert job.result(timeout=TIMEOUT) == 1


async def a_coroutine(job: Job) -> None: ...


@pytest.mark.parametrize("handler", [None, 3, "text", {}, {"a": 1}, {"": print}, {1: print}])
def test_what_is_no_handler_is_refused(queue: Queue, handler: Any) -> None:
    with pytest.raises(ValidationError, match="handler"):
        Worker(queue, handler)


def test_a_worker_needs_a_manager_with_threads() -> None:
    with (
        QueueManager(clock=VirtualClock(), background=False) as manager,
        pytest.raises(ValidationError, match="background=False"),
    ):
        Worker("q", lambda job: None, manager=manager)


def test_a_queue_of_another_manager_is_refused(queue: Queue) -> None:
    with QueueManager() as other, pytest.raises(ValidationError, match="manager"):
        Worker(queue, lambda job: None, manager=other)


def test_an_unknown_event_or_listener_is_refused(queue: Queue) -> None:
    worker = Worker(queue, lambda job: None)
    with pytest.raises(ValidationError, match="event"):
        worker.on("finished", print)
    with pytest.raises(ValidationError, match="listener"):
        worker.on("completed", 3)  # type: ignore[arg-type]
    worker.close()
