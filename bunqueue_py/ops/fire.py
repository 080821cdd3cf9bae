"""What a scheduler does when its time has come: one job for each planned time.

Where the storage is on disk, a firing is staged: its job and how far the scheduler has come are
marked in one unit, and the job is there for others when that is committed. A crash before loses
both, and one after keeps both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import ManagerClosedError, StorageError
from ..model.claim import Claim
from ..model.job import ACTIVE, JobRecord
from ..model.own import NAMED, Own
from ..model.schedule import Definition, Progress
from ..model.timing import CORRECTION_MS
from ..registry.schedules import Schedule, Staged
from ..shard.keys import departed_key
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .admit import admit, group_full
from .finish import emit
from .mark import mark_new
from .recover import enter
from .schedule_marks import arm, mark_progress

_log = logging.getLogger("bunqueue_py.schedules")

LATE_MS = 60_000
"""What comes later than this, for the process was frozen or the clock leapt, was missed."""

COUNTED = 100
"""So many missed runs of a cron expression are counted; more are told as so many."""

POSTPONED_MS = 60_000


_tuple = tuple.__new__


class _Verdict(NamedTuple):
    """What a scheduler's time leads to. `missed`: planned times that pass without a job of their
    own, from `planned_ms` on; `fires`: a job comes in; `next_ms`: the next planned time."""

    planned_ms: int
    missed: int
    fires: bool
    next_ms: int | None


def look_around(state: State, late_ms: int) -> None:
    """Begins a pass that comes `late_ms` after it was due: notes whether the process was frozen,
    and whether the wall clock was moved."""
    schedules = state.schedules
    now, wall = state.now(), state.wall()
    jump = wall - now - schedules.offset_ms
    schedules.offset_ms = wall - now
    if jump < 0:
        schedules.missed_by_wall += jump
    if late_ms > LATE_MS:
        schedules.missed_by_time = max(schedules.missed_by_time, now - LATE_MS)
    if late_ms + jump > LATE_MS:
        schedules.missed_by_wall = max(schedules.missed_by_wall, wall - LATE_MS)
    if jump < -CORRECTION_MS:
        _log.warning("the wall clock was set back by %d s: schedulers follow it", -jump // 1000)
        for schedule in schedules.by_wall():
            _replan(state, schedule)


def _replan(state: State, schedule: Schedule) -> None:
    queue: QueueState = schedule.queue
    planned = schedule.definition.timing.next_ms(state.wall())
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        if schedule.gone or not schedule.definition.timing.by_wall:
            return
        schedule.progress = schedule.progress._replace(planned_ms=planned, resume_ms=None)
        mark_progress(state, queue, schedule)
        arm(state, schedule, planned)


def fire_due(state: State, has_worker: Callable[[str], bool], limit: int) -> int:
    """Has up to `limit` schedulers whose time has come do what they do; returns how many."""
    due = state.schedules.due(state.now(), state.wall(), limit)
    for schedule in due:
        try:
            _fire(state, schedule, has_worker)
        except ManagerClosedError:
            raise
        except Exception:  # one that breaks must not keep the others from their time
            _log.exception("scheduler %r of queue %r", schedule.id, schedule.queue.name)
            _postpone(state, schedule)
    return len(due)


def _postpone(state: State, schedule: Schedule) -> None:
    with schedule.queue.lock:
        clock = state.wall() if schedule.definition.timing.by_wall else state.now()
        if not schedule.gone:
            arm(state, schedule, clock + POSTPONED_MS)


def _fire(state: State, schedule: Schedule, has_worker: Callable[[str], bool]) -> None:
    queue: QueueState = schedule.queue
    shard = queue.shard
    definition, progress = schedule.definition, schedule.progress
    # outside the lock: expressions take their time, and others are asked
    clock = state.wall() if definition.timing.by_wall else state.now()
    verdict = _judge(state, definition, progress, clock)
    reason = None
    if verdict is not None and verdict.fires:
        if definition.skip_if_no_worker and not has_worker(queue.name):
            reason = "no_worker"
        elif state.storage is not None and state.storage.troubled:
            reason = _refused(state)
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        if schedule.gone:
            return
        if verdict is None or schedule.progress is not progress:
            # it is another one meanwhile, or its time has not come after all
            arm(state, schedule, schedule.progress.planned_ms)
            return
        if schedule.definition is not definition:
            return  # it stays where it is, and is looked at again
        now = state.now()
        planned_ms, missed, fires, next_ms = verdict
        shard.gate = BROKEN
        if missed:
            _tell(state, schedule, "cron_missed", planned_ms, now, count=missed)
        if fires:
            next_ms = _apply(state, schedule, planned_ms, next_ms, reason, clock, now)
        else:
            schedule.progress = progress._replace(planned_ms=next_ms, resume_ms=None)
        if shard.dirty is not None:
            mark_progress(state, queue, schedule)
        # the pass that this is in tells the alarm when the next is due
        state.schedules.arm(schedule, next_ms)
        shard.gate = OPEN
    if shard.after:
        shard.call_after()
    if not state.alarm.served:
        state.alarm.start()


def _judge(state: State, definition: Definition, progress: Progress, clock: int) -> _Verdict | None:
    """What the scheduler's time leads to, at that moment of its clock; `None`: it has not come."""
    timing, planned, resume = definition.timing, progress.planned_ms, progress.resume_ms
    if planned is None or planned > clock:
        return None
    schedules = state.schedules
    until = schedules.missed_by_wall if timing.by_wall else schedules.missed_by_time
    missed = resume is None and planned < until
    begin = planned if resume is None else resume
    first = planned if missed else timing.next_ms(begin)
    if not missed and (first is None or first > clock):
        # in time, as nearly always: then that is the next
        return _tuple(_Verdict, (planned, 0, True, first))
    assert first is not None
    count = timing.count(first, clock, COUNTED if state.events.any else 1)
    next_ms = timing.following(begin, clock)
    return _Verdict(planned, count, not missed or definition.catch_up, next_ms)


