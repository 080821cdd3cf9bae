"""What the harness says when something is not as the test expected: what is in the queues, and
which call is missing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..client.job import Job
from ..durations import ms_to_moment
from ..errors import BunqueueError
from ..ops.outcomes import links_of
from ..types import JobState

if TYPE_CHECKING:
    from .stage import Stage
    from .stepping import SteppedCrew

SHOWN_JOBS = 12
"""How many jobs of one queue a picture shows."""
SHOWN_DATA = 60

_PENDING = (
    JobState.WAITING,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
)
_READY = (JobState.WAITING, JobState.PRIORITIZED)
_ORDER = (JobState.ACTIVE, JobState.FAILED, *_PENDING, JobState.COMPLETED)


def picture(stage: Stage) -> str:
    """Every queue: how many jobs it has in which state, who works on it, and its jobs."""
    now = stage.clock.timeline_ms()
    lines = [f"What is in the queues at {ms_to_moment(now).isoformat()}:"]
    manager = stage.manager
    for name in sorted(stage.state.queues):
        counts = manager.counts(name)
        told = [
            f"{n} {state.replace('_', '-')}"
            for state, n in vars(counts).items()
            if n and state != "total"
        ]
        crews = [crew for crew in stage.crews if crew.queue == name]
        lines.append(f"  {name}: {', '.join(told) or 'empty'}; {_staff(crews)}")
        room = SHOWN_JOBS
        found: list[Job] = []
        for state in _ORDER:
            newest = state is JobState.COMPLETED
            page = manager.get_jobs(name, state, limit=room - len(found), newest_first=newest)
            found += reversed(page) if newest else page
        lines += [f"    {line(stage, job)}" for job in found]
        more = counts.total - len(found)
        if more > 0:
            lines.append(f"    ... and {more:,} more")
    if len(lines) == 1:
        lines.append("  nothing: no queue has been used")
    if stage.crashed_in_memory_at is not None:
        at = ms_to_moment(stage.crashed_in_memory_at).isoformat()
        lines.append(
            f"  (crash_and_restart() at {at} dropped all there was: this harness keeps everything "
            "in memory. Harness(path) keeps it in a file)"
        )
    return "\n".join(lines)


def line(stage: Stage, job: Job) -> str:
    """A job in one line."""
    return (
        f"{job.name!r} {_what(stage, job)}, {job.attempts_made} of {job.max_attempts} attempts "
        f"failed, data {_data(job)}, id {job.id}"
    )


def state_of(stage: Stage, job_id: str) -> str:
    """What has become of a job, in a few words."""
    job = stage.manager.get_job(job_id)
    if job is not None:
        return _what(stage, job)
    return "is gone" if job_id in stage.jobs else "is unknown: it was never added here"


def way_on(stage: Stage, job_id: str) -> str:
    """What would bring that job on, as a line; nothing for one that has ended."""
    job = stage.manager.get_job(job_id)
    if job is None or job.state in (JobState.COMPLETED, JobState.FAILED):
        return ""
    return f"{way_out(stage, job)}\n"


def named(stage: Stage, job_id: str) -> str:
    """How a job is called in these texts."""
    job = stage.manager.get_job(job_id) or stage.jobs.get(job_id)
    return f"job {job_id}" if job is None else f"job {job.name!r} of {job.queue!r} ({job_id})"


def _what(stage: Stage, job: Job) -> str:
    now = stage.clock.timeline_ms()
    state = job.state
    if state is JobState.DELAYED:
        wait = _due_ms(stage, job) - now
        why = f" (last error: {_short(job.error)})" if job.error else ""
        return f"is delayed, due in {timedelta(milliseconds=wait)}{why}"
    if state is JobState.FAILED:
        return f"has failed ({job.failed_reason}): {_short(job.error or '')}"
    if state is JobState.ACTIVE:
        return "is active"
    if state is JobState.COMPLETED:
        return "has completed"
    error = f" (last error: {_short(job.error)})" if job.error else ""
    return f"is {state}{error}"


def _due_ms(stage: Stage, job: Job) -> int:
    """When a delayed job is due by the timeline, wherever its moment is anchored."""
    record = stage.state.index.get(job.id)
    now, wall = stage.clock.timeline_ms(), stage.clock.wall_ms()
    if record is not None and record.queue.anchored.holds(record):
        return record.run_at_ms - wall + now
    return job._run_at_ms


def _staff(crews: Sequence[SteppedCrew]) -> str:
    if not crews:
        return "no worker"
    taken = sum(len(crew.stuck) for crew in crews)
    slots = sum(len(crew.slots) for crew in crews)
    text = f"{len(crews)} worker{'s' if len(crews) > 1 else ''}"
    if taken:
        text += f", {taken} of {slots} slots taken by handlers that have not ended"
    return text


def _data(job: Job) -> str:
    try:
        text = repr(job.data)
    except Exception as error:  # a text about a failure must not fail
        text = f"<{type(error).__name__}>"
    return _short(text, SHOWN_DATA)


def _short(text: str, most: int = 100) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."


def call(wait_ms: int) -> str:
    """The `advance` that takes so long.

    >>> call(3 * 86_400_000 + 1_500)
    'advance(days=3, seconds=1.5)'
    """
    seconds, ms = divmod(max(0, wait_ms), 1000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts: dict[str, Any] = {"days": days, "hours": hours, "minutes": minutes}
    parts["seconds"] = seconds if not ms else seconds + ms / 1000
    given = [f"{part}={n:g}" if n < 100_000 else f"{part}={n}" for part, n in parts.items() if n]
    return f"advance({', '.join(given)})" if given else "run_until_idle()"


# -- waits that nothing can end --------------------------------------------------------------------


def no_outcome(stage: Stage, job_id: str) -> BunqueueError:
    """Why a wait for that job's outcome would never end."""
    job = stage.manager.get_job(job_id)
    if job is None:
        return BunqueueError(f"{named(stage, job_id)} {state_of(stage, job_id)}")
    return _hopeless(
        stage,
        f"waiting for {named(stage, job_id)} can never end: it {_what(stage, job)}. "
        + way_out(stage, job),
    )


