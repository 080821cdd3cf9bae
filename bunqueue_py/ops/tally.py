"""Counting the ends of jobs by the minute, and how long they waited and ran. Called under the
shard's lock."""

from __future__ import annotations

from ..model.figures import Totals
from ..model.job import JobRecord
from ..shard.dirty import minutes_name
from ..shard.queue_state import QueueState
from ..shard.tally import MARK_MS, TICK_MS, Tally, packed
from ..state import State

MINUTES_KIND = "minutes"
_HOURS = 24
_HOUR_MS = 3_600_000


def begin_tally(state: State, queue: QueueState) -> None:
    """The queue is new: from now on its jobs are counted."""
    queue.tally = Tally(Totals(), state.now())


def look(state: State, queue: QueueState, record: JobRecord, now: int, *, ran: bool) -> None:
    """A job is about to be counted as ended, and `queue.look_ms` has passed; `ran`: out of a run
    that ends with it."""
    times = queue.shard.times
    if times is None:
        queue.look_ms = (now // TICK_MS + 1) * TICK_MS
    else:
        # every end is looked at, and nearly all have nothing else to say
        started = record.started_ms
        if ran and started is not None:
            # what `note_run` does, in line
            waits, runs = times.waits, times.runs
            waited, took = started - record.run_at_ms, now - started
            if waited > 0:
                waits.total += waited
                waits.counts[waited.bit_length()] += 1
            else:
                waits.counts[0] += 1
            if took > 0:
                runs.total += took
                runs.counts[took.bit_length()] += 1
            else:
                runs.counts[0] += 1
        tally = queue.tally
        if tally is not None and now < tally.next_ms:
            return
    count(state, queue, now)


def note_run(queue: QueueState, record: JobRecord, now: int) -> None:
    """A run ends now: how long the job had waited for it, and how long it took."""
    times, started = queue.shard.times, record.started_ms
    if times is not None and started is not None:
        times.waits.note(started - record.run_at_ms)
        times.runs.note(now - started)


def count(state: State, queue: QueueState, now: int) -> None:
    """Puts what was counted since the last look where it belongs, and marks it now and then."""
    tally = queue.tally
    if tally is None:
        queue.tally = Tally(totals_of(queue), now)
        return
    if now < tally.next_ms:
        return
    over = tally.look(totals_of(queue), now)
    days = state.config.completed_metrics_days
    if over is not None:
        if days and over in tally.closed:
            _keep(queue, over, tally.closed[over])
        for hour in tally.forget_before(now // _HOUR_MS - days * _HOURS):
            _keep(queue, hour, None)
    if days and (over is not None or now >= tally.mark_ms):
        tally.mark_ms = now + MARK_MS
        mark_minutes(queue)


def mark_minutes(queue: QueueState) -> None:
    """The open hour's counts are as they are now."""
    tally = queue.tally
    if tally is not None and queue.shard.dirty is not None and any(tally.minutes):
        _keep(queue, tally.hour, packed(tally.minutes))


def mark_last(state: State, queue: QueueState, now: int) -> None:
    """The manager closes: what was counted since the last mark is not lost."""
    tally = queue.tally
    if tally is not None and state.config.completed_metrics_days:
        over = tally.look(totals_of(queue), now)
        if over is not None and over in tally.closed:
            _keep(queue, over, tally.closed[over])
        mark_minutes(queue)


def restore_minutes(state: State, queue: QueueState, hour_text: str, body: object) -> None:
    """Takes in what a file tells of one hour, unless that is too long ago. Raises `ValueError`."""
    hour, now = int(hour_text), state.now()
    if not isinstance(body, str):
        raise ValueError("the counts of an hour are a text")
    if hour < now // _HOUR_MS - state.config.completed_metrics_days * _HOURS:
        _keep(queue, hour, None)
        return
    if queue.tally is None:
        queue.tally = Tally(totals_of(queue), now)
    queue.tally.restore(hour, body)


def totals_of(queue: QueueState) -> Totals:
    """The queue's totals since the manager was opened."""
    return Totals(queue.admitted + queue.admitted_shift, queue.completed_total, queue.failed_total)


def _keep(queue: QueueState, hour: int, body: str | None) -> None:
    dirty = queue.shard.dirty
    if dirty is not None:
        dirty.keep(MINUTES_KIND, minutes_name(queue.name, hour), body)
