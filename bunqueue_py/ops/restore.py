"""What a storage holds becomes the state of a manager that nobody uses yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from ..errors import StorageError
from ..model.claim import Claim, is_held
from ..model.failure import Failure, bounded
from ..model.job import ACTIVE, PENDING, Delivery, JobRecord
from ..model.rows import ID, PLAIN_WIDTH, QUEUE, SEQ, JobRow, PlainRow, plain_record, record_from
from ..model.schedule import PROGRESS_KIND, SCHEDULE_KIND
from ..model.window import RateWindow
from ..shard.dirty import GROUP_KIND, HELD_KIND
from ..shard.keys import departed_key
from ..shard.queue_state import QueueState
from ..shard.settings import restore_group, restore_settings
from ..shard.shard import BROKEN, OPEN
from ..shard.unique_keys import stands
from ..state import State
from ..storage.base import Recovered
from ..stores.logs import Line
from ..types import FailureReason
from .careful import CAREFUL_MS
from .fail import end_run, wait_before_retry
from .finish import finalize
from .fire import LATE_MS
from .flow import drain, look_again
from .give_back import give_back
from .log_rows import LOG_KIND, read_line, restore_logs
from .mark import QUEUE_KIND, mark, mark_group, mark_held, mark_new, mark_queue
from .outcomes import EDGES_KIND, PROOF_KIND
from .recover import STRAY_SHARE, Found, make_anew
from .restore_ties import Ties
from .retention import trim
from .schedule import restore_one, stamps
from .tally import MINUTES_KIND, begin_tally, restore_minutes
from .webhooks import WEBHOOK_KIND

_log = logging.getLogger("bunqueue_py.storage")
_LOST = Failure(FailureReason.WORKER_LOST, "the process ended while the job was active")


def restore(state: State, recovered: Recovered) -> None:
    """Takes in whatever the storage holds. Runs that were under way are lost deliveries, or given
    back uncharged after a close in good order. What this changes is marked."""
    now = state.now()
    held: list[tuple[str, Any]] = []
    logs: dict[str, list[Line]] = {}
    schedules: dict[str, dict[str, Any]] = {SCHEDULE_KIND: {}, PROGRESS_KIND: {}}
    ties = Ties()
    for kind, key, body in recovered.rest:
        if kind == HELD_KIND:
            held.append((key, body))
        elif kind in (PROOF_KIND, EDGES_KIND):
            with _passed_over(kind, key):
                ties.take(kind, key, body)
        elif kind == QUEUE_KIND:
            with _passed_over(kind, key):
                restore_settings(_queue_of(state, key), body)
        elif kind == GROUP_KIND:
            with _passed_over(kind, key):
                queue_name, _, group = key.partition("\0")
                restore_group(_queue_of(state, queue_name), group, body)
        elif kind == LOG_KIND:
            with _passed_over(kind, key):
                job_id, line = read_line(key, body)
                logs.setdefault(job_id, []).append(line)
        elif kind == WEBHOOK_KIND:
            with _passed_over(kind, key):
                state.webhooks.restore(key, body)
        elif kind == MINUTES_KIND:
            with _passed_over(kind, key):
                queue_name, _, hour = key.partition("\0")
                restore_minutes(state, _queue_of(state, queue_name), hour, body)
        elif kind in schedules:
            schedules[kind][key] = body
    lost: list[JobRecord] = []
    broken: list[StorageError] = []
    parts, latest = _restore_jobs(state, recovered.jobs, lost, broken)
    shift = max(0, max(latest, *stamps(schedules[PROGRESS_KIND]), 0) - now)
    if shift:
        _turn_back(state, shift)
    for key, body in held:
        with _passed_over(HELD_KIND, key):
            _restore_held(state, key, body, shift, now)
    _restore_schedules(state, schedules, shift, clean=recovered.clean)
    for record in lost:
        _hand_out(state, record, now)
    for part in parts.values():
        _take_keys(part.others, now)
        ties.fasten(state, part.others)
    ties.keep_proofs(state)
    _remember_starts(state, parts, now)
    for shard in state.shards.shards:
        with shard.lock:
            shard.gate = BROKEN
            make_anew(state, shard, parts)
            shard.gate = OPEN
    _end_lost(state, lost, clean=recovered.clean)
    _bury(state, broken)
    restore_logs(state, logs)
    look_again(state)
    drain(state)
    for shard in state.shards.shards:
        shard.careful_ms = 0 if recovered.clean else now + CAREFUL_MS
        shard.call_after()
    trim(state)
    if state.index:
        _log.info("recovered %d jobs, %d runs were under way", len(state.index), len(lost))


def _queue_of(state: State, name: str) -> QueueState:
    found = state.queues.get(name)
    return found or state.shards.queue(state.queues, name, partial(begin_tally, state))


def _restore_jobs(
    state: State,
    rows: Iterable[JobRow | PlainRow | StorageError],
    lost: list[JobRecord],
    broken: list[StorageError],
) -> tuple[dict[str, Found], int]:
    """Puts the records into the index; returns them by queue, and the latest moment that any of
    them tells of."""
    index = state.index
    parts: dict[str, Found] = {}
    latest = told = 0
    name: str | None = None
    found: Found
    queue: QueueState
    for row in rows:
        if row.__class__ is not tuple:
            assert isinstance(row, StorageError)
            broken.append(row)
            continue
        told += 1
        if row[QUEUE] != name:
            name = row[QUEUE]
            found = parts.get(name) or parts.setdefault(name, Found(_queue_of(state, name)))
            queue = found.queue
        if len(row) == PLAIN_WIDTH:
            job_id, _, seq, run_at_ms, entered_ms, job_name, options, data = row
            record = plain_record(job_id, queue, run_at_ms, entered_ms, job_name, options, data)
            index[job_id] = record
            if entered_ms > latest:
                latest = entered_ms
            if (
                options.is_plain
                and found.run_at_ms <= run_at_ms <= entered_ms
                and found.entered_ms <= entered_ms
                and found.seq < seq
            ):
                # what the long way below comes to
                record.key = found.seq = seq
                found.run_at_ms, found.entered_ms = run_at_ms, entered_ms
                found.line.append(record)
                continue
        else:
            record = record_from(row, queue)
            seq, entered_ms, options = row[SEQ], record.entered_ms, record.options
            index[row[ID]] = record
            if entered_ms > latest:
                latest = entered_ms
        if (
            record.state == PENDING
            and record.side is None
            and found.run_at_ms <= record.run_at_ms <= entered_ms
            and found.entered_ms <= entered_ms
            and found.seq < seq
            and not record.priority
            and not options.lifo
        ):
            record.key = found.seq = seq
            found.run_at_ms, found.entered_ms = record.run_at_ms, entered_ms
            found.line.append(record)
            if (
                options.is_plain
                and record.custom_id is None
                and record.unique_key is None
                and record.started_ms is None
            ):
                continue
        else:
            record.key = departed_key(seq)
            if seq > queue.seq:
                queue.seq = seq
            if record.state == PENDING:
                if seq > found.seq:
                    found.seq = seq
                else:
                    found.mixed = True
                found.strays += not record.priority
            elif record.state == ACTIVE:
                lost.append(record)
        found.others.append(record)
    for found in parts.values():
        queue = found.queue
        queue.seq = max(queue.seq, found.seq)
        if told != len(index):
            # a damaged file has an id twice
            found.mixed = True
        if found.mixed or found.strays * STRAY_SHARE > len(found.line):
            found.dissolve()
            found.others = [r for r in found.others if index[r.id] is r]
    return parts, latest


def _turn_back(state: State, shift: int) -> None:
    """The wall clock stands before moments that have been: the timeline, which begins at it, does
    too. Moves every moment back, so that what was ready is ready and every wait as long."""
    _log.warning("the clock stands %d ms before the last run's end; moments move back", shift)
    for record in state.index.values():
        side = record.side
        if side is None or not side.anchored:
            record.run_at_ms = max(0, record.run_at_ms - shift)
        record.entered_ms = max(0, record.entered_ms - shift)
        record.created_ms = max(0, record.created_ms - shift)
        if record.started_ms is not None:
            record.started_ms = max(0, record.started_ms - shift)
        claim = record.claim
        if isinstance(claim, Claim) and claim.until_ms:
            claim.until_ms = max(1, claim.until_ms - shift)
        if side is not None and side.letter is not None:
            side.letter.since_ms = max(0, side.letter.since_ms - shift)
        if side is not None and side.last_retry_ms is not None:
            side.last_retry_ms = max(0, side.last_retry_ms - shift)
        mark(record.queue, record)
    for queue in state.queues.values():
        groups = () if queue.groups is None else queue.groups.by_name.values()
        for limits in (queue.limits, *(group.limits for group in groups)):
            if limits is None:
                continue
            if limits.cool_until_ms:
                limits.cool_until_ms = max(1, limits.cool_until_ms - shift)
            if limits.window_ends_ms is not None:
                limits.window_ends_ms = max(1, limits.window_ends_ms - shift)
        mark_queue(queue)
        for group in groups:
            mark_group(queue, group)


@contextmanager
def _passed_over(kind: str, key: str) -> Iterator[None]:
    """What is JSON and yet makes no sense stays where it is, and costs nothing else."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        _log.error("%s of %r cannot be understood, and is passed over: %r", kind, key, error)


