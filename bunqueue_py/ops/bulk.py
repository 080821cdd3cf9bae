"""Batches of plain jobs: `pull` and `ack` for what most workers hold, in fewer steps a job.

What is the same for a whole batch is looked at once, and the general way's calls are in line.
Whatever is not plain ends the batch here, and goes the general way from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush

from ..model.job import Delivery, JobRecord
from ..model.snapshot import JobSnapshot, fields_of
from ..shard.deadlines import LEASE
from ..shard.keys import LIMIT
from ..shard.queue_state import QueueState
from ..state import State
from ..types import JobState
from .finish import ran_dry, resolve
from .mark import mark_begun, mark_ended
from .tally import look, note_run

_ACTIVE = JobState.ACTIVE


def take_plain(
    state: State,
    queue: QueueState,
    limit: int,
    now: int,
    lease_ms: int,
    owner: str | None,
    views: list[JobSnapshot],
    *,
    claim: bool,
) -> None:
    """What `pull._take` does for up to `limit` jobs from the front of the lane, up to the first
    whose time would run while it waits in a batch. The queue has neither limits nor groups,
    nothing that comes due, and no ready jobs but those of its lane; with `claim`, only the first
    is begun."""
    shard, lane = queue.shard, queue.ready.lane
    records, active = lane.records, queue.active
    heap, numbers = shard.deadlines.heap, shard.deadlines.numbers
    new_token, view = state.new_token, state.view
    tell, dirty = state.events.active, shard.dirty
    expires_ms = now + lease_ms
    begun, runs = True, []
    for _ in range(limit):
        if not records:
            break
        record = records[0]
        if not 0 < record.key < LIMIT:
            lane.drop_stale_first()
            if not records:
                break
            record = records[0]
        if record.options.runs_alone:
            break
        records.popleft()
        token = new_token()
        delivery = Delivery.of(record, token, owner, lease_ms, expires_ms, begun)
        if record.started_ms is not None:
            delivery.before_ms = record.started_ms
        record.start(delivery, now)
        job_id = record.id
        active[job_id] = record
        heappush(heap, (expires_ms, next(numbers), LEASE, delivery))
        if begun:
            if tell is not None:
                tell(queue, job_id, now, None)
            if dirty is not None:
                runs.append(delivery)
            begun = not claim
        views.append(view(job_id, token, fields_of(record, _ACTIVE)))
    if views:
        queue.started_ms = now
        if dirty is not None:
            mark_begun(dirty, runs)
        if expires_ms < state.alarm.due_ms:
            state.alarm.set(expires_ms)


def complete_plain(
    state: State,
    queue: QueueState,
    items: Sequence[tuple[str, str | None, bytes | None]],
    position: int,
    now: int,
) -> int:
    """What `finish.complete` does for the items from that position on, up to the first that is
    not held by its token or that is not plain; returns the position behind them. The queue has
    no limits whose places somebody may wait for, and no job waits for another."""
    index, shard, active = state.index, queue.shard, queue.active
    ending: dict[str, JobRecord] = {}
    results: dict[str, bytes] = {}
    for i in range(position, len(items)):
        job_id, token, data = items[i]
        record = index.get(job_id)
        if record is None or record.queue is not queue or job_id in ending:
            break
        delivery = record.delivery
        if (
            delivery is None
            or delivery.token != token
            or delivery.armed_ms is None
            or delivery.timeout_ms is not None
            or record.side is not None
            or record.unique_key is not None
            or not record.options.ends_plainly
        ):
            break
        ending[job_id] = record
        if data is not None:
            results[job_id] = data
    if not ending:
        return position
    if results:
        # before any completion can be seen: whoever sees it finds the result
        state.results.put_many(results)
    if now >= queue.look_ms:
        look(state, queue, now)
    times, dirty, watched = shard.times, shard.dirty, shard.watched
    tell = state.events.completed
    completed = queue.completed
    was_empty = not completed.size
    size = 0
    for job_id, record in ending.items():
        data = results.get(job_id)
        del active[job_id]
        if times is not None:
            if record.run_at_ms == now:
                times.at_once += 1  # it started between the two
            else:
                note_run(times, record, now)
        if data is None:
            record.complete(now, -1)
        else:
            length = len(data)
            record.complete(now, length)
            size += length
        queue.completed_total += 1
        completed.add(record)
        size += len(record.data)
        if watched:
            resolve(queue, job_id, "completed", data)
        if tell is not None:
            tell(queue, job_id, now, None if data is None else {"result": data})
    if dirty is not None:
        mark_ended(dirty, queue, ending.values(), results)
    count = len(ending)
    if was_empty:
        shard.heads.push(queue)
    shard.completions += count
    shard.finished += count
    shard.finished_bytes += size
    shard.deadlines.drop_many(count)
    if not active and (queue.empty_waiters or state.events.empty is not None):
        ran_dry(state, queue, now)
    return position + count
