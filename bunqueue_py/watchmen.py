"""The background tasks of a manager, each with its moment, on one loop; and who works for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .durations import shown
from .errors import ValidationError
from .model.health import WorkerInfo
from .observe.checks import Checks
from .observe.health import worker_info
from .ops.recover import check_open
from .state import State
from .tasks import counts, deadlines, dependencies, schedules, workers
from .tasks.cleanup import Cleanup
from .tasks.scheduler import Pace, Report, Task, TaskLoop
from .tasks.stalls import LatePasses


def hire(
    state: State,
    loop: TaskLoop,
    beat: TaskLoop,
    checks: Checks,
    has_worker: Callable[[str], bool],
    *,
    threaded: bool,
) -> Pace:
    """Gives the loop its tasks; returns how those that fail are tried again. `has_worker` says
    whether a worker serves the queue of that name."""
    periods = state.periods
    pace = Pace(periods.task_retry_delay, periods.circuit_retry_delay, checks.task_changed)
    late = LatePasses(periods.stall_check_interval)
    cleanup = Cleanup(state, loop.give_way)

    def judge() -> Report:
        behind_ms = beat.behind_ms(state.now())
        report = deadlines.tick(state, loop.late_ms, late, behind_ms, loop.give_way)
        cleanup.consider()
        if any(entry.card.active for entry in state.workers.entries()):
            workers.mind(state)
        return report

    def check() -> Report:
        return Report(*checks.tick())

    def fire() -> Report:
        report = schedules.tick(state, loop.late_ms, has_worker, threaded=threaded)
        loop.give_way()
        return report

    errors = state.errors

    def add(name: str, tick: Callable[[], Report], ahead: Callable[[State], int | None]) -> None:
        # a function costs less than half of what `partial` does, which calls it from without
        loop.add(Task(name, tick, errors=errors, pace=pace, peek=lambda: ahead(state)))

    add("deadlines", judge, deadlines.next_due)
    add("schedules", fire, schedules.next_due)
    add("dependencies", partial(dependencies.tick, state), dependencies.next_due)
    loop.look = lambda: state.schedules.moved(state.now(), state.wall())
    loop.add(Task("clean-up", cleanup.tick, state.cleanup, errors=errors, pace=pace))
    loop.add(Task("workers", lambda: workers.tick(state), state.staff, errors=errors, pace=pace))
    count = partial(counts.tick, state)
    loop.add(Task("counts", count, state.counting, errors=errors, pace=pace))
    loop.add(Task("checks", check, checks.duty, errors=errors, pace=pace))
    loop.on_pass = checks.pass_began
    loop.ran_ahead = cleanup.consider
    return pace


class Workers:
    """`manager.workers`: who works for this manager."""

    def __init__(self, state: State) -> None:
        self._state = state

    def list(self) -> list[WorkerInfo]:
        """Every worker that has started and not left, in that order.

        >>> from bunqueue_py import Queue, QueueManager, Worker
        >>> with QueueManager() as manager:
        ...     with Worker(Queue("sums", manager), lambda job: 1, name="adder", concurrency=2):
        ...         [(info.name, info.concurrency, info.stale) for info in manager.workers.list()]
        [('adder', 2, False)]
        """
        check_open(self._state)
        return [worker_info(self._state, entry) for entry in self._state.workers.entries()]

    def get(self, worker_id: str) -> WorkerInfo | None:
        """The worker of that id; `None` if there is none (any more)."""
        check_open(self._state)
        if not isinstance(worker_id, str):
            raise ValidationError(f"worker_id must be text, not {shown(worker_id)}")
        entry = self._state.workers.get(worker_id)
        return None if entry is None else worker_info(self._state, entry)
