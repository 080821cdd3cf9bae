"""However a handler ends, on threads, as a coroutine, or in a process: its job has failed, with a
reason and a bounded text, and the jobs behind it run. B079, B068, B143."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bunqueue_py import JobFailedError, Queue, QueueManager, ValidationError, Worker
from tests.fixtures.process_handlers import end_badly, end_badly_later
from tests.threads.patience import TIMEOUT

ENDINGS = {
    "SystemExit": ("max_attempts_exceeded", "SystemExit"),
    "KeyboardInterrupt": ("max_attempts_exceeded", "KeyboardInterrupt"),
    "GeneratorExit": ("max_attempts_exceeded", "GeneratorExit"),
    "CancelledError": ("max_attempts_exceeded", "CancelledError"),
    "StopIteration": ("max_attempts_exceeded", "StopIteration"),
    "Mute": ("max_attempts_exceeded", "__str__ raised RuntimeError"),
    "group": ("max_attempts_exceeded", "many"),
    "deep": ("max_attempts_exceeded", "the bottom"),
    "unencodable": ("unrecoverable", r"$.a"),
}
KINDS: dict[str, dict[str, Any]] = {
    "threads": {"handler": end_badly},
    "coroutines": {"handler": end_badly_later},
    "both": {"handler": {"n": end_badly, "other": end_badly_later}},
    "processes": {"handler": end_badly, "executor": "process"},
    "coroutines in processes": {"handler": end_badly_later, "executor": "process"},
}
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if "processes" in kind]


@pytest.mark.parametrize("kind", ["threads", "coroutines", "both", *SLOW])
def test_a_job_whose_handler_ends_badly_has_failed_and_those_behind_it_run(kind: str) -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        with Worker(queue, **KINDS[kind]) as worker:
            for ending in ENDINGS:
                bad = queue.add("n", ending, attempts=1)
                behind = queue.add_bulk([("n", "well")] * 3)
                with pytest.raises(JobFailedError) as caught:
                    bad.result(timeout=TIMEOUT)
                assert (caught.value.reason, ending) == (ENDINGS[ending][0], ending)
                assert ENDINGS[ending][1] in caught.value.error
                assert len(caught.value.error) <= 8_192
                assert 1 <= len(caught.value.stacktrace) <= 10
                assert {job.result(timeout=TIMEOUT) for job in behind} == {"well"}
            if kind != "processes":  # which run it
                with pytest.raises(JobFailedError, match="async def"):
                    queue.add("n", "coroutine").result(timeout=TIMEOUT)
            with pytest.raises(JobFailedError, match="no handler for jobs named 'odd'"):
                executor = KINDS[kind].get("executor", "thread")
                with Worker("other", {"n": end_badly}, manager=manager, executor=executor):
                    manager.push("other", name="odd").result(timeout=TIMEOUT)
            assert worker.is_running


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("concurrency", [0, 10**6, 1.5, True, "4"])
def test_a_worker_of_any_kind_refuses_a_concurrency_out_of_bounds(
    kind: str, concurrency: Any
) -> None:
    with QueueManager() as manager, pytest.raises(ValidationError, match="concurrency"):
        Worker("q", manager=manager, concurrency=concurrency, **KINDS[kind])


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("handler", [5, None, "nothing", {}, {"a": 5}, {1: end_badly}, [end_badly]])
def test_what_is_no_handler_is_refused_by_any_kind(executor: Any, handler: Any) -> None:
    with QueueManager() as manager, pytest.raises(ValidationError, match="handler"):
        Worker("q", handler, manager=manager, executor=executor)
    assert not [thread.name for thread in threading.enumerate() if "bunqueue" in thread.name]
