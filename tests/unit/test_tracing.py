"""Spans for adding and processing: who added a job is the parent of who runs it."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bunqueue_py import (
    BatchOptions,
    DelayJob,
    FlowNode,
    FlowProducer,
    Job,
    JobFailedError,
    JobSpec,
    ManagerConfig,
    Queue,
    QueueManager,
    RateLimited,
    UnrecoverableError,
    ValidationError,
    Worker,
)
from bunqueue_py.model.job_trace import TRACE
from bunqueue_py.testing import VirtualClock
from tests.fixtures import process_handlers


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def traced(provider: TracerProvider, storage: Any = None) -> QueueManager:
    return QueueManager(storage, config=ManagerConfig(tracing=provider))


def tree(exporter: InMemorySpanExporter) -> str:
    """The spans as an indented list, children under their parents."""
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def below(parent: int | None, depth: int) -> list[str]:
        lines = []
        for span in spans:
            if (span.parent.span_id if span.parent else None) == parent:
                failed = " (ERROR)" if span.status.status_code is trace.StatusCode.ERROR else ""
                lines.append(f"{'  ' * depth}{span.name} [{span.kind.name}]{failed}")
                lines += below(span.context.span_id, depth + 1)
        return lines

    return "\n".join(below(None, 0))


def serve(queue: Queue, handler: Callable[[Job], Any]) -> None:
    with Worker(queue, handler):
        queue.wait_until_empty(10)


def test_the_run_of_a_job_is_a_child_of_its_adding_and_so_on(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with traced(provider) as manager:
        orders, mails = Queue("orders", manager), Queue("mails", manager)
        with provider.get_tracer("app").start_as_current_span("request"):
            orders.add("place", {"secret": "do-not-show"})
        serve(orders, lambda job: mails.add("receipt").id)
        serve(mails, lambda job: None)
    assert tree(exporter).splitlines() == [
        "request [INTERNAL]",
        "  add orders [PRODUCER]",
        "    process orders [CONSUMER]",
        "      add mails [PRODUCER]",
        "        process mails [CONSUMER]",
    ]
    assert "do-not-show" not in "".join(s.to_json() for s in exporter.get_finished_spans())


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_spans_say_which_job_and_attempt_they_are_about(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    def handler(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("no luck")

    with traced(provider) as manager:
        queue = Queue("q", manager)
        job = queue.add("sum", [1], attempts=2, backoff=0.001)
        serve(queue, handler)
    (added,), runs = named(exporter, "add q"), named(exporter, "process q")
    assert added.attributes is not None
    assert added.attributes["messaging.message.id"] == job.id
    assert added.attributes["messaging.destination.name"] == "q"
    assert added.attributes["messaging.system"] == "bunqueue_py"
    attempts = [span.attributes and span.attributes["bunqueue.job.attempt"] for span in runs]
    assert attempts == [1, 2]
    assert runs[0].status.status_code is trace.StatusCode.ERROR
    assert runs[0].events[0].name == "exception"
    assert runs[1].status.is_ok
    assert all(span.parent and span.parent.span_id == added.context.span_id for span in runs)


def test_a_run_that_is_given_back_is_no_failure(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    turns: list[Exception] = [DelayJob(0.001), RateLimited(0.001), ValueError("no luck")]

    def handler(job: Job) -> None:
        if turns:
            raise turns.pop(0)

    with traced(provider) as manager:
        queue = Queue("q", manager)
        queue.add("sum", attempts=2, backoff=0.001)
        serve(queue, handler)
    seen = [
        (span.status.status_code, (span.attributes or {}).get("bunqueue.job.given_back"))
        for span in named(exporter, "process q")
    ]
    unset, error = trace.StatusCode.UNSET, trace.StatusCode.ERROR
    assert seen == [(unset, "DelayJob"), (unset, "RateLimited"), (error, None), (unset, None)]


def test_the_jobs_of_a_batch_share_one_span(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with traced(provider) as manager:
        queue = Queue("q", manager)
        specs = [JobSpec("a", 1, priority=3), ("b", 2), JobSpec("c", tags=["t"], group="g")]
        jobs = queue.add_bulk(specs)
        assert jobs[0].priority == 3
        assert (jobs[2].tags, jobs[2].group) == (("t",), "g")
        assert specs[0].options == {"priority": 3}, "what was given is as it was"  # type: ignore[union-attr]
        serve(queue, lambda job: None)
    (added,) = named(exporter, "add q")
    assert added.attributes is not None
    assert added.attributes["messaging.batch.message_count"] == 3
    runs = named(exporter, "process q")
    assert len(runs) == 3
    assert {span.parent and span.parent.span_id for span in runs} == {added.context.span_id}


def test_coroutines_and_mappings_of_them_are_traced_with_what_they_call(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    tracer = provider.get_tracer("app")

    async def later(job: Job) -> None:
        await asyncio.sleep(0)
        with tracer.start_as_current_span(f"inside {job.name}"):
            if job.name == "bad":
                raise ValueError

    def plain(job: Job) -> None:
        with tracer.start_as_current_span(f"inside {job.name}"):
            pass

    for number, handler in enumerate((later, {"*": later}, {"plain": plain, "*": later})):
        with traced(provider) as manager:
            queue = Queue(f"q{number}", manager)
            for name in ("plain", "well", "bad"):
                queue.add(name, attempts=1)
            serve(queue, handler)  # type: ignore[arg-type]
        assert tree(exporter).splitlines() == [
            line
            for name in ("plain", "well", "bad")
            for line in (
                f"add q{number} [PRODUCER]",
                f"  process q{number} [CONSUMER]" + " (ERROR)" * (name == "bad"),
                f"    inside {name} [INTERNAL]" + " (ERROR)" * (name == "bad"),
            )
        ]
        exporter.clear()


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_the_run_of_a_batch_is_one_span_that_links_to_each_adding(
    provider: TracerProvider, exporter: InMemorySpanExporter, kind: str
) -> None:
    def plain(jobs: list[Job]) -> None:
        assert trace.get_current_span().is_recording()

    async def coroutine(jobs: list[Job]) -> None:
        plain(jobs)

    with traced(provider) as manager:
        queue = Queue("q", manager)
        for n in range(3):
            queue.add("n", n)
        handler: Any = plain if kind == "plain" else coroutine
        with Worker(queue, handler, batch=BatchOptions(3)):
            queue.wait_until_empty(10)
        assert queue.counts().completed == 3
    (run,) = named(exporter, "process q")
    assert run.attributes is not None
    assert run.attributes["messaging.batch.message_count"] == 3
    added = {span.context.span_id for span in named(exporter, "add q")}
    assert {link.context.span_id for link in run.links} == added
    assert len(added) == 3


def test_what_is_invalid_is_refused_as_ever_and_its_span_says_so(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with traced(provider) as manager:
        queue = Queue("q", manager)
        with pytest.raises(ValidationError, match="priority"):
            queue.add("x", priority="high")  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match=r"jobs\[1\]"):
            queue.add_bulk([("a", 1), "nonsense"])  # type: ignore[list-item]
        assert queue.counts().total == 0
    assert all(not span.status.is_ok for span in exporter.get_finished_spans())


def test_the_context_survives_a_restart(
    provider: TracerProvider, exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    with traced(provider, path) as manager:
        Queue("q", manager).add("x", custom_id="c", delay=0.001)
    with traced(provider, path) as manager:
        serve(Queue("q", manager), lambda job: None)
    (added,), (run,) = named(exporter, "add q"), named(exporter, "process q")
    assert run.parent is not None
    assert run.parent.span_id == added.context.span_id
    assert run.context.trace_id == added.context.trace_id


def test_a_job_that_was_added_untraced_begins_a_trace_of_its_own(
    provider: TracerProvider, exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    with QueueManager(path) as manager:
        manager.push("q")
        manager.push("q", name="odd", **{TRACE: "[not json"})  # type: ignore[arg-type]
    with traced(provider, path) as manager:
        serve(Queue("q", manager), lambda job: None)
    runs = named(exporter, "process q")
    assert [span.parent for span in runs] == [None, None]


def test_coroutines_and_routes_of_them_have_their_spans_too(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    tracer = provider.get_tracer("app")

    async def place(job: Job) -> None:
        await asyncio.sleep(0)
        with tracer.start_as_current_span(f"inside {job.data}"):
            await asyncio.sleep(0)

    async def refuse(job: Job) -> None:
        await asyncio.sleep(0)
        raise UnrecoverableError("no")

    with traced(provider) as manager:
        queue = Queue("q", manager)
        with tracer.start_as_current_span("request"):
            for n in range(3):
                queue.add("place", n)
            queue.add("refuse")
        with Worker(queue, {"place": place, "refuse": refuse}, concurrency=4):
            queue.wait_until_empty(10)
        with tracer.start_as_current_span("alone"):
            queue.add("place", "alone")
        serve(queue, place)
    lines = tree(exporter).splitlines()
    assert lines[0] == "request [INTERNAL]"
    for n in range(3):
        assert f"      inside {n} [INTERNAL]" in lines, "below the run of its own job"
    for i, line in enumerate(lines):
        if "inside" in line:
            assert lines[i - 1] == "    process q [CONSUMER]"
    assert "    process q [CONSUMER] (ERROR)" in lines
    assert lines[-4:] == [
        "alone [INTERNAL]",
        "  add q [PRODUCER]",
        "    process q [CONSUMER]",
        "      inside alone [INTERNAL]",
    ]


def test_a_flow_is_one_span_and_its_runs_are_below_it(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with traced(provider) as manager:
        queue, flows = Queue("parts", manager), FlowProducer(manager)
        parts = [FlowNode("parts", "part", n, priority=n) for n in range(2)]
        node = FlowNode("whole", "bind", children=parts)
        flows.add(node)
        assert "trace context" not in node.options | parts[0].options, "what was given stays so"

        def handler(job: Job) -> None:
            if job.name == "part" and job.data == 1:
                job.add_child(FlowNode("parts", "crumb", children=[FlowNode("parts", "dust")]))

        with Worker(queue, handler), Worker(Queue("whole", manager), handler):
            Queue("whole", manager).wait_until_empty(10)
            queue.wait_until_empty(10)
        with pytest.raises(ValidationError):
            flows.add("nonsense")  # type: ignore[arg-type]
    (flow,) = named(exporter, "add flow whole")
    assert flow.attributes is not None
    assert flow.attributes["messaging.batch.message_count"] == 3
    below = [
        span
        for span in exporter.get_finished_spans()
        if span.parent and span.parent.span_id == flow.context.span_id
    ]
    assert sorted(span.name for span in below) == ["process parts"] * 2 + ["process whole"]
    (child,) = named(exporter, "add parts")
    assert child.parent is not None
    assert child.parent.span_id in {span.context.span_id for span in below}
    runs = named(exporter, "process parts")
    assert [run.parent and run.parent.span_id for run in runs].count(child.context.span_id) == 2


def test_what_a_coroutine_adds_on_a_file_is_below_its_span(
    provider: TracerProvider, exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    async def main(manager: QueueManager) -> None:
        with provider.get_tracer("app").start_as_current_span("request"):
            await manager.aio.push("q", 1)

    with traced(provider, tmp_path / "jobs.db") as manager:
        asyncio.run(main(manager))
    assert tree(exporter).splitlines() == ["request [INTERNAL]", "  add q [PRODUCER]"]


@pytest.mark.slow
def test_a_run_in_a_process_has_its_span_and_hands_it_on(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    routes = {"span": process_handlers.span_under_way, "raise": process_handlers.raise_it}
    with traced(provider) as manager:
        queue = Queue("q", manager)
        good, bad = queue.add("span"), queue.add("raise", attempts=1)
        with Worker(queue, routes, executor="process"):
            trace_id, span_id = good.result(60)
            with pytest.raises(JobFailedError):
                bad.result(60)
    fine, failed = named(exporter, "process q")
    assert (fine.context.trace_id, fine.context.span_id) == (trace_id, span_id)
    assert [fine.status.status_code, failed.status.status_code] == [
        trace.StatusCode.UNSET,
        trace.StatusCode.ERROR,
    ]
    adds = {span.context.span_id for span in named(exporter, "add q")}
    assert {fine.parent and fine.parent.span_id, failed.parent and failed.parent.span_id} == adds
    assert failed.events[0].name == "exception"


def test_an_untraced_manager_has_nothing_wrapped() -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        assert "push" not in vars(manager)
        assert manager.push("q")._side is None


def test_nobody_gives_a_job_a_context_by_a_keyword() -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        with pytest.raises(TypeError, match="unknown job option 'trace'"):
            manager.push("q", trace="x")  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            manager.push("q", **{TRACE: "x" * 5000})  # type: ignore[arg-type]


def test_a_provider_is_asked_for_by_what_it_is() -> None:
    with pytest.raises(ValidationError, match="tracing must be True, False or an OpenTelemetry"):
        ManagerConfig(tracing="yes")


def test_without_its_extra_tracing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bunqueue_py.observe.tracing", raising=False)
    monkeypatch.delattr("bunqueue_py.observe.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install 'bunqueue-py\[otel\]'"):
        QueueManager(config=ManagerConfig(tracing=True))
