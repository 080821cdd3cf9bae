"""Workers whose handlers run in processes. Each starts some, so most tests here are slow."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BatchOptions,
    BunqueueError,
    JobFailedError,
    ManagerConfig,
    PickleSerializer,
    Queue,
    QueueManager,
    Recycle,
    ValidationError,
    Worker,
)
from bunqueue_py.ops.query import check
from tests.fixtures import process_handlers as handlers
from tests.threads import patience
from tests.threads.patience import until

TIMEOUT = 6 * patience.TIMEOUT
"""A process takes seconds to start where others are busy."""

ROOT = Path(__file__).resolve().parents[2]
HANDLERS = {
    name: getattr(handlers, name)
    for name in (
        "double process_id about progress raise_it die spin until_cancelled forbidden unencodable "
        "coroutine slowly write_lines"
    ).split()
}


LONG = pytest.mark.skipif(os.environ.get("BUNQUEUE_SLOW") == "short", reason="the long form")


@pytest.fixture(params=["sqlite", pytest.param("memory", marks=LONG)])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueManager]:
    storage = None if request.param == "memory" else tmp_path / "jobs.db"
    with QueueManager(storage, config=ManagerConfig(shards=1)) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager, defaults={"backoff": Backoff.fixed(0)})


def worker(queue: Queue, **options: Any) -> Worker:
    return Worker(queue, HANDLERS, executor="process", **options)


@pytest.mark.slow
def test_a_process_runs_jobs_one_after_the_other_and_stays_warm(queue: Queue) -> None:
    with worker(queue):
        assert queue.add("double", 21).result(timeout=TIMEOUT) == 42
        ids = {queue.add("process_id").result(timeout=TIMEOUT) for _ in range(5)}
        assert len(ids) == 1
        assert ids != {os.getpid()}
        job = queue.add("about", {"a": 1}, group="g", tags=["x"], attempts=7)
        assert job.result(timeout=TIMEOUT) == ["about", {"a": 1}, 1, "g", ["x"], 7]
        assert queue.add("coroutine", 4).result(timeout=TIMEOUT) == 5
        said = queue.add("forbidden").result(timeout=TIMEOUT)
        assert "only the parent has the queue" in said
        queue.pause()
        broken = queue.add("double", 21)
        queue.manager._state.index[broken.id].data = b"{"  # type: ignore[attr-defined]
        queue.resume()
        with pytest.raises(JobFailedError) as caught:
            broken.result(timeout=TIMEOUT)
        assert caught.value.reason == "undecodable"


@pytest.mark.slow
def test_lines_that_a_process_logs_are_kept_with_level_and_in_order(queue: Queue) -> None:
    with worker(queue):
        job = queue.add("write_lines", 130)
        assert "level must be" in job.result(timeout=TIMEOUT)
        page = job.logs(offset=95, limit=10)
    assert page.total == 130
    assert [(line.level, line.text) for line in page.entries] == [
        ("warning" if n % 2 else "info", f"line {n}") for n in range(125, 130)
    ]


@pytest.mark.slow
def test_what_a_handler_in_a_process_raises_is_told_with_type_text_and_traceback(
    queue: Queue,
) -> None:
    failed: list[BaseException] = []
    with worker(queue, retry_on=ConnectionError) as busy:
        busy.on("failed", lambda job, error, will_retry: failed.append(error))
        ends = {}
        for data in ("peculiar", "unrecoverable", "exit", "connection"):
            job = queue.add("raise_it", data, attempts=2)
            with pytest.raises(JobFailedError) as caught:
                job.result(timeout=TIMEOUT)
            ends[data] = (caught.value.reason, caught.value.error, job.refresh().attempts_made)
            assert any("raise_it" in line for line in caught.value.stacktrace)
        with pytest.raises(JobFailedError, match=r"\$\.a") as caught:
            queue.add("unencodable", attempts=5).result(timeout=TIMEOUT)
        assert caught.value.reason == "unrecoverable"
        delayed = queue.add("raise_it", "delay", attempts=1)
        until(lambda: delayed.refresh().state == "delayed", "the job is put off")
        assert delayed.attempts_made == 0
    assert ends == {
        "peculiar": ("unrecoverable", "Peculiar: 1 and 2", 1),
        "unrecoverable": ("unrecoverable", "UnrecoverableError: the account is closed", 1),
        "exit": ("unrecoverable", "SystemExit: 3", 1),
        "connection": ("max_attempts_exceeded", "ConnectionError: no route", 2),
    }
    assert [type(e).__name__ for e in failed][-2:] == ["ConnectionError", "HandlerError"]


@pytest.mark.slow
def test_progress_data_and_locks_go_through_the_pipe(queue: Queue) -> None:
    with worker(queue):
        job = queue.add("progress", 5)
        assert job.result(timeout=TIMEOUT) is True
        job.refresh()
        assert (job.progress, job.progress_message, job.data) == (99.99, "9999", {"seen": 5})


@pytest.mark.slow
def test_a_process_that_dies_fails_that_attempt_and_is_replaced(queue: Queue) -> None:
    with worker(queue):
        job = queue.add("die", attempts=2)
        assert job.result(timeout=TIMEOUT) == "second life"
        assert job.refresh().attempts_made == 1
        last = queue.add("die", attempts=1)
        with pytest.raises(JobFailedError, match="signal 9") as caught:
            last.result(timeout=TIMEOUT)
        assert caught.value.reason == "worker_lost"


@pytest.mark.slow
def test_a_process_past_the_timeout_of_its_job_is_killed(queue: Queue) -> None:
    with worker(queue):
        pid = queue.add("process_id").result(timeout=TIMEOUT)
        with pytest.raises(JobFailedError) as caught:
            queue.add("spin", timeout=0.05, attempts=1).result(timeout=TIMEOUT)
        assert caught.value.reason == "timeout"
        until(lambda: not is_alive(pid), "the process is gone")
        assert queue.add("process_id").result(timeout=TIMEOUT) != pid


@pytest.mark.slow
def test_a_handler_in_a_process_is_told_of_its_cancellation(queue: Queue, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with worker(queue) as busy:
        job = queue.add("until_cancelled", str(diary))
        until(diary.exists, "the handler begins")
        assert busy.cancel(job)
        with pytest.raises(JobFailedError):
            job.result(timeout=TIMEOUT)
        until(lambda: diary.read_text().split() == ["begun", "cancelled"], "it is told")
        assert queue.add("double", 1).result(timeout=TIMEOUT) == 2


@pytest.mark.slow
def test_a_process_whose_run_was_taken_away_is_killed(manager: QueueManager, queue: Queue) -> None:
    with worker(queue, name="mine"):
        pid = queue.add("process_id").result(timeout=TIMEOUT)
        job = queue.add("spin")
        until(lambda: job.refresh().state == "active", "the handler begins")
        queue.pause()
        assert manager.release_owner("mine") == 1
        until(lambda: not is_alive(pid), "the process is gone")
        assert (job.refresh().state, job.attempts_made) == ("waiting", 0)


@pytest.mark.slow
def test_close_kills_what_does_not_return_and_gives_it_back_uncharged(
    queue: Queue, tmp_path: Path
) -> None:
    busy = worker(queue, concurrency=2).start()
    told = queue.add("until_cancelled", str(tmp_path / "diary"))
    until((tmp_path / "diary").exists, "the handler begins")
    job = queue.add("spin")
    until(lambda: job.refresh().state == "active", "the handler begins")
    assert not busy.close(timeout=0.5)
    assert busy.unfinished == [job.id]
    assert (job.refresh().state, job.attempts_made) == ("waiting", 0)
    # one that looks returns by itself, and its result counts
    assert told.result(timeout=TIMEOUT) == "returned"
    assert (tmp_path / "diary").read_text().split() == ["begun", "closing"]


@pytest.mark.slow
def test_a_process_is_replaced_after_so_many_jobs_or_so_much_memory(queue: Queue) -> None:
    for recycle, lives in ((Recycle(jobs=2), 3), (Recycle(memory_mib=1), 5)):
        with worker(queue, recycle=recycle):
            ids = [queue.add("process_id").result(timeout=TIMEOUT) for _ in range(5)]
        assert len(set(ids)) == lives


@pytest.mark.slow
def test_values_of_a_pickle_serializer_come_through_and_its_exceptions_whole() -> None:
    config = ManagerConfig(serializer=PickleSerializer(allow_unsafe=True))
    failed: list[BaseException] = []
    with QueueManager(config=config) as manager:
        queue = Queue("q", manager)
        with worker(queue) as busy:
            busy.on("failed", lambda job, error, will_retry: failed.append(error))
            assert queue.add("double", (1, {2})).result(timeout=TIMEOUT) == (1, {2}, 1, {2})
            with pytest.raises(JobFailedError):
                queue.add("raise_it", attempts=1).result(timeout=TIMEOUT)
    assert isinstance(failed[0], ConnectionError)


@pytest.mark.slow
def test_a_handler_that_cannot_be_imported_stops_the_worker_and_fails_no_job(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.add("n", attempts=1)
    lost = Worker(queue, "tests.fixtures.process_handlers:no_such_thing", executor="process")
    with pytest.raises(BunqueueError, match="no_such_thing"):
        lost.run()
    assert lost.is_closed
    assert (job.refresh().state, job.attempts_made) == ("waiting", 0)
    assert "AttributeError" in caplog.text


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SCRIPT = """
from bunqueue_py import Queue, QueueManager, Worker

