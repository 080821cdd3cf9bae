"""The handler of a worker, in whatever form it was given: one function of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from inspect import iscoroutine, iscoroutinefunction
from typing import Any, NamedTuple

from ..durations import shown
from ..errors import UnrecoverableError, ValidationError
from ..model.import_path import ByPath
from ..model.options import checked_name
from ..offload import Offload
from .job import Job

Handler = Callable[[Any], Any]


class Route(NamedTuple):
    """`call` takes the job (or a list of them, for batches); `is_async`: what it returns is to be
    awaited."""

    call: Handler
    is_async: bool


def at_path(handler: Any) -> Any:
    """The handler, with a dotted path in place of each function that was given as one (text)."""
    if isinstance(handler, Mapping):
        return {name: at_path(fn) for name, fn in handler.items()}
    if not isinstance(handler, str):
        return handler
    module, _, name = handler.partition(":")
    if not name:
        module, _, name = handler.rpartition(".")
    if not module or not name:
        raise ValidationError(
            f'handler must be a function or the path of one, "package.module:function", not '
            f"{shown(handler)}"
        )
    return ByPath(f"{module}:{name}")


def routed(handler: Any) -> Route:
    """The function that a handler or a mapping of handlers stands for. Raises `ValidationError`
    for anything else."""
    if not isinstance(handler, Mapping):
        return Route(handler, _is_coroutine(_checked(handler)))
    routes: dict[str, Handler] = {}
    for name, fn in handler.items():
        routes[checked_name(name, "handler name")] = _checked(fn)
    if not routes:
        raise ValidationError("handler must not be an empty mapping")
    return Route(Routes(routes), any(map(_is_coroutine, routes.values())))


class Routes:
    """Chooses the handler by the job's name."""

    def __init__(self, routes: dict[str, Handler]) -> None:
        self._routes = routes
        self._rest = routes.get("*")

    def __call__(self, job: Job) -> Any:
        fn = self._routes.get(job.name, self._rest)
        if fn is None:
            raise UnrecoverableError(
                f"no handler for jobs named {job.name!r}; this worker has "
                f"{', '.join(sorted(self._routes))}. Workers of one queue need the same names, "
                'or "*"'
            )
        return fn(job)

    @property
    def are_mixed(self) -> bool:
        """Whether some of them are plain functions and others coroutine functions."""
        return len(set(map(_is_coroutine, self._routes.values()))) > 1

    def off_loop(self, hands: Offload) -> Routes:
        """The same, with the plain functions among them called on threads."""
        return Routes(
            {
                name: fn if _is_coroutine(fn) else on_thread(fn, hands)
                for name, fn in self._routes.items()
            }
        )


def on_thread(fn: Handler, hands: Offload) -> Handler:
    """A coroutine function that has a thread call `fn`, in the context of its task. It cannot be
    cancelled: as long as the thread is busy, so is the place of the job."""

    async def call(job: Job) -> Any:
        busy = asyncio.ensure_future(hands(partial(copy_context().run, fn, job)))
        while True:
            try:
                return await asyncio.shield(busy)
            except asyncio.CancelledError:
                # what has ended was the handler's own, or the loop is being shut down
                if busy.done():
                    raise

    return call


def _checked(fn: Any) -> Handler:
    if not callable(fn):
        raise ValidationError(f"handler must be a function or a mapping of them, not {shown(fn)}")
    return fn  # type: ignore[no-any-return]


def _is_coroutine(fn: Any) -> bool:
    if iscoroutinefunction(fn):
        return True
    # an object with an async __call__; calling a class only makes such an object
    call = None if isinstance(fn, type) else getattr(fn, "__call__", None)  # noqa: B004
    return iscoroutinefunction(call)


def not_awaited(result: Any) -> TypeError | None:
    """The error of a plain function that returned a coroutine, which nobody has run."""
    if not iscoroutine(result):
        return None
    result.close()
    return TypeError(
        "the handler returned a coroutine and did not run it: make the handler a coroutine "
        "function itself (async def)"
    )
