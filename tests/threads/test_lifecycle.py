"""How a manager ends: close, interpreter exit, fork; and the default manager of a process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue_py import (
    Ack,
    ForkedManagerError,
    Job,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueEvents,
    QueueManager,
    ValidationError,
    Worker,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

TIMEOUT = 10.0


def our_threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("bunqueue-"))


def run_together(jobs: list[Callable[[], Any]]) -> None:
    """Runs all at once, each on its thread; raises the first error, or says that one hangs."""
    barrier = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def guarded(fn: Callable[[], Any]) -> None:
        try:
            barrier.wait(TIMEOUT)
            fn()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(fn,), daemon=True) for fn in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        if errors:
            raise errors[0]
        assert not thread.is_alive(), "a thread hangs"


def script(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a Python of its own, for at most ten seconds and a slow start."""
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        env={**os.environ, **env},
    )


# -- close -----------------------------------------------------------------------------------


def test_close_is_idempotent_and_says_that_all_has_ended() -> None:
    """B091."""
    manager = QueueManager()
    manager.push("q")
    assert manager.close() is True
    assert manager.close() is True
    assert manager.close(timeout=0) is True
    with pytest.raises(ManagerClosedError):
        manager.push("q")


def test_many_threads_may_close_at_once() -> None:
    manager = QueueManager()
    worker = Worker("q", lambda job: None, manager=manager, concurrency=2).start()
    answers: list[bool] = []
    run_together([lambda: answers.append(manager.close(timeout=TIMEOUT))] * 8)
    assert answers == [True] * 8
    assert worker.is_closed


CALLS: dict[str, Callable[[QueueManager, Queue, Any], Any]] = {
    "push": lambda manager, queue, job: manager.push("q"),
    "push to a new queue": lambda manager, queue, job: manager.push("new"),
    "push_batch": lambda manager, queue, job: manager.push_batch("q", [("n", 1)]),
    "add": lambda manager, queue, job: queue.add("n"),
    "add_bulk": lambda manager, queue, job: queue.add_bulk([("n", 1)]),
    "pull": lambda manager, queue, job: manager.pull("q"),
    "pull with a timeout": lambda manager, queue, job: manager.pull("q", timeout=1),
    "pull_batch": lambda manager, queue, job: manager.pull_batch("q", 2),
    "ack": lambda manager, queue, job: manager.ack(job),
    "ack_batch": lambda manager, queue, job: manager.ack_batch([Ack(job)]),
    "fail": lambda manager, queue, job: manager.fail(job, "x"),
    "release": lambda manager, queue, job: manager.release(job),
    "heartbeat": lambda manager, queue, job: manager.heartbeat(job),
    "heartbeat_batch": lambda manager, queue, job: manager.heartbeat_batch([job]),
    "extend_lock": lambda manager, queue, job: manager.extend_lock(job, 5),
    "update_progress": lambda manager, queue, job: manager.update_progress(job, 5),
    "get_job": lambda manager, queue, job: manager.get_job(job.id),
    "get_job of nobody": lambda manager, queue, job: manager.get_job("nobody"),
    "get_job by custom id": lambda manager, queue, job: queue.get_job(custom_id="c"),
    "get_jobs": lambda manager, queue, job: queue.get_jobs(),
    "get_state": lambda manager, queue, job: manager.get_state(job),
    "get_result": lambda manager, queue, job: manager.get_result(job),
    "wait_for": lambda manager, queue, job: manager.wait_for(job),
    "result": lambda manager, queue, job: job.result(),
    "refresh": lambda manager, queue, job: job.refresh(),
    "counts": lambda manager, queue, job: manager.counts(),
    "counts of a queue": lambda manager, queue, job: queue.counts(),
    "len": lambda manager, queue, job: len(queue),
    "queues": lambda manager, queue, job: manager.queues(),
    "pause": lambda manager, queue, job: queue.pause(),
    "resume": lambda manager, queue, job: queue.resume(),
    "is_paused": lambda manager, queue, job: queue.is_paused,
    "drain": lambda manager, queue, job: queue.drain(),
    "obliterate": lambda manager, queue, job: queue.obliterate(force=True),
    "remove": lambda manager, queue, job: queue.remove(job),
    "retry": lambda manager, queue, job: queue.retry(job),
    "wait_until_empty": lambda manager, queue, job: queue.wait_until_empty(),
    "dlq.entries": lambda manager, queue, job: queue.dlq.entries(),
    "dlq.retry": lambda manager, queue, job: queue.dlq.retry(job),
    "dlq.remove": lambda manager, queue, job: queue.dlq.remove(job),
    "dlq len": lambda manager, queue, job: len(queue.dlq),
    "subscribe": lambda manager, queue, job: manager.events.subscribe(print),
    "run_pending": lambda manager, queue, job: manager.run_pending(),
    "next_due": lambda manager, queue, job: manager.next_due(),
    "a new Queue": lambda manager, queue, job: Queue("another", manager),
}