def _restore_held(state: State, name: str, body: Any, shift: int, now: int) -> None:
    queue_name, _, key = name.partition("\0")
    job_id, ttl_ms, mode, until_ms = body
    queue = _queue_of(state, queue_name)
    if until_ms is None or until_ms - shift <= now:
        if queue.shard.dirty is not None:
            queue.shard.dirty.keep(HELD_KIND, name, None)
        return
    holder = _gone(state, queue, job_id, key, ttl_ms, mode, until_ms - shift)
    queue.unique_keys.hold_for(holder)
    if shift:
        mark_held(queue, holder)


def _restore_schedules(
    state: State, found: dict[str, dict[str, Any]], shift: int, *, clean: bool
) -> None:
    schedules = state.schedules
    # a process that died had perhaps just come to what it was to do within the last minute
    grace_ms = 0 if clean else LATE_MS
    schedules.missed_by_time = state.now() - grace_ms
    schedules.missed_by_wall = state.wall() - grace_ms
    for name, body in found[SCHEDULE_KIND].items():
        with _passed_over(SCHEDULE_KIND, name):
            queue_name, _, schedule_id = name.partition("\0")
            queue = _queue_of(state, queue_name)
            come = found[PROGRESS_KIND].get(name)
            with queue.lock:
                restore_one(state, queue, schedule_id, body, come, shift)


