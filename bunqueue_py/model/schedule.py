"""What a scheduler is: when, what job, under which conditions, and how far it has come."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ..durations import ms_to_moment, optional_moment, shown, to_ms
from ..errors import ValidationError
from ..types import Deduplication, KeepJobs
from .backoff import Backoff
from .import_path import ByPath, import_path
from .options import JobSpec, check_known
from .timing import Timing, timing_from

MAX_RUNS = 1 << 40
SCHEDULE_KIND = "schedule"
PROGRESS_KIND = "schedule_run"
"""What a storage calls the two halves of a scheduler: the second changes at every run."""

_DURATIONS = frozenset(("delay", "timeout", "ttl", "stall_timeout"))
_AS_THEY_ARE = frozenset(
    (
        "priority",
        "attempts",
        "custom_id",
        "group",
        "group_limit",
        "lifo",
        "stack_trace_limit",
        "durable",
    )
)


@dataclass(frozen=True)
class Scheduler:
    """A scheduler as it was when it was read. Exactly one of `every` (seconds) and `cron` is set.

    `runs`: jobs that it has added, `skipped`: planned times at which it added none, though it was
    there. `next_run_at` is `None` when its `limit` is reached. `last_run_at` is when it added
    `last_job_id`; `last_planned_at` what that was planned for. `job`: what it adds.
    """

    id: str
    queue: str
    every: float | None
    cron: str | None
    tz: str
    limit: int | None
    immediately: bool
    catch_up: bool
    skip_if_no_worker: bool
    prevent_overlap: bool
    job: JobSpec
    runs: int
    skipped: int
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_planned_at: datetime | None
    last_job_id: str | None


class Definition(NamedTuple):
    """What `upsert` was given, checked; two that are equal mean the same. `options` are those of
    the job, as `option_parts` makes them."""

    timing: Timing
    limit: int | None
    immediately: bool
    catch_up: bool
    skip_if_no_worker: bool
    prevent_overlap: bool
    name: str
    data: bytes
    options: dict[str, Any]

    def spec(self, loads: Callable[[bytes], Any]) -> JobSpec:
        """The job that it describes."""
        return JobSpec(self.name, loads(self.data), **options_of(self.options))


class Progress(NamedTuple):
    """How far a scheduler has come. `planned_ms` and `last_ms` are moments of its timing's clock:
    of the next run (`None`: there is none) and of the last one; `fired_ms` is when that was added,
    by the timeline. `resume_ms`: the next run is the one that `immediately` asks for, and those
    after it are looked for from there."""

    planned_ms: int | None
    resume_ms: int | None = None
    runs: int = 0
    skipped: int = 0
    last_ms: int | None = None
    fired_ms: int | None = None
    job_id: str | None = None


def schedule_name(queue: str, schedule_id: str) -> str:
    """What a scheduler is called on disk. A queue's name has no NUL."""
    return f"{queue}\0{schedule_id}"


def scheduler_view(
    queue: str,
    schedule_id: str,
    definition: Definition,
    progress: Progress,
    loads: Callable[[bytes], Any],
) -> Scheduler:
    """What users see of it."""
    timing = definition.timing
    return Scheduler(
        id=schedule_id,
        queue=queue,
        every=None if timing.every_ms is None else timing.every_ms / 1000,
        cron=timing.cron if timing.by_wall else None,
        tz=timing.tz,
        limit=definition.limit,
        immediately=definition.immediately,
        catch_up=definition.catch_up,
        skip_if_no_worker=definition.skip_if_no_worker,
        prevent_overlap=definition.prevent_overlap,
        job=definition.spec(loads),
        runs=progress.runs,
        skipped=progress.skipped,
        next_run_at=optional_moment(progress.planned_ms),
        last_run_at=optional_moment(progress.fired_ms),
        last_planned_at=optional_moment(progress.last_ms),
        last_job_id=progress.job_id,
    )


def planned_moments(definition: Definition, progress: Progress, n: int) -> list[datetime]:
    """Up to `n` moments of runs ahead, as long as nothing changes."""
    if definition.limit is not None:
        n = min(n, definition.limit - progress.runs)
    found: list[datetime] = []
    moment, resume = progress.planned_ms, progress.resume_ms
    while moment is not None and len(found) < n:
        found.append(ms_to_moment(moment))
        moment = definition.timing.next_ms(moment if resume is None else resume)
        resume = None
    return found


def definition_body(definition: Definition) -> dict[str, Any]:
    """The definition as something that JSON can hold."""
    body = definition._asdict()
    body["timing"] = definition.timing.parts()
    body["data"] = b64encode(definition.data).decode()
    return body


