"""`stats()`: every queue is looked at in its own moment, a few dozen a hold of their lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..durations import ms_to_moment
from ..model.figures import (
    Latency,
    ListenerStats,
    ManagerStats,
    MinuteCount,
    QueueStats,
    StorageStats,
    Throughput,
    Totals,
)
from ..ops.recover import check_open, enter
from ..ops.tally import totals_of
from ..shard.queue_state import QueueState
from ..shard.shard import Shard
from ..shard.spread import Distribution, distribution
from ..shard.tally import COMPLETED, FAILED
from ..state import State
from ..types import JobCounts
from .timing import Timing

BITE = 64
WAIT_BUCKETS = 32
_HOUR_MS = 3_600_000
_NO_RATES = Throughput()
COUNTED = tuple(JobCounts.__dataclass_fields__)


def read(state: State, timing: Timing | None) -> ManagerStats:
    """All of it."""
    check_open(state)
    queues: dict[str, QueueStats] = {}
    memory: Counter[str] = Counter()
    for shard in state.shards.shards:
        for name, found in _shard_stats(state, shard, memory):
            queues[name] = found
    found_all = queues.values()
    totals = [sum(part) for part in zip(*(q.totals for q in found_all), strict=True)]
    rates = [sum(part) for part in zip(*(q.throughput for q in found_all), strict=True)]
    sums = [sum(part) for part in zip(*map(_numbers, found_all), strict=True)]
    return ManagerStats(
        at=ms_to_moment(state.now()),
        counts=JobCounts(*sums),
        totals=Totals(*totals),
        throughput=Throughput(*rates),
        # in the order in which the queues came into being
        queues={name: queues[name] for name in list(state.queues) if name in queues},
        times={name: latency(d) for name, d in distributions(state, timing).items()},
        storage=_storage(state),
        memory=_memory(state, memory),
        listeners=listeners(state),
    )


def _shard_stats(
    state: State, shard: Shard, memory: Counter[str]
) -> Iterator[tuple[str, QueueStats]]:
    with shard.lock:
        queues = list(shard.queues.values())
        memory["deadlines"] += len(shard.deadlines)
        memory["watched_jobs"] += len(shard.watched)
        memory["completed_bytes"] += shard.finished_bytes
        if shard.dirty is not None:
            memory["unwritten_changes"] += len(shard.dirty)
    for start in range(0, len(queues), BITE):
        bite = []
        with shard.lock:
            if shard.gate:
                enter(state, shard)
            now, wall = state.now(), state.wall()
            for queue in queues[start : start + BITE]:
                bite.append((queue.name, _queue_stats(queue, now, wall)))
                _count_memory(queue, memory)
        yield from bite


def _queue_stats(queue: QueueState, now: int, wall: int) -> QueueStats:
    totals, tally = totals_of(queue), queue.tally
    rates = _NO_RATES if tally is None else tally.rates_at(totals, now)
    return QueueStats(queue.counts(now, wall), queue.paused, totals, rates)


def _count_memory(queue: QueueState, memory: Counter[str]) -> None:
    memory["ready_jobs"] += queue.ready_count
    memory["delayed_jobs"] += len(queue.delayed.members) + len(queue.anchored.members)
    memory["active_jobs"] += len(queue.active)
    memory["completed_jobs"] += queue.completed.size
    memory["dead_letters"] += len(queue.dead.records)
    memory["custom_ids"] += len(queue.custom_ids)
    memory["deduplication_keys"] += len(queue.unique_keys.owners)
    memory["waiters"] += len(queue.waiters.line)
    if queue.groups is not None:
        memory["groups"] += len(queue.groups.by_name)
    if queue.tally is not None and queue.tally.closed:
        memory["counted_hours"] += len(queue.tally.closed)


def _memory(state: State, parts: Counter[str]) -> dict[str, int]:
    sizes = {
        "jobs": len(state.index),
        "queues": len(state.queues),
        "results": len(state.results),
        "results_bytes": state.results.size,
        "proofs": len(state.proofs),
        "logged_jobs": len(state.logs),
        "log_bytes": state.logs.size,
    }
    return {**sizes, **dict(sorted(parts.items()))}


def _numbers(queue: QueueStats) -> Iterable[int]:
    # of a dataclass, in the order of its fields
    return vars(queue.counts).values()


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
    boxes = state.events.mailboxes()
    return ListenerStats(
        len(boxes), sum(box.backlog for box in boxes), sum(box.lost for box in boxes)
    )


def distributions(state: State, timing: Timing | None) -> dict[str, Distribution]:
    """What was measured, by name; empty if nothing is."""
    if timing is None:
        return {}
    found = timing.distributions()
    times = []
    for shard in state.shards.shards:
        with shard.lock:
            if shard.times is not None:
                times.append(
                    [(list(s.counts), s.total) for s in (shard.times.waits, shard.times.runs)]
                )
    for i, name in enumerate(("wait", "run")):
        found[name] = distribution((pair[i] for pair in times), 0.001, WAIT_BUCKETS)
    return found


def latency(found: Distribution) -> Latency:
    """The figures of a distribution."""
    count = found.count
    mean = found.total / count if count else 0.0
    return Latency(count, mean, *(found.quantile(share) for share in (0.5, 0.95, 0.99)))


def minutes(state: State, queue_name: str, kind: str) -> list[MinuteCount]:
    """The minutes in which jobs of the queue ended so, oldest first."""
    check_open(state)
    queue = state.queues.get(queue_name)
    days = state.config.completed_metrics_days
    if queue is None or not days:
        return []
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        tally = queue.tally
        if tally is None:
            return []
        since = state.now() // _HOUR_MS - days * 24
        which = COMPLETED if kind == "completed" else FAILED
        closed, points = tally.closed.copy(), list(tally.open_points(which, totals_of(queue)))
        hour = tally.hour
    # what is over never changes: it is unpacked with nothing held
    for over in sorted((h for h in closed if since <= h), reverse=True):
        assert over != hour
        points[:0] = tally.points_of(which, over, closed[over])
    return [MinuteCount(ms_to_moment(at), n) for at, n in sorted(points)]
