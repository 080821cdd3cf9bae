"""Which kind of crew a worker gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..durations import shown
from ..errors import ValidationError
from ..model.options import checked_int
from ..offload import Offload
from ..types import Recycle
from .async_crew import AsyncCrew
from .batch_crew import BatchCrew
from .batches import Batch
from .crew import Crew
from .handlers import Route, Routes
from .protocol import Backend


class CrewOptions(NamedTuple):
    """What decides about it. `stop_with` closes the worker for an error that it cannot go on
    after."""

    executor: str
    batch: Batch | None
    recycle: Recycle | None
    stop_with: Callable[[BaseException], None]


def hire(
    backend: Backend, handler: Any, route: Route, options: CrewOptions, **usual: Any
) -> Crew | AsyncCrew:
    """The crew for that handler. Raises `ValidationError` where the options do not go together."""
    batch, recycle = options.batch, _checked_recycle(options)
    if batch is not None and isinstance(route.call, Routes):
        raise ValidationError(
            "batch: one function takes all jobs of a batch, so handler must not be a mapping"
        )
    if backend.crew_class is not None:
        if options.executor != "thread" or batch is not None:
            raise ValidationError(
                "the Harness runs every handler on the test's own thread, one job at a time: "
                "leave executor and batch out there, and try those on a QueueManager"
            )
        return backend.crew_class(  # type: ignore[no-any-return]
            *(backend, usual.pop("queue"), usual.pop("name"), backend.instrument(route.call)),
            **usual,
        )
    queue, name = usual.pop("queue"), usual.pop("name")
    if options.executor == "process":
        from .process_batch_crew import ProcessBatchCrew
        from .process_crew import ProcessCrew

        of_processes = (backend, queue, name, handler, route, recycle, options.stop_with)
        if batch is not None:
            return ProcessBatchCrew(*of_processes, batch=batch, **usual)
        return ProcessCrew(*of_processes, **usual)
    if route.is_async:
        hands, call = None, route.call
        if isinstance(call, Routes) and call.are_mixed:
            hands = Offload(f"{name}-hand", usual["concurrency"])
            call = call.off_loop(hands)
        return AsyncCrew(
            *(backend, queue, name, backend.instrument(call)), batch=batch, hands=hands, **usual
        )
    call = backend.instrument(route.call)
    if batch is not None:
        return BatchCrew(backend, queue, name, call, batch=batch, **usual)
    return Crew(backend, queue, name, call, **usual)


def _checked_recycle(options: CrewOptions) -> Recycle:
    recycle = options.recycle
    if recycle is None:
        return Recycle()
    if not isinstance(recycle, Recycle):
        raise ValidationError(f"recycle must be a Recycle, not {shown(recycle)}")
    if options.executor != "process":
        raise ValidationError('recycle is about processes: give executor="process" with it')
    if recycle.jobs is not None:
        checked_int(recycle.jobs, "recycle: jobs", 1, 10**9)
    if recycle.memory_mib is not None:
        checked_int(recycle.memory_mib, "recycle: memory_mib", 1, 10**6)
    return recycle