@pytest.mark.parametrize("call", CALLS)
def test_after_close_every_call_raises(call: str) -> None:
    """One job is held, so that every verb would have something to do."""
    manager = QueueManager(clock=VirtualClock(), background=False)
    queue = Queue("q", manager)
    queue.add("n")
    job = manager.pull("q")
    manager.close()
    with pytest.raises(ManagerClosedError, match="closed"):
        CALLS[call](manager, queue, job)


def test_what_was_read_before_close_can_still_be_looked_at() -> None:
    manager = QueueManager()
    job = manager.push("q", {"a": 1})
    manager.close()
    assert (job.data, str(job.state), job.queue) == ({"a": 1}, "waiting", "q")
    assert "closed" in repr(manager)


def test_an_exception_in_the_with_block_passes_through_a_clean_close() -> None:
    """B091."""
    before = our_threads()
    with pytest.raises(ZeroDivisionError), QueueManager() as manager:
        Worker("q", lambda job: None, manager=manager).start()
        raise ZeroDivisionError
    assert our_threads() == before


def test_a_listener_may_close_the_manager() -> None:
    """SPEC 17: never the current thread is joined."""
    manager = QueueManager()
    closed = threading.Event()

    def listener(event: Any) -> None:
        manager.close(timeout=TIMEOUT)
        closed.set()

    manager.events.subscribe(listener, types="pushed")
    manager.push("q")
    assert closed.wait(TIMEOUT)
    with pytest.raises(ManagerClosedError):
        manager.push("q")
    assert manager.close(timeout=TIMEOUT)


def test_a_handler_may_close_the_manager() -> None:
    """B091: no deadlock, and what runs elsewhere is waited for."""
    manager = QueueManager()
    closed = threading.Event()
    began = threading.Event()
    finished: list[str] = []

    def handler(job: Any) -> None:
        if job.data == "close":
            assert began.wait(TIMEOUT)
            manager.close(timeout=TIMEOUT)
            closed.set()
        else:
            began.set()
            threading.Event().wait(0.02)
            finished.append(job.data)

    worker = Worker("q", handler, manager=manager, concurrency=2, prefetch=1)
    manager.push_batch("q", [("n", "other"), ("n", "close")])
    worker.start()
    assert closed.wait(TIMEOUT)
    assert finished == ["other"]
    assert worker.is_closed
    assert manager.close(timeout=TIMEOUT)
    assert worker.close(timeout=TIMEOUT)


def test_a_worker_listener_may_close_the_manager() -> None:
    manager = QueueManager()
    closed = threading.Event()
    worker = Worker("q", lambda job: job.data, manager=manager)

    @worker.on("completed")
    def completed(job: Any, result: Any) -> None:
        manager.close(timeout=TIMEOUT / 2)
        closed.set()

    worker.start()
    began = time.monotonic()
    manager.push("q")
    assert closed.wait(TIMEOUT)
    assert time.monotonic() - began < TIMEOUT / 2, "it waited for itself"


def test_close_delivers_the_events_that_are_buffered() -> None:
    heard: list[str] = []
    with QueueManager() as manager:
        manager.events.subscribe(lambda event: heard.append(event.type), types="pushed")
        for n in range(500):
            manager.push("q", n)
    assert heard == ["pushed"] * 500


def test_close_with_a_timeout_does_not_wait_for_a_listener_that_hangs() -> None:
    manager = QueueManager()
    release, hangs = threading.Event(), threading.Event()

    def listener(event: Any) -> None:
        hangs.set()
        release.wait(TIMEOUT)

    manager.events.subscribe(listener)
    manager.push("q")
    assert hangs.wait(TIMEOUT)
    assert manager.close(timeout=0.02) is False
    release.set()


def race_pushes_against_close(push: Callable[[QueueManager, int], int]) -> None:
    """Eight threads push while the manager closes; what `push` says was accepted is there."""
    manager = QueueManager(config=ManagerConfig(shards=2))
    accepted = [0] * 8
    refused = [0] * 8
    going = threading.Semaphore(0)

    def pusher(i: int) -> Callable[[], None]:
        def run() -> None:
            try:
                while True:
                    accepted[i] += push(manager, i)
                    going.release()
            except ManagerClosedError:
                refused[i] += 1

        return run

    def closer() -> None:
        for _ in range(40):
            assert going.acquire(timeout=TIMEOUT)
        assert manager.close()

    run_together([pusher(i) for i in range(8)] + [closer])
    queues = manager._state.queues.values()
    assert sum(queue.admitted for queue in queues) == sum(accepted)
    assert refused == [1] * 8