manager = QueueManager({path!r})
queue = Queue("q", manager)

def square(job):
    return job.data ** 2

worker = Worker(queue, square, executor="process", concurrency=2).start()

if __name__ == "__main__":
    print([queue.add("n", n).result(timeout=20) for n in range(4)])
    {end}
"""


def run_script(tmp_path: Path, end: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(path=str(tmp_path / "jobs.db"), end=end))
    return subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize("end", ["manager.close()", "pass", "raise SystemExit(0)"])
def test_a_child_that_imports_the_module_which_opens_the_manager_gets_an_inert_one(
    tmp_path: Path, end: str
) -> None:
    """The module opens the file and starts the worker, in the child too; and nobody has to close
    anything for the interpreter to end."""
    run = run_script(tmp_path, end)
    assert (run.returncode, run.stdout) == (0, "[0, 1, 4, 9]\n"), run.stderr
    assert run.stderr == ""


@pytest.mark.slow
def test_a_child_that_uses_the_manager_at_import_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from bunqueue_py import BunqueueError, Queue, QueueManager, Worker

        manager = QueueManager()
        queue = Queue("q", manager)
        job = queue.add("n", 1)

        def handler(job):
            return job.data

        if __name__ == "__main__":
            try:
                Worker(queue, handler, executor="process").run()
            except BunqueueError as error:
                print(error)
            manager.close()
        """)
    )
    run = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 'if __name__ == "__main__"' in run.stderr
    assert "ForkedManagerError" in run.stderr
    assert "die before they are ready" in run.stdout


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handler", [lambda job: None, "nothing", "", 5, {"a": lambda job: None}, {}]
)
def test_a_handler_that_no_process_could_import_is_refused(handler: Any) -> None:
    with QueueManager() as manager, pytest.raises(ValidationError, match="handler"):
        Worker("q", handler, manager=manager, executor="process")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("executor", "fiber"),
        ("recycle", Recycle(jobs=0)),
        ("recycle", Recycle(memory_mib=10**7)),
        ("recycle", 5),
        ("batch", BatchOptions(1)),
    ],
)
def test_options_of_process_workers_are_checked(option: str, value: Any) -> None:
    options = {"executor": "process", option: value}
    with QueueManager() as manager, pytest.raises(ValidationError, match=option):
        Worker("q", handlers.double, manager=manager, **options)


def test_recycle_without_processes_is_refused() -> None:
    with QueueManager() as manager, pytest.raises(ValidationError, match="recycle"):
        Worker("q", lambda job: None, manager=manager, recycle=Recycle(jobs=5))


def test_a_serializer_that_a_process_cannot_make_is_refused() -> None:
    class Own:
        name = "own"

        def dumps(self, value: object) -> bytes:
            return b""

        def loads(self, data: bytes) -> Any:
            return None

    config = ManagerConfig(serializer=Own())
    with QueueManager(config=config) as manager, pytest.raises(ValidationError, match="serializer"):
        Worker("q", handlers.double, manager=manager, executor="process")
