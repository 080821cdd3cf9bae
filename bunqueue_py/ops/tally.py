"""Counting the ends of jobs by the minute, and how long they waited and ran. Called under the
shard's lock."""

from __future__ import annotations

from ..model.figures import Totals
from ..model.job import JobRecord
from ..shard.dirty import minutes_name
from ..shard.keys import LIMIT
from ..shard.queue_state import QueueState
from ..shard.shard import Times
from ..shard.tally import Tally, packed
from ..state import State

MINUTES_KIND = "minutes"
MAX_TALLIES = 10_000
"""Of so many queues that were let go a shard keeps the counts."""
_HOURS = 24
_HOUR_MS = 3_600_000


def begin_tally(state: State, queue: QueueState) -> None:
    """The queue is new, or was let go and comes again: from now on its jobs are counted."""
    queue.tally = queue.shard.tallies.pop(queue.name, None) or Tally(Totals(), state.now())


def keep_tally(queue: QueueState) -> None:
    """The queue is let go; what was counted is told for as long as ever. Called under the shard's
    lock."""
    tally, kept = queue.tally, queue.shard.tallies
    if tally is not None and tally.rest(totals_of(queue)):
        kept[queue.name] = tally
        if len(kept) > MAX_TALLIES:
            del kept[next(iter(kept))]


def note_run(times: Times, record: JobRecord, now: int) -> None:
    """A run ends now: how long the job had waited for it, and how long it took."""
    started = record.started_ms
    if started is None:
        return
    waits, runs = times.waits, times.runs
    waited, took = started - record.run_at_ms, now - started
    # what `Spread.note` does, in line: this is on the way of every job that is measured
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


def look(state: State, queue: QueueState, now: int) -> None:
    """`queue.look_ms` has passed, and the first job since then is about to be counted as ended:
    puts what was counted since the last look where it belongs, and has what is counted from now on
    marked when its second is over."""
    tally, shard = queue.tally, queue.shard
    if tally is None:
        tally = queue.tally = Tally(totals_of(queue), now)
    elif now >= tally.next_ms:
        added = queue.admitted + queue.admitted_shift
        over = tally.look((added, queue.completed_total, queue.failed_total), now)
        if over is not None:
            _put_by(state, queue, tally, over, now)
    queue.look_ms = tally.next_ms
    if shard.dirty is not None and state.config.completed_metrics_days:
        shard.counting[queue] = None
        state.counting.arm(tally.next_ms)
        if not state.alarm.served:
            shard.after.append(state.alarm.start)


def _put_by(state: State, queue: QueueState, tally: Tally, over: int, now: int) -> None:
    """That hour is over."""
    days = state.config.completed_metrics_days
    if days and over in tally.closed:
        _keep(queue, over, tally.closed[over])
    for hour in tally.forget_before(now // _HOUR_MS - days * _HOURS):
        _keep(queue, hour, None)


def mark_counts(state: State, queue: QueueState, now: int) -> int | None:
    """Marks what the queue has counted, if the second of its last look is over; otherwise returns
    when that is. Called under the shard's lock, in a section."""
    tally = queue.tally
    if tally is not None:
        if now < tally.next_ms:
            return tally.next_ms
        over = tally.look(totals_of(queue), now)
        if over is not None:
            _put_by(state, queue, tally, over, now)
        # the next end looks again, and has itself marked anew: `look_ms` has passed
        _mark_open_hour(queue, tally)
    return None


def _mark_open_hour(queue: QueueState, tally: Tally) -> None:
    if any(tally.minutes):
        _keep(queue, tally.hour, packed(tally.minutes))


def mark_last(state: State, queue: QueueState, now: int) -> None:
    """The manager closes: what was counted since the last mark is not lost."""
    tally = queue.tally
    if tally is not None and state.config.completed_metrics_days:
        over = tally.look(totals_of(queue), now)
        if over is not None and over in tally.closed:
            _keep(queue, over, tally.closed[over])
        _mark_open_hour(queue, tally)


def restore_minutes(state: State, queue: QueueState, hour_text: str, body: object) -> None:
    """Takes in what a file tells of one hour, unless that is too long ago. Raises `ValueError`."""
    hour, now = _hour(hour_text), state.now()
    if not isinstance(body, str):
        raise ValueError("the counts of an hour are a text")
    if hour < now // _HOUR_MS - state.config.completed_metrics_days * _HOURS:
        _keep(queue, hour, None)
        return
    if queue.tally is None:
        queue.tally = Tally(totals_of(queue), now)
    queue.tally.restore(hour, body)


def read_hour(which: int, key: str, body: object) -> list[tuple[int, int]]:
    """The (moment, count) of the minutes of a row that a file keeps. Raises `ValueError`."""
    if not isinstance(body, str):
        raise ValueError("the counts of an hour are a text")
    return Tally.points_of(which, _hour(key.partition("\0")[2]), body)


def _hour(text: str) -> int:
    hour = int(text)
    if not 0 <= hour * _HOUR_MS < LIMIT:
        raise ValueError("an hour that no clock has shown")
    return hour


def totals_of(queue: QueueState) -> Totals:
    """The queue's totals since the manager was opened."""
    return Totals(queue.admitted + queue.admitted_shift, queue.completed_total, queue.failed_total)


def _keep(queue: QueueState, hour: int, body: str | None) -> None:
    dirty = queue.shard.dirty
    if dirty is not None:
        dirty.keep(MINUTES_KIND, minutes_name(queue.name, hour), body)
