"""Spans for adding and processing jobs: the one module that imports opentelemetry (extra `otel`).

The context of whoever adds a job travels in the job, beside its data, and on a file over restarts.
Only a manager that is asked to trace has its calls replaced; the others pay nothing.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from typing import Any

from ..errors import DelayJob, RateLimited, WaitForChildren
from ..model.flow_node import FlowNode, FlowPlan
from ..model.job_trace import MAX_TRACE, TRACE
from ..model.options import JobSpec

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        "ManagerConfig(tracing=...) needs opentelemetry: pip install 'bunqueue-py[otel]'"
    ) from error

SYSTEM = "bunqueue_py"


def attach(manager: Any, provider: Any) -> None:
    """Has that manager's jobs traced. `provider`: a `TracerProvider`; True for the global one."""
    given = None if provider is True else provider
    tracer = trace.get_tracer(SYSTEM, tracer_provider=given)
    manager.push = _push(tracer, manager.push)
    manager.push_batch = _push_batch(tracer, manager.push_batch)
    manager.add_flows = _add_flows(tracer, manager.add_flows)
    manager.add_child = _add_child(tracer, manager.add_child)
    manager.backend.instrument = _Instrument(tracer)
    manager.backend.child_instrument = f"{__name__}:in_process"
    manager.backend.trace_carrier = _carried


def _attributes(queue: Any, operation: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": str(getattr(queue, "name", queue)),
    }


def _carried() -> str | None:
    """The current context as text; with its baggage only if that is short."""
    for inject in (propagate.inject, TraceContextTextMapPropagator().inject):
        carrier: dict[str, str] = {}
        inject(carrier)
        text = json.dumps(carrier, separators=(",", ":"))
        if carrier and len(text) <= MAX_TRACE:
            return text
    return None