def no_job(stage: Stage, queue: str) -> BunqueueError:
    """Why a pull that waits would never end."""
    way = _time_for(stage, queue)
    if way is None:
        way = (
            "It is paused: resume() it"
            if _paused(stage, queue)
            else "Add a job before pulling, or pull(timeout=0)"
        )
    return _hopeless(
        stage, f"waiting for a job of {queue!r} can never end: none is ready now. {way}"
    )


def not_empty(stage: Stage, queue: str) -> BunqueueError:
    """Why a wait for an empty queue would never end."""
    manager = stage.manager
    found = manager.get_jobs(queue, (JobState.ACTIVE, *_PENDING), limit=1)
    way = way_out(stage, found[0]) if found else ""
    return _hopeless(
        stage, f"waiting for {queue!r} to be empty can never end while time stands still. {way}"
    )


def _hopeless(stage: Stage, text: str) -> BunqueueError:
    if stage.depth:
        text += (
            ". (The caller is a handler: while it waits, only workers with a free slot run what "
            "is ready, and time stands still)"
        )
    return BunqueueError(f"{text}\n{picture(stage)}")


def way_out(stage: Stage, job: Job) -> str:
    """What the test has to call for that job, which has not ended, to get on."""
    if job.state is JobState.WAITING_CHILDREN:
        return _held_back(stage, job)
    queue = job.queue
    crews = [crew for crew in stage.crews if crew.queue == queue]
    if job.state is JobState.ACTIVE:
        return _out_of_active(stage, job, crews)
    if _paused(stage, queue):
        return f"{queue!r} is paused: resume() it first"
    if not crews:
        return (
            f"Nobody works on {queue!r}: give it a worker with worker({queue!r}, handler), and "
            f"then {_until_due(stage, job)}"
        )
    if job.state is JobState.DELAYED:
        return f"{_until_due(stage, job)} runs it"
    if all(len(crew.stuck) >= len(crew.slots) for crew in crews):
        taken = ", ".join(repr(j.name) for crew in crews for j in crew.stuck)
        return (
            f"Every slot of its workers is taken, by the handlers of {taken}: give the worker a "
            "higher concurrency, lose_worker(), or crash_and_restart()"
        )
    held = _held_by_group(stage, job, stage.clock.timeline_ms())
    if held is not None:
        return held
    if any(crew.may_run() for crew in crews):
        return "run_until_idle() runs it"
    return _time_for(stage, queue) or "A limit or a paused group holds it back"


