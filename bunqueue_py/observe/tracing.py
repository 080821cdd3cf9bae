"""Spans for adding and processing jobs: the one module that imports opentelemetry (extra `otel`).

The context of whoever adds a job travels in the job, beside its data, and on a file over restarts.
Only a manager that is asked to trace has its calls replaced; the others pay nothing.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

from ..model.flow_node import FlowNode, Planned
from ..model.job_trace import MAX_TRACE, TRACE
from ..model.options import JobSpec

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
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
    manager.backend.context = _context


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
    def add_flows(plan: Sequence[Planned], *, chain: bool = False) -> Any:
        if not plan:
            return call(plan, chain=chain)
        # the last one is the root of the last flow, or the end of the chain
        attributes = _attributes(plan[-1].node.queue, "add", "send")
        with tracer.start_as_current_span(
            f"add flow {plan[-1].node.queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carried = _carried()
            if carried is not None:
                plan = [each._replace(node=_traced_node(each.node, carried)) for each in plan]
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


def _context() -> list[str] | None:
    """What a process needs to go on with the span under way: who takes it in there, and what."""
    carried = _carried()
    return None if carried is None else [f"{__name__}:{entered.__name__}", carried]


def entered(carried: str) -> AbstractContextManager[None]:
    """In a process of a worker: what runs within belongs to the span of which the text tells."""
    return _Entered(_extracted(carried))


class _Entered:
    def __init__(self, context: Any) -> None:
        self._context = context
        self._token: Any = None

    def __enter__(self) -> None:
        self._token = otel_context.attach(self._context)

    def __exit__(self, *error: object) -> None:
        otel_context.detach(self._token)


def _extracted(carried: str) -> Any:
    try:
        return propagate.extract(json.loads(carried))
    except ValueError:  # a file may be damaged: the run is then a trace of its own
        return otel_context.Context()


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

    def _begin(self, job: Any) -> Span:
        side = job._side
        parent = None
        if side is not None and side.trace is not None:
            parent = _extracted(side.trace)
        attributes = _attributes(job.queue, "process", "process")
        attributes["messaging.message.id"] = job.id
        attributes["bunqueue.job.name"] = job.name
        attributes["bunqueue.job.attempt"] = job.attempt
        return self._tracer.start_span(
            f"process {job.queue}", parent, SpanKind.CONSUMER, attributes=attributes
        )


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
    span.end()