def test_a_push_that_races_with_close_raised_or_was_counted() -> None:
    """SPEC 17: no push slips past the last flush, and none that returned is forgotten."""

    def one(manager: QueueManager, i: int) -> int:
        manager.push(f"q{i % 3}", i)
        return 1

    for _ in range(5):
        race_pushes_against_close(one)


def test_a_batch_that_races_with_close_raised_or_was_counted_whole() -> None:
    def batch(manager: QueueManager, i: int) -> int:
        return len(manager.push_batch(f"q{i % 3}", [("n", n) for n in range(5)]))

    for _ in range(5):
        race_pushes_against_close(batch)


def open_descriptors() -> int:
    folder = next(p for p in ("/proc/self/fd", "/dev/fd") if os.path.isdir(p))
    return len(os.listdir(folder))


def use_and_close(times: int) -> None:
    gc.collect()
    threads, descriptors = threading.active_count(), open_descriptors()
    for n in range(times):
        manager = QueueManager()
        if n % 4 == 0:
            manager.events.subscribe(lambda event: None)
        queue = Queue("q", manager)
        worker = Worker(queue, lambda job: job.data)
        if n % 3 == 0:
            worker.on("completed", lambda job, result: None)
        if n % 5:
            worker.start()
            assert queue.add("n", n).result(timeout=TIMEOUT) == n
        if n % 2:
            assert worker.close()
        assert manager.close()
        assert manager.close()
    gc.collect()
    assert threading.active_count() <= threads, our_threads()
    assert open_descriptors() <= descriptors


def test_managers_and_workers_that_come_and_go_leave_no_threads_or_descriptors() -> None:
    """B091."""
    use_and_close(200)


@pytest.mark.slow
def test_a_thousand_managers_and_workers_leave_no_threads_or_descriptors() -> None:
    """B091, the long form."""
    use_and_close(1_000)


def test_a_closed_manager_is_freed_when_nobody_holds_it() -> None:
    """Neither atexit nor the fork hook may keep what a closed manager held."""
    gc.collect()
    with QueueManager() as manager:
        queue = Queue("q", manager)
        with Worker(queue, lambda job: job.data):
            queue.add("n", 1).result(timeout=TIMEOUT)
    traces = [weakref.ref(manager), weakref.ref(queue)]
    states = weakref.ref(manager._state)
    del manager, queue
    gc.collect()
    assert [trace() for trace in traces] == [None, None]
    assert states() is None


# -- the end of the process ------------------------------------------------------------------

EXITING = """
import logging, sys, threading
from bunqueue_py import Queue, QueueManager, Worker

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
manager = QueueManager()
queue = Queue("q", manager)
began = threading.Semaphore(0)

def handler(job):
    began.release()
    print("working on", job.data)
    logging.info("working on %s", job.data)
    if job.data == "endless":
        threading.Event().wait()

worker = Worker(queue, handler, concurrency=4, close_timeout=1000)
worker.on("completed", lambda job, result: print("completed", job.data))
manager.events.subscribe(lambda event: print("event", event.type))
worker.start()
queue.add_bulk([("n", n) for n in range(200)])
{more}
began.acquire()
{end}
"""
ENDINGS = {"return": ("", 0), "exit": ("sys.exit(3)", 3), "error": ("raise ValueError('mine')", 1)}


def exits(ending: str, more: str = "") -> None:
    end, code = ENDINGS[ending]
    began = time.monotonic()
    done = script(EXITING.format(more=more, end=end))
    took = time.monotonic() - began
    assert done.returncode == code, done.stderr[-2000:]
    assert took < TIMEOUT
    assert "Fatal" not in done.stderr
    assert "_AtExit" not in done.stderr
    if ending == "error":
        assert done.stderr.splitlines()[-1] == "ValueError: mine", done.stderr
    else:
        assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_leaves_its_manager_open_exits_with_its_own_code(
    ending: str, slow_rounds: Callable[[int, int], int]
) -> None:
    """B086: handlers print and log until the very end, again and again."""
    for _ in range(slow_rounds(2, 12)):
        exits(ending)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_handler_that_never_ends_keeps_no_program_from_exiting(ending: str) -> None:
    """B085, B086: within five seconds, as API.md has it, whatever the worker's own patience."""
    exits(ending, more='queue.add("n", "endless", priority=1)')