def _gone(
    state: State,
    queue: QueueState,
    job_id: str,
    key: str,
    ttl_ms: int | None,
    mode: int,
    until_ms: int,
) -> JobRecord:
    """Stands for a job that is gone and holds its key on."""
    record = JobRecord(job_id, queue, "", state.options.default, 0, b"")
    record.created_ms = record.run_at_ms = record.entered_ms = 0
    record.unique_key, record.claim = key, Claim(ttl_ms, mode, True, until_ms)
    record.remove()
    return record


def _take_keys(records: Iterable[JobRecord], now: int) -> None:
    """Keys that finished jobs hold by time; those of live ones the rebuild finds by itself."""
    for record in records:
        if record.state > ACTIVE and is_held(record.claim) and stands(record, now):
            record.queue.unique_keys.hold_for(record)


def _remember_starts(state: State, parts: dict[str, Found], now: int) -> None:
    """Fills the windows of rate limits with the starts that the records still tell of."""
    windows: dict[tuple[QueueState, str | None], RateWindow] = {}
    for queue in state.queues.values():
        if queue.limits is not None and queue.limits.window is not None:
            windows[queue, None] = queue.limits.window
        for group in () if queue.groups is None else queue.groups.by_name.values():
            if group.limits is not None and group.limits.window is not None:
                windows[queue, group.name] = group.limits.window
    if not windows:
        return
    starts: dict[tuple[QueueState, str | None], list[int]] = {key: [] for key in windows}
    for record in chain.from_iterable(part.others for part in parts.values()):
        if record.started_ms is None:
            continue
        names = {None, None if record.side is None else record.side.group}
        for key in ((record.queue, name) for name in names):
            if key in windows and record.started_ms + windows[key].per_ms > now:
                starts[key].append(record.started_ms)
    for key, window in windows.items():
        window.starts.extend(sorted(starts[key])[-window.max :])


def _hand_out(state: State, record: JobRecord, now: int) -> None:
    """Gives an active record a delivery that nobody holds, for `end_run` to end."""
    delivery = Delivery.of(record, state.new_token(), None, None, None, True)
    delivery.beat_ms, delivery.suspected_ms = now, None
    record.delivery, record.last_token = delivery, delivery.token


def _end_lost(state: State, lost: list[JobRecord], *, clean: bool) -> None:
    for record in lost:
        queue: QueueState = record.queue
        # outside the lock: a custom back-off is the application's code
        wait_ms = 0 if clean else wait_before_retry(state, record, _LOST.error)
        with queue.lock:
            now = state.now()
            queue.shard.gate = BROKEN
            if clean:
                give_back(state, queue, record, now, 0, started=True)
            else:
                end_run(state, queue, record, _LOST, wait_ms, now, by_sweep=True)
            queue.shard.gate = OPEN


def _bury(state: State, broken: list[StorageError]) -> None:
    """Rows that nobody understands go to the dead letters, with the bytes of their payload."""
    for error in broken:
        raw: tuple[Any, ...] = getattr(error, "raw", ())
        job_id, name = (raw[0], raw[1]) if len(raw) > 1 else (None, None)
        if not isinstance(job_id, str) or not isinstance(name, str) or job_id in state.index:
            _log.error("a row of the storage was passed over: %s", error)
            continue
        _log.error("job %s cannot be recovered and goes to the dead letters: %s", job_id, error)
        queue = _queue_of(state, name)
        data = raw[8] if len(raw) > 8 and isinstance(raw[8], bytes) else b""
        record = JobRecord(job_id, queue, "undecodable", state.options.default, 0, data)
        with queue.lock:
            now = state.now()
            queue.shard.gate = BROKEN
            record.created_ms = record.run_at_ms = record.entered_ms = now
            queue.admitted += 1
            state.index[job_id] = record
            queue.place(record, now)
            mark_new(queue, record)
            failure = Failure(FailureReason.UNDECODABLE, bounded(str(error)))
            finalize(state, queue, record, failure, now)
            queue.shard.gate = OPEN