def _held_by_group(stage: Stage, job: Job, now: int) -> str | None:
    """What the group of a ready job waits for, if that may not start one now."""
    queue = stage.state.queues.get(job.queue)
    if job.group is None or queue is None or queue.groups is None:
        return None
    with queue.lock:
        groups = queue.groups
        group = groups.by_name.get(job.group)
        if group is None or groups.may_start(group, now):
            return None
        opens = None if group.limits is None else group.limits.opens_ms(now)
        paused, active = group.paused, group.active
    if paused:
        return f"Its group {job.group!r} is paused: groups[{job.group!r}].resume() first"
    if opens is not None:
        return (
            f"The limits of its group {job.group!r} hold it back: {call(opens - now)} reaches"
            " the moment at which they let one start"
        )
    return f"Its group {job.group!r} is full, with {active} active: those have to end first"


def _held_back(stage: Stage, job: Job) -> str:
    """What a job that waits for others waits for in the end, and the way on from there."""
    seen = {job.id}
    while True:
        record = stage.state.index.get(job.id)
        links = None if record is None else links_of(record)
        waited = [] if links is None else links.waited_for()
        others = [stage.manager.get_job(other) for other in waited if other not in seen]
        other = next((found for found in others if found is not None), None)
        if other is None:
            return "What it waits for is gone: remove_dependency() it"
        if other.state is not JobState.WAITING_CHILDREN:
            break
        seen.add(other.id)
        job = other
    told = f"It waits for {named(stage, other.id)}, which {_what(stage, other)}"
    if other.state is JobState.FAILED:
        return f"{told}: retry() that, or remove_dependency() it"
    return f"{told}. {way_out(stage, other)}"


def _until_due(stage: Stage, job: Job) -> str:
    if job.state is not JobState.DELAYED:
        return "run_until_idle()"
    return call(_due_ms(stage, job) - stage.clock.timeline_ms())


def _out_of_active(stage: Stage, job: Job, crews: Sequence[SteppedCrew]) -> str:
    record = stage.state.index.get(job.id)
    delivery = None if record is None else record.delivery
    if not any(held == job for crew in crews for held in crew.stuck):
        return "It was pulled by hand: ack() or fail() it, or advance() past its lock"
    timeout = None if delivery is None else delivery.timeout_ms
    if timeout is not None:
        wait = timeout - stage.clock.timeline_ms()
        return f"Its handler has not ended: {call(wait)} reaches its timeout"
    return (
        "Its handler has not ended and it has no timeout: expire_lock(job), lose_worker(worker) or "
        "crash_and_restart() take it away"
    )


def _paused(stage: Stage, queue: str) -> bool:
    state = stage.state.queues.get(queue)
    return state is not None and state.paused


def _time_for(stage: Stage, queue: str) -> str | None:
    """The `advance` to the next moment at which that queue has a job, if there is one."""
    state = stage.state.queues.get(queue)
    if state is None or state.paused:
        return None
    now, wall = stage.clock.timeline_ms(), stage.clock.wall_ms()
    with state.lock:
        due = state.next_due(now, wall)
        if due is not None and due <= now:
            due = state.opens_ms(now) if state.limits or state.groups else None
    if due is None or due <= now:
        return None
    return f"{call(due - now)} reaches the next moment at which one may start"
