"""What a job that repeats carries: the rule, and where in it this run stands."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from ..durations import MAX_DURATION_MS, moment_to_ms, shown
from ..errors import CronError, ValidationError
from ..types import Repeat
from .checks import checked_int
from .timing import Timing, checked_timing, timing_from

MAX_RUNS = 1 << 40


class Plan(NamedTuple):
    """A checked `Repeat`; `start_ms` and `end_ms` by the wall clock. `run` is the number of the
    job's run, from 1, and `planned_ms` when that was meant to be, by the clock of `timing`."""

    timing: Timing
    limit: int | None
    start_ms: int | None
    end_ms: int | None
    run: int = 0
    planned_ms: int = 0

    def parts(self) -> list[Any]:
        """What JSON can hold of it."""
        return [self.timing.parts(), *self[1:]]


def checked_plan(value: Any) -> Plan | None:
    """The plan of a `Repeat` that is looked at for the first time."""
    if value is None:
        return None
    if not isinstance(value, Repeat):
        raise ValidationError(f"repeat must be a Repeat, not {shown(value)}")
    timing = checked_timing(value.every, value.cron, value.tz, "repeat: ")
    limit = value.limit
    if limit is not None:
        checked_int(limit, "repeat: limit", 1, MAX_RUNS)
    start = None if value.start is None else moment_to_ms(value.start, "repeat: start")
    end = None if value.end is None else moment_to_ms(value.end, "repeat: end")
    if start is not None and end is not None and end < start:
        raise ValidationError("repeat: end must not be before start")
    return Plan(timing, limit, start, end)


def plan_from(parts: Any) -> Plan:
    """What `Plan.parts` was made of. Raises `ValueError` and the like."""
    timing, limit, start, end, run, planned = parts
    for number in (limit, start, end):
        if number is not None and number.__class__ is not int:
            raise ValueError("a bound that is no number")
    if not (run.__class__ is planned.__class__ is int and abs(planned) < 2 * MAX_DURATION_MS):
        raise ValueError("a run out of bounds")
    rule = timing_from(timing)
    if rule.by_wall:
        # now, and not when its next run is planned under a lock; what is wrong with it is said then
        with suppress(CronError, ValidationError):
            rule.expression  # noqa: B018
    return Plan(rule, limit, start, end, run, planned)