def _refused(state: State) -> str | None:
    try:
        assert state.storage is not None
        state.storage.refuse(durable=False)
    except StorageError:
        return "storage"
    return None


def _apply(
    state: State,
    schedule: Schedule,
    planned_ms: int,
    next_ms: int | None,
    reason: str | None,
    clock: int,
    now: int,
) -> int | None:
    """One job comes in, unless there is a reason why not; the progress is told. Returns the next
    planned time."""
    definition, queue = schedule.definition, schedule.queue
    _, _, runs, skipped, _, _, last_id = schedule.progress
    if reason is None and definition.prevent_overlap and _is_live(state, schedule, last_id):
        reason = "overlap"
    record, own = _record(state.new_id(), schedule)
    if reason is None and own is not None:
        reason = _in_the_way(queue, record, own, now)
    if reason is not None:
        schedule.progress = schedule.progress._replace(
            planned_ms=next_ms, resume_ms=None, skipped=skipped + 1
        )
        _tell(state, schedule, "cron_skipped", planned_ms, now, reason=reason)
        return next_ms
    state.schedules.note_firing(clock - planned_ms)
    runs += 1
    if definition.limit is not None and runs >= definition.limit:
        next_ms = None
    if state.storage is None:
        _tell(state, schedule, "cron_fired", planned_ms, now, record.id)
        admit(state, queue, record, own, now)
    else:
        _stage(state, schedule, record, own, planned_ms, now)
    schedule.progress = _tuple(Progress, (next_ms, None, runs, skipped, planned_ms, now, record.id))
    return next_ms


def _record(job_id: str, schedule: Schedule) -> tuple[JobRecord, Own | None]:
    name, data, options, priority, own, custom_id, key, claim = schedule.template
    record = JobRecord(job_id, schedule.queue, name, options, priority, data)
    if own is None:
        return record, None
    record.custom_id, record.unique_key = custom_id, key
    # the moments of a claim are its job's own
    record.claim = (
        Claim(claim.ttl_ms, claim.mode, claim.held) if isinstance(claim, Claim) else claim
    )
    return record, own