@pytest.mark.slow
def test_an_immediate_exit_is_immediate() -> None:
    """B086: os._exit runs nothing of ours."""
    done = script(EXITING.format(more="", end="import os; os._exit(4)"))
    assert done.returncode == 4


@pytest.mark.slow
def test_a_program_ended_by_ctrl_c_exits_as_python_does() -> None:
    code = EXITING.format(more="", end="import signal; signal.raise_signal(signal.SIGINT)")
    done = script(code)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1].startswith("KeyboardInterrupt")


# -- fork ------------------------------------------------------------------------------------


def in_child(fn: Callable[[], None]) -> None:
    """Runs `fn` in a forked child; fails with what it raised there."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12+ warns of a fork beside threads: that is what these tests are about
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            signal.alarm(int(TIMEOUT))
            fn()
            os.write(write, b"fine")
        except BaseException as error:
            os.write(write, repr(error).encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    said = b""
    while part := os.read(read, 4096):
        said += part
    os.close(read)
    os.waitpid(pid, 0)
    assert said.decode() == "fine", said.decode() or "the child hung"


def test_in_a_forked_child_every_call_raises_and_the_parent_goes_on() -> None:
    """B088, as far as memory goes."""
    with QueueManager() as manager:
        queue = Queue("q", manager)
        queue.add("n", 1)
        job = manager.pull("q")
        assert job is not None
        with Worker("other", lambda job: job.data, manager=manager) as worker:

            def child() -> None:
                for name, call in CALLS.items():
                    try:
                        call(manager, queue, job)
                    except ForkedManagerError:
                        continue
                    raise AssertionError(f"{name} did not raise")

            in_child(child)
            assert worker.is_running
            assert manager.push("other", 2).result(timeout=TIMEOUT) == 2
        assert manager.ack(job, 1).applied
        check(manager._state)


def test_in_a_forked_child_close_raises_and_does_not_hang() -> None:
    with QueueManager() as manager:
        manager.push("q")

        def child() -> None:
            with pytest.raises(ForkedManagerError):
                manager.close()

        in_child(child)
        assert manager.counts("q").waiting == 1


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_workers_and_listeners_that_a_child_inherits_raise_whatever_locks_were_held(
    kind: str,
) -> None:
    async def later(job: Job) -> Any:
        return job.data

    with QueueManager() as manager, QueueEvents("q", manager) as events:
        worker = Worker("q", later if kind == "loop" else lambda job: job.data, manager=manager)
        fresh = Worker("q", lambda job: job.data, manager=manager)
        iterator, walk = iter(events), aiter_of(events)

        async def step() -> object:
            return await walk.__anext__()

        calls: list[Callable[[], object]] = [
            worker.run,
            lambda: asyncio.run(worker.serve()),
            worker.start,
            worker.pause,
            worker.resume,
            lambda: worker.on("completed", print),
            lambda: worker.once("completed", print),
            lambda: worker.off("completed", print),
            fresh.start,
            fresh.run,
            lambda: events.on("completed", print),
            lambda: events.off("completed", print),
            lambda: events.lost,
            lambda: iter(events),
            lambda: next(iterator),
            lambda: asyncio.run(step()),
        ]

        def child() -> None:
            for number, call in enumerate(calls):
                with pytest.raises(ForkedManagerError):
                    call()
                    raise AssertionError(f"call {number} did not raise")
            assert not worker.is_running
            assert worker.close()
            events.close()
            events.close()

        with worker:
            inboxes = [inbox._lock for inbox in events._inboxes]
            held = {worker._lock, getattr(worker._crew, "_lock", worker._lock), events._lock}
            over, ready = threading.Event(), threading.Semaphore(0)

            def hold(lock: Any) -> None:
                with lock:
                    ready.release()
                    over.wait(TIMEOUT)

            holders = [threading.Thread(target=hold, args=(lock,)) for lock in {*held, *inboxes}]
            for holder in holders:
                holder.start()
                assert ready.acquire(timeout=TIMEOUT)
            try:
                in_child(child)
            finally:
                over.set()
                for holder in holders:
                    holder.join()
            assert manager.push("q", 2).result(timeout=TIMEOUT) == 2


def aiter_of(events: QueueEvents) -> Any:
    return events.__aiter__()


def test_a_forked_child_may_open_a_manager_of_its_own() -> None:
    """B088."""
    with QueueManager() as manager:
        manager.push("q", "parents")

        def child() -> None:
            with QueueManager() as own:
                job = own.push("q", "childs")
                with Worker("q", lambda job: job.data, manager=own):
                    assert job.result(timeout=TIMEOUT) == "childs"

        in_child(child)
        job = manager.pull("q")
        assert job is not None
        assert job.data == "parents"


def test_a_fork_while_other_threads_hold_the_locks_deadlocks_nobody() -> None:
    """B088: eight threads push and pull all the time, so some lock is always taken."""
    stop = threading.Event()
    with QueueManager(config=ManagerConfig(shards=1)) as manager:

        def busy() -> None:
            while not stop.is_set():
                manager.push("q", 1)
                job = manager.pull("q")
                if job is not None:
                    manager.ack(job)

        threads = [threading.Thread(target=busy, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()

        def child() -> None:
            for call in (lambda: manager.push("q"), lambda: manager.pull("q"), manager.counts):
                with pytest.raises(ForkedManagerError):
                    call()

        try:
            for _ in range(5):
                in_child(child)
        finally:
            stop.set()
        for thread in threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        check(manager._state)


def test_those_who_wait_in_the_parent_are_not_disturbed_by_a_fork() -> None:
    with QueueManager() as manager:
        jobs: list[Any] = []
        thread = threading.Thread(
            target=lambda: jobs.append(manager.pull("q", timeout=TIMEOUT)), daemon=True
        )
        thread.start()
        in_child(lambda: None)
        manager.push("q", 7)
        thread.join(TIMEOUT)
        assert [job.data for job in jobs] == [7]


@pytest.mark.slow
def test_a_forked_child_of_a_program_with_a_manager_exits_with_its_own_code() -> None:
    """The inherited manager's exit hook must neither hang nor complain in the child, which is told
    at the fork alone that it has no worker (B088)."""
    code = """