def _push(tracer: Tracer, call: Callable[..., Any]) -> Callable[..., Any]:
    def push(queue: Any, data: Any = None, *, name: str = "default", **options: Any) -> Any:
        attributes = _attributes(queue, "add", "send")
        span_name = f"add {attributes['messaging.destination.name']}"
        with tracer.start_as_current_span(
            span_name, kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carried = _carried()
            if carried is not None:
                options[TRACE] = carried
            job = call(queue, data, name=name, **options)
            span.set_attribute("messaging.message.id", job.id)
            span.set_attribute("bunqueue.job.name", job.name)
            if job.duplicate:
                span.set_attribute("bunqueue.job.duplicate", True)
            return job

    return push


def _push_batch(tracer: Tracer, call: Callable[..., Any]) -> Callable[..., Any]:
    def push_batch(queue: Any, specs: Iterable[Any]) -> Any:
        attributes = _attributes(queue, "add", "send")
        span_name = f"add {attributes['messaging.destination.name']}"
        with tracer.start_as_current_span(
            span_name, kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carried = _carried()
            if carried is not None and hasattr(specs, "__iter__") and not isinstance(specs, str):
                specs = (_with_trace(spec, carried) for spec in specs)
            jobs = call(queue, specs)
            span.set_attribute("messaging.batch.message_count", len(jobs))
            return jobs

    return push_batch


def _with_trace(spec: Any, carried: str) -> Any:
    # what is no spec is for push_batch to refuse, which knows its number
    if isinstance(spec, JobSpec):
        traced = JobSpec(spec.name, spec.data)
        traced.options = {**spec.options, TRACE: carried}
        return traced
    if isinstance(spec, tuple) and len(spec) == 2:
        traced = JobSpec(spec[0], spec[1])
        traced.options = {TRACE: carried}
        return traced
    return spec


def _add_flows(tracer: Tracer, call: Callable[..., Any]) -> Callable[..., Any]:
    def add_flows(plan: FlowPlan, *, chain: bool = False) -> Any:
        if not len(plan):
            return call(plan, chain=chain)
        # the last one is the root of the last flow, or the end of the chain
        attributes = _attributes(plan.nodes[-1].queue, "add", "send")
        with tracer.start_as_current_span(
            f"add flow {plan.nodes[-1].queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carried = _carried()
            if carried is not None:
                plan = copy(plan)
                plan.nodes = [_traced_node(node, carried) for node in plan.nodes]
            jobs = call(plan, chain=chain)
            span.set_attribute("messaging.batch.message_count", len(jobs))
            return jobs

    return add_flows


def _add_child(tracer: Tracer, call: Callable[..., Any]) -> Callable[..., Any]:
    def add_child(job: Any, node: Any) -> Any:
        if not isinstance(node, FlowNode):
            return call(job, node)  # which refuses it
        with tracer.start_as_current_span(
            f"add {node.queue}",
            kind=SpanKind.PRODUCER,
            attributes=_attributes(node.queue, "add", "send"),
        ) as span:
            carried = _carried()
            child = call(job, node if carried is None else _traced_tree(node, carried))
            span.set_attribute("messaging.message.id", child.id)
            return child

    return add_child


def _traced_node(node: FlowNode, carried: str) -> FlowNode:
    traced = copy(node)
    traced.options = {**node.options, TRACE: carried}
    return traced


def _traced_tree(node: FlowNode, carried: str) -> FlowNode:
    """The node and all below it, each once; what is wrong with the tree stays wrong."""
    copies: dict[int, FlowNode] = {}
    todo = [node]
    while todo:
        each = todo.pop()
        if isinstance(each, FlowNode) and id(each) not in copies:
            copies[id(each)] = _traced_node(each, carried)
            todo += each.children
    for each in copies.values():
        each.children = [copies.get(id(child), child) for child in each.children]
    return copies[id(node)]


class _Instrument:
    """Wraps handlers so that each run is a span, child of the one in which its job was added."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if inspect.iscoroutinefunction(handler):

            async def serve(job: Any) -> Any:
                return await self._run(handler, job)

            return serve
        return lambda job: self._run(handler, job)

    def _run(self, handler: Callable[[Any], Any], job: Any) -> Any:
        span = self._begin(job)
        token = otel_context.attach(trace.set_span_in_context(span))
        try:
            result = handler(job)
        except BaseException as error:
            _end(span, error)
            raise
        finally:
            otel_context.detach(token)
        if inspect.isawaitable(result):
            return self._awaited(result, span)
        _end(span, None)
        return result

    async def _awaited(self, result: Awaitable[Any], span: Span) -> Any:
        token = otel_context.attach(trace.set_span_in_context(span))
        try:
            value = await result
        except BaseException as error:
            _end(span, error)
            raise
        finally:
            otel_context.detach(token)
        _end(span, None)
        return value

    def _begin(self, given: Any) -> Span:
        """The span of a run, or of one that takes a batch; that one only links to where its jobs
        were added, since it can have but one parent."""
        jobs = list(given) if isinstance(given, (list, tuple)) else [given]
        job = jobs[0]
        attributes = _attributes(job.queue, "process", "process")
        parent, links = None, []
        if len(jobs) == 1:
            parent = _context_of(job)
            attributes["messaging.message.id"] = job.id
            attributes["bunqueue.job.name"] = job.name
            attributes["bunqueue.job.attempt"] = job.attempt
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
            added = (trace.get_current_span(_context_of(each)).get_span_context() for each in jobs)
            found = {context.span_id: context for context in added if context.is_valid}
            links = [trace.Link(context) for context in found.values()]
        return self._tracer.start_span(
            f"process {job.queue}", parent, SpanKind.CONSUMER, attributes=attributes, links=links
        )


def _context_of(job: Any) -> Context:
    """Where the job was added; an empty context if that was not traced."""
    side = job._side
    if side is not None and side.trace is not None:
        try:
            return propagate.extract(json.loads(side.trace), Context())
        except ValueError:  # a file may be damaged: the run is then a trace of its own
            pass
    return Context()


def in_process(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For a process of a worker: has the handler run in the context of the span that the worker
    has begun for it, so that what is traced there belongs to it. Without a provider of the
    application's in that process nothing is."""

    def call(given: Any) -> Any:
        context = _context_of(given[0] if isinstance(given, list) else given)
        token = otel_context.attach(context)
        try:
            result = handler(given)
        finally:
            otel_context.detach(token)
        return _continued(result, context) if inspect.iscoroutine(result) else result

    return call


async def _continued(result: Awaitable[Any], context: Context) -> Any:
    token = otel_context.attach(context)
    try:
        return await result
    finally:
        otel_context.detach(token)


def _end(span: Span, error: BaseException | None) -> None:
    if isinstance(error, (DelayJob, RateLimited, WaitForChildren)):
        span.set_attribute("bunqueue.job.given_back", type(error).__name__)  # which is no failure
    elif error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
    span.end()