def _is_live(state: State, schedule: Schedule, job_id: str | None) -> bool:
    if job_id is None:
        return False
    if schedule.staged == job_id:
        return True
    record = state.index.get(job_id)
    return record is not None and record.state <= ACTIVE


def _in_the_way(queue: QueueState, record: JobRecord, own: Own, now: int) -> str | None:
    """Why the job would not come in, though its time has come."""
    holder = None if record.custom_id is None else queue.custom_ids.get(record.custom_id)
    if holder is not None and holder.state <= ACTIVE:
        return "duplicate"
    if record.unique_key is not None and queue.unique_keys.original(record, now) is not None:
        return "duplicate"
    if own.group_limit is not None and group_full(queue, record, own, now) is not None:
        return "group_full"
    return None


def _stage(
    state: State, schedule: Schedule, record: JobRecord, own: Own | None, planned: int, now: int
) -> None:
    """Marks the job, which nobody sees until that is on disk."""
    queue: QueueState = schedule.queue
    assert state.storage is not None
    record.created_ms = record.run_at_ms = record.entered_ms = now
    queue.seq += 1
    record.key = departed_key(queue.seq)
    if own is not None:
        record.run_at_ms += own.delay_ms
        if own.tags:
            record.need_side().tags = own.tags
        if own.group is not None:
            record.need_side().group = own.group
    mark_new(queue, record)
    schedule.staged = record.id
    state.schedules.staged.append(
        Staged(state.storage.cut, schedule, record, own or NAMED, planned)
    )


def publish(state: State) -> int:
    """Has every staged job whose cut is on disk come in; asks to be told of the next. Returns how
    many came."""
    staged, storage = state.schedules.staged, state.storage
    assert storage is not None
    published = 0
    while staged and not state.schedules.asked:
        cut = staged[0].cut
        if not _is_committed(state, cut):
            break
        while staged and staged[0].cut <= cut:
            _publish(state, staged[0])
            staged.popleft()
            published += 1
    return published


def _is_committed(state: State, cut: int) -> bool:
    """Whether that cut is on disk. If not, but writing goes on, `asked` is set until it is."""
    schedules = state.schedules

    def tell() -> None:
        schedules.asked = False
        state.alarm.set(state.now())

    # before: the answer may come at once, from another thread
    schedules.asked = True
    assert state.storage is not None
    ticket = state.storage.watch(cut, tell)
    if ticket is None or ticket.error is not None:
        schedules.asked = False
    return ticket is None


def _publish(state: State, item: Staged) -> None:
    record, schedule = item.record, item.schedule
    queue: QueueState = record.queue
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        if record.id in state.index:
            return  # an exception has broken this off before
        now = state.now()
        shard.gate = BROKEN
        _tell(state, schedule, "cron_fired", item.planned_ms, now, record.id)
        job, _ = admit(state, queue, record, item.own, now)
        dirty = shard.dirty
        assert dirty is not None
        # the writer knows of it: should it leave at once, it leaves the file too
        dirty.fresh.discard(record.id)
        if job is not record:
            # since it was staged, its id or key has gone to another
            dirty.tombstone(record.id, len(record.data), -1)
            _tell(state, schedule, "cron_skipped", item.planned_ms, now, reason="duplicate")
        if schedule.staged == record.id:
            schedule.staged = None
        shard.gate = OPEN
    shard.call_after()


def _tell(
    state: State,
    schedule: Schedule,
    kind: str,
    planned_ms: int,
    now: int,
    job_id: str | None = None,
    **carried: Any,
) -> None:
    if state.events.any:
        carried["scheduler"], carried["planned_at_ms"] = schedule.id, planned_ms
        emit(state, schedule.queue, kind, job_id, now, carried)