import logging, os, sys, warnings
from bunqueue_py import QueueManager, Worker
warnings.simplefilter("ignore", DeprecationWarning)
logging.basicConfig()
manager = QueueManager()
worker = Worker("q", lambda job: job.data, manager=manager).start()
assert manager.push("q", 1).result(timeout=10) == 1
pid = os.fork()
if pid == 0:
    sys.exit(5)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
assert manager.push("q", 2).result(timeout=10) == 2
sys.exit(6)
"""
    done = script(code)
    assert done.returncode == 6, done.stderr
    (warning,) = done.stderr.splitlines()
    assert "workers run in the parent only" in warning


# -- the default manager ---------------------------------------------------------------------


def works(code: str, **env: str) -> None:
    done = script(code, **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_a_queue_without_a_manager_uses_the_default_one() -> None:
    works("""
from bunqueue_py import Queue, Worker, get_default_manager
queue = Queue("q")
assert queue.manager is get_default_manager() is get_default_manager()
with Worker("q", lambda job: job.data + 1):
    assert queue.add("n", 1).result(timeout=10) == 2
""")


@pytest.mark.slow
def test_the_default_manager_is_one_however_many_threads_ask_first() -> None:
    works("""
import sys, threading
from bunqueue_py import get_default_manager
sys.setswitchinterval(1e-6)
found = []
barrier = threading.Barrier(16)
def ask():
    barrier.wait(10)
    found.append(get_default_manager())
threads = [threading.Thread(target=ask) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join(10)
assert len(found) == 16 and len(set(map(id, found))) == 1
""")


@pytest.mark.slow
def test_configure_chooses_the_default_manager_before_its_first_use_only() -> None:
    works("""
from bunqueue_py import BunqueueError, MemoryStorage, Queue, ValidationError, configure
try:
    configure(keep_completed=-1)
except ValidationError as error:
    assert "keep_completed" in str(error)
else:
    raise AssertionError("a bad field was taken")
try:
    configure(no_such_field=1)
except TypeError:
    pass
else:
    raise AssertionError("an unknown field was taken")
configure(MemoryStorage(), max_data_bytes=10)
queue = Queue("q")
try:
    queue.add("n", "x" * 100)
except ValueError as error:
    assert "max_data_bytes" in str(error)
else:
    raise AssertionError("the configuration had no effect")
try:
    configure(max_data_bytes=20)
except BunqueueError as error:
    assert "first use" in str(error)
else:
    raise AssertionError("configured after the first use")
""")


@pytest.mark.parametrize("storage", [":memory:", 3, object()])
def test_what_is_no_storage_is_refused(storage: Any) -> None:
    with pytest.raises(ValidationError, match="storage"):
        QueueManager(storage)
