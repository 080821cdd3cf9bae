"""What goes over the pipe to the processes of a worker: batches, families, logs, traces."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BatchOptions,
    FlowNode,
    FlowProducer,
    JobFailedError,
    ManagerConfig,
    Queue,
    QueueManager,
    Recycle,
    Worker,
)
from bunqueue_py.ops.query import check
from tests.fixtures import process_handlers as handlers
from tests.threads import patience
from tests.threads.patience import until

TIMEOUT = 6 * patience.TIMEOUT
"""A process takes seconds to start where others are busy."""

pytestmark = pytest.mark.slow


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[QueueManager]:
    with QueueManager(tmp_path / "jobs.db", config=ManagerConfig(shards=1)) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager, defaults={"backoff": Backoff.fixed(0)})


def batches(queue: Queue, size: int, handler: Any = handlers.batch, **options: Any) -> Worker:
    batch = BatchOptions(size, max_wait=options.pop("max_wait", 0))
    return Worker(queue, handler, executor="process", batch=batch, **options)


def test_a_batch_is_one_call_in_a_process_and_its_members_end_one_by_one(queue: Queue) -> None:
    jobs = queue.add_bulk([("n", data) for data in ("a", "bad", "object", (1, {2}))])
    with batches(queue, 4):
        assert jobs[0].result(timeout=TIMEOUT)[:2] == ["a", 4]
        assert jobs[3].result(timeout=TIMEOUT)[0] == (1, {2})
        for job, reason in ((jobs[1], "max_attempts_exceeded"), (jobs[2], "unrecoverable")):
            with pytest.raises(JobFailedError) as caught:
                job.result(timeout=TIMEOUT)
            assert caught.value.reason == reason
        job = jobs[0].refresh()
        assert (job.progress, job.progress_message) == (50, "a")
        assert [entry.text for entry in queue.logs(job.id).entries] == ["one of 4"]
        (info,) = queue.manager.workers.list()
        # the bad one was run three times
        assert (info.processed, info.failed, info.active) == (2, 4, 0)


def test_what_a_batch_in_a_process_raises_fails_all_of_it_and_nonsense_for_good(
    queue: Queue,
) -> None:
    with batches(queue, 2):
        for data, reason, text in (
            ("raise", "max_attempts_exceeded", "ConnectionError: all of them"),
            ("nonsense", "unrecoverable", "one result for each of its 2"),
        ):
            for job in queue.add_bulk([("n", data)] * 2):
                with pytest.raises(JobFailedError) as caught:
                    job.result(timeout=TIMEOUT)
                assert (caught.value.reason, text in caught.value.error) == (reason, True)
        assert queue.add("n", 1).result(timeout=TIMEOUT)[:2] == [1, 1]


def test_a_process_that_dies_under_a_batch_fails_that_attempt_of_each(queue: Queue) -> None:
    jobs = [queue.add("n", data, attempts=1) for data in ("die", "well")]
    with batches(queue, 2):
        for job in jobs:
            with pytest.raises(JobFailedError, match="signal 9") as caught:
                job.result(timeout=TIMEOUT)
            assert caught.value.reason == "worker_lost"
        assert queue.add("n", 1).result(timeout=TIMEOUT)[:2] == [1, 1]


def test_a_batch_that_is_killed_for_one_goes_back_uncharged_but_for_that_one(
    queue: Queue,
) -> None:
    late = queue.add("n", "wait", timeout=0.1, attempts=1)
    other = queue.add("n", "well", attempts=1)
    with batches(queue, 2):
        with pytest.raises(JobFailedError) as caught:
            late.result(timeout=TIMEOUT)
        assert caught.value.reason == "timeout"
        assert other.result(timeout=TIMEOUT)[:2] == ["well", 1]
    assert other.refresh().attempts_made == 0


def test_closing_gives_a_batch_in_a_process_back_uncharged(queue: Queue) -> None:
    jobs = [queue.add("n", data, attempts=1) for data in ("wait", "well")]
    worker = batches(queue, 2).start()
    until(lambda: jobs[0].refresh().progress == 50, "the batch begins")
    # one that looks returns by itself, and its results count
    assert worker.close(timeout=TIMEOUT)
    assert jobs[0].result(timeout=0) == "closing"
    with Worker(queue, handlers.spin, executor="process") as stuck:
        job = queue.add("n")
        until(lambda: job.refresh().state == "active", "it begins")
        assert not stuck.close(force=True)
    assert (job.refresh().state, job.attempts_made) == ("waiting", 0)


def test_a_member_that_is_cancelled_is_told_and_the_others_go_on(queue: Queue) -> None:
    jobs = [queue.add("n", data, attempts=1) for data in ("wait", "well")]
    with batches(queue, 2) as worker:
        until(lambda: jobs[0].refresh().progress == 50, "the batch begins")
        assert worker.cancel(jobs[0])
        assert jobs[1].result(timeout=TIMEOUT)[1] == 2
    assert jobs[0].refresh().failed_reason == "cancelled"


def test_batches_of_coroutines_run_in_processes_too_and_wear_them_out(queue: Queue) -> None:
    queue.add_bulk([("n", n) for n in range(8)])
    with batches(queue, 2, handlers.batch_of_coroutines, recycle=Recycle(jobs=4)):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert sorted(job.return_value for job in queue.get_jobs("completed")) == [
        2 * n for n in range(8)
    ]


def test_a_handler_in_a_process_reads_what_its_children_returned(
    manager: QueueManager, queue: Queue
) -> None:
    with Worker(queue, handlers.family, executor="process"):
        node = FlowNode(
            "q",
            "parent",
            children=[
                FlowNode("q", "child", 1),
                FlowNode("q", "child", 2),
                FlowNode("q", "child", "fails", attempts=1, on_failure="ignore_dependency"),
                FlowNode("q", "child", "fails", attempts=1, on_failure="continue_parent"),
            ],
        )
        added = FlowProducer(manager).add(node)
        result = added.job.result(timeout=TIMEOUT)
    assert result["children"] in (True, 4)
    assert result["ignored"] == ["ValueError: lost"]
    assert result["failed"] == ["ValueError: lost"]
    assert result["left"] == []
    assert [True, (1, {1, 2})] in result["values"]
    assert added.children[0].job.refresh().parent_id == added.job.id


def test_a_handler_in_a_process_may_wait_for_children(queue: Queue, tmp_path: Path) -> None:
    with Worker(queue, handlers.park, executor="process", concurrency=2):
        parent = queue.add("parent", str(tmp_path / "begun"), attempts=1)
        until((tmp_path / "begun").exists, "it runs")
        parent.add_child(FlowNode("q", "child"))
        assert parent.result(timeout=TIMEOUT) == ["grown"]
    assert parent.refresh().attempts_made == 0


@pytest.mark.parametrize("handler", [handlers.leaky, handlers.leaky_coroutine])
def test_no_context_variable_goes_on_to_the_next_job_of_a_process(
    queue: Queue, handler: Any
) -> None:
    """B143."""
    with Worker(queue, handler, executor="process"):
        assert {queue.add("n").result(timeout=TIMEOUT) for _ in range(3)} == {"nothing"}


def test_a_process_that_dies_between_two_jobs_costs_neither_an_attempt(queue: Queue) -> None:
    with Worker(queue, handlers.process_id, executor="process"):
        pid = queue.add("n").result(timeout=TIMEOUT)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not _runs(pid), "it is gone")
        job = queue.add("n", attempts=1)
        assert job.result(timeout=TIMEOUT) != pid
    assert job.refresh().attempts_made == 0


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_a_process_that_dies_is_noticed_though_a_child_of_its_own_lives(
    queue: Queue, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    handler = handlers.die_and_leave_a_child
    with Worker(queue, handler, executor="process", lock_duration=0.5):
        job = queue.add("n", str(path), attempts=2)
        try:
            assert job.result(timeout=TIMEOUT) == "second life"
        finally:
            os.kill(int(path.read_text()), signal.SIGKILL)
    assert job.refresh().attempts_made == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals")
def test_close_and_cancel_do_not_wait_for_a_process_that_reads_nothing(queue: Queue) -> None:
    with Worker(queue, handlers.process_id, executor="process") as worker:
        pid = queue.add("n").result(timeout=TIMEOUT)
        os.kill(pid, signal.SIGSTOP)
        # more than the pipe holds, so that its thread waits within the call that sends it
        first = queue.add("n", "x" * 4_000_000, attempts=1)
        until(lambda: first.refresh().state == "active", "it is handed out")
        assert worker.cancel(first)
        assert first.refresh().failed_reason == "cancelled"
        assert not worker.close(timeout=0.3)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Until its last thread has ended: only then is its end of the pipe closed."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("handler", [handlers.trace_id, handlers.trace_id_later])
def test_a_trace_goes_on_in_the_process_of_its_handler(handler: Any) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with QueueManager(config=ManagerConfig(tracing=provider)) as manager:
        queue = Queue("q", manager)
        with Worker(queue, {"n": handler, "bad": handlers.raise_it}, executor="process"):
            said = queue.add("n").result(timeout=TIMEOUT)
            with pytest.raises(JobFailedError):
                queue.add("bad", attempts=1).result(timeout=TIMEOUT)
    spans = {span.name: span for span in exporter.get_finished_spans()[:2]}
    added, ran = spans["add q"], spans["process q"]
    assert ran.parent is not None
    assert added.context is not None
    assert ran.parent.span_id == added.context.span_id
    assert said == format(added.context.trace_id, "x")
    failed = exporter.get_finished_spans()[-1]
    assert (failed.name, failed.status.is_ok) == ("process q", False)