def definition_from(body: Any) -> Definition:
    """What `definition_body` was given. Raises `ValueError` and the like."""
    given = dict(body)
    given["timing"] = timing_from(given["timing"])
    given["data"] = b64decode(given["data"], validate=True)
    found = Definition(**given)
    limit = found.limit
    if limit is not None and (limit.__class__ is not int or limit < 1):
        raise ValueError("a limit that is no number")
    if {value.__class__ for value in found[2:6]} != {bool} or found.name.__class__ is not str:
        raise ValueError("a value is not of its kind")
    options_of(found.options)
    return found


def progress_body(progress: Progress, now: int, wall: int) -> list[Any]:
    """How far it has come, and when that was written, as something that JSON can hold."""
    return [now, wall, *progress]


def progress_from(body: Any) -> tuple[Progress, int, int]:
    """What `progress_body` was given. Raises `ValueError` and the like."""
    now, wall, *rest = body
    found = Progress(*rest)
    numbers = (now, wall, found.runs, found.skipped)
    moments = (found.planned_ms, found.resume_ms, found.last_ms, found.fired_ms)
    known = [moment for moment in moments if moment is not None]
    if any(n.__class__ is not int or abs(n) >= 1 << 53 for n in (*numbers, *known)):
        raise ValueError("a number is not of its kind")
    if found.job_id is not None and found.job_id.__class__ is not str:
        raise ValueError("an id that is no text")
    return found, now, wall


def option_parts(options: dict[str, Any]) -> dict[str, Any]:
    """A job's options, which have been checked, as something that JSON can hold: durations in
    milliseconds. Raises `ValidationError` for what a job that comes again and again cannot have."""
    parts: dict[str, Any] = {}
    for option, value in options.items():
        if value is None or option in _AS_THEY_ARE:
            parts[option] = value
        elif option in _DURATIONS:
            parts[option] = to_ms(value, option)
        elif option == "backoff":
            parts[option] = _backoff_parts(value)
        elif option in ("remove_on_complete", "remove_on_fail"):
            parts[option] = _keep_parts(option, value)
        elif option == "deduplication":
            ttl = None if value.ttl is None else to_ms(value.ttl, "ttl")
            parts[option] = [value.key, ttl, value.mode, value.hold]
        elif option == "tags":
            parts[option] = list(value)
        else:
            raise ValidationError(
                f"the job of a scheduler cannot have {option}, which is for one job alone; "
                f"not {shown(value)}"
            )
    return parts


def options_of(parts: dict[str, Any]) -> dict[str, Any]:
    """The options that `option_parts` was given, durations in seconds."""
    check_known(parts)
    options: dict[str, Any] = {}
    for option, value in parts.items():
        if value is None or option in _AS_THEY_ARE:
            options[option] = value
        elif option in _DURATIONS:
            options[option] = value / 1000
        elif option == "backoff":
            options[option] = _backoff(value)
        elif option in ("remove_on_complete", "remove_on_fail"):
            options[option] = value if value.__class__ is bool else _keep(*value)
        elif option == "deduplication":
            key, ttl, mode, hold = value
            options[option] = Deduplication(key, None if ttl is None else ttl / 1000, mode, hold)
        elif option == "tags":
            options[option] = tuple(value)
        else:
            raise ValueError(f"an option that no scheduler keeps: {option}")
    return options


def _backoff_parts(value: Any) -> list[Any]:
    rule = value if isinstance(value, Backoff) else Backoff.exponential(value)
    if rule.fn is not None:
        # one without a path serves in memory only, where nothing is written
        return ["custom", import_path(rule.fn) or rule.fn]
    return [rule.kind, rule.delay_ms, rule.max_delay_ms, rule.jitter]


def _backoff(parts: Any) -> Backoff:
    kind, *rest = parts
    if kind == "custom":
        (fn,) = rest
        return Backoff.custom(ByPath(fn) if isinstance(fn, str) else fn)
    delay_ms, max_delay_ms, jitter = rest
    if kind == "fixed":
        return Backoff.fixed(delay_ms / 1000, jitter)
    return Backoff.exponential(delay_ms / 1000, max_delay_ms / 1000, jitter)


def _keep_parts(option: str, value: bool | KeepJobs) -> Any:
    if isinstance(value, bool):
        return value
    return [value.count, None if value.age is None else to_ms(value.age, option)]


def _keep(count: int | None, age_ms: int | None) -> KeepJobs:
    return KeepJobs(count, None if age_ms is None else age_ms / 1000)
