"""`stats()`: every queue is looked at in its own moment, a few dozen a hold of their lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..durations import ms_to_moment
from ..model.figures import (
    Latency,
    ListenerBuffer,
    ListenerStats,
    ManagerStats,
    MinuteCount,
    QueueStats,
    StorageStats,
    Throughput,
    Totals,
)
from ..model.spread import Distribution, distribution
from ..ops.recover import check_open, enter
from ..ops.tally import totals_of
from ..shard.queue_state import QueueState
from ..shard.shard import Shard
from ..state import State
from ..types import JobCounts

BITE = 64
WAIT_BUCKETS = 32
_HOUR_MS = 3_600_000
_NO_RATES = Throughput()
COUNTED = tuple(JobCounts.__dataclass_fields__)
_COUNTS_END = len(COUNTED)
_TOTALS_END = _COUNTS_END + len(Totals._fields)
_SIZES = (
    "ready_jobs",
    "delayed_jobs",
    "custom_ids",
    "deduplication_keys",
    "waiters",
    "groups",
    "counted_hours",
)
"""The collections of a queue that have no state of their own."""
_ALSO_COUNTED = {"active": "active_jobs", "completed": "completed_jobs", "failed": "dead_letters"}
_new, _set, _tuple = object.__new__, object.__setattr__, tuple.__new__
_Number = TypeVar("_Number", int, float)


def read(state: State) -> ManagerStats:
    """All of it."""
    check_open(state)
    memory: Counter[str] = Counter()
    found: list[_Line] = []
    for shard in state.shards.shards:
        found += _lines(state, shard, memory)
    queues = {line[0]: _stats_of(line) for line in found}
    sums = _sums([line[2] for line in found], len(COUNTED) + len(Totals._fields) + len(_SIZES))
    rates = _sums([line[3] for line in found], len(Throughput._fields))
    sizes = dict(zip(_SIZES, sums[_TOTALS_END:], strict=True))
    for name in ("active", "completed", "failed"):
        sizes[_ALSO_COUNTED[name]] = sums[COUNTED.index(name)]
    memory.update(sizes)
    return ManagerStats(
        at=ms_to_moment(state.now()),
        counts=JobCounts(*sums[:_COUNTS_END]),
        totals=Totals(*sums[_COUNTS_END:_TOTALS_END]),
        throughput=Throughput(*rates),
        # in the order in which the queues came into being
        queues={name: queues[name] for name in list(state.queues) if name in queues},
        times={name: latency(d) for name, d in distributions(state).items()},
        storage=_storage(state),
        memory=_memory(state, memory),
        listeners=listeners(state),
    )


_Line = tuple[str, bool, tuple[int, ...], Throughput]
"""What is read of one queue under its lock: its name, whether it is paused, as plain numbers its
counts, its totals and the sizes of its collections, and its rates."""


def _lines(state: State, shard: Shard, memory: Counter[str]) -> Iterator[_Line]:
    with shard.lock:
        queues = list(shard.queues.values())
        memory["deadlines"] += len(shard.deadlines)
        memory["watched_jobs"] += len(shard.watched)
        memory["completed_bytes"] += shard.finished_bytes
        if shard.dirty is not None:
            memory["unwritten_changes"] += len(shard.dirty)
    for start in range(0, len(queues), BITE):
        with shard.lock:
            if shard.gate:
                enter(state, shard)
            now, wall = state.now(), state.wall()
            bite = [_line(queue, now, wall) for queue in queues[start : start + BITE]]
        yield from bite


def _line(queue: QueueState, now: int, wall: int) -> _Line:
    ready, groups, tally = queue.ready, queue.groups, queue.tally
    delayed = len(queue.delayed.members) + len(queue.anchored.members)
    totals = (queue.admitted + queue.admitted_shift, queue.completed_total, queue.failed_total)
    counts: tuple[int, ...]
    if groups is None and not delayed and ready.lanes is None and not queue.paused:
        # `by_state` of most queues, in line
        size, high = len(ready.lane.records) - ready.lane.stale + ready.heaped, ready.heap_high
        ended = queue.completed.size, len(queue.dead.records)
        counts = (size - high, high, 0, len(queue.gated), len(queue.active), *ended, 0)
    else:
        size = queue.ready_count
        counts = queue.by_state(now, wall)
    sizes = (
        # in the order of `_SIZES`
        size,
        delayed,
        len(queue.custom_ids),
        len(queue.unique_keys.owners),
        len(queue.waiters.line),
        0 if groups is None else len(groups.by_name),
        0 if tally is None else len(tally.closed),
    )
    rates = _NO_RATES if tally is None else tally.rates_at(totals, now)
    return queue.name, queue.paused, counts + totals + sizes, rates


def _stats_of(line: _Line) -> QueueStats:
    _, paused, numbers, rates = line
    counts = _new(JobCounts)
    # the constructor of a frozen dataclass stores one field after the other, at twice this
    _set(counts, "__dict__", dict(zip(COUNTED, numbers, strict=False)))
    totals = _tuple(Totals, numbers[_COUNTS_END:_TOTALS_END])
    return _tuple(QueueStats, (counts, paused, totals, rates))


def _sums(rows: Sequence[Sequence[_Number]], width: int) -> list[_Number]:
    return [sum(column) for column in zip(*rows, strict=True)] if rows else [0] * width


def _memory(state: State, parts: Counter[str]) -> dict[str, int]:
    sizes = {
        "jobs": len(state.index),
        "queues": len(state.queues),
        "results": len(state.results),
        "results_bytes": state.results.size,
        "proofs": len(state.proofs),
        "logged_jobs": len(state.logs),
        "log_bytes": state.logs.size,
        "pinned_results": len(state.results.pinned),
        "depended_on_jobs": len(state.dependencies.dependents),
        "schedulers": len(state.schedules),
        "workers": len(state.workers),
        "webhooks": len(state.webhooks),
        "webhook_deliveries": state.webhooks.waiting(),
    }
    return {**sizes, **dict(sorted(parts.items()))}


def _storage(state: State) -> StorageStats | None:
    if state.storage is None:
        return None
    health = state.storage.health()
    return StorageStats(
        lag=health.lag_ms / 1000,
        rows_waiting=health.rows_waiting,
        commits=health.commits,
        rows_written=health.rows_written,
        log_bytes=health.log_bytes,
        error=None if health.error is None else str(health.error),
    )


def listeners(state: State) -> ListenerStats:
    """How the subscriptions of the event bus are doing."""
    each = tuple(ListenerBuffer(box.name, box.backlog, box.lost) for box in state.events.buffers())
    return ListenerStats(len(each), sum(one.backlog for one in each), state.events.lost, each)


def distributions(state: State) -> dict[str, Distribution]:
    """What was measured, by name; empty if nothing is."""
    if state.timings is None:
        return {}
    found = state.timings.read()
    times = []
    for shard in state.shards.shards:
        with shard.lock:
            if shard.times is not None:
                parts = shard.times.waits, shard.times.runs
                times.append([(s.counts_and(shard.times.at_once), s.total) for s in parts])
    for i, name in enumerate(("wait", "run")):
        found[name] = distribution((pair[i] for pair in times), 0.001, WAIT_BUCKETS)
    return found


def latency(found: Distribution) -> Latency:
    """The figures of a distribution."""
    count = found.count
    mean = found.total / count if count else 0.0
    return Latency(count, mean, *(found.quantile(share) for share in (0.5, 0.95, 0.99)))


def minutes(state: State, queue_name: str, which: int) -> list[MinuteCount]:
    """The minutes in which jobs of the queue ended so (0: completed, 1: failed), oldest first."""
    check_open(state)
    days = state.config.completed_metrics_days
    if not days:
        return []
    shard = state.shards.of(queue_name)
    with shard.lock:
        if shard.gate:
            enter(state, shard)
        queue = shard.queues.get(queue_name)
        tally = shard.tallies.get(queue_name) if queue is None else queue.tally
        if tally is None:
            return []
        since = state.now() // _HOUR_MS - days * 24
        totals = Totals() if queue is None else totals_of(queue)
        closed, points = tally.closed.copy(), list(tally.open_points(which, totals))
        hour = tally.hour
    # what is over never changes: it is unpacked with nothing held
    for over in sorted((h for h in closed if since <= h), reverse=True):
        assert over != hour
        points[:0] = tally.points_of(which, over, closed[over])
    return [MinuteCount(ms_to_moment(at), n) for at, n in sorted(points)]
