"""What has changed and is to be on disk. Called under the shard's lock; does nothing in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..model.claim import Claim
from ..model.job import ACTIVE, COMPLETED, Delivery, JobRecord
from ..model.rows import INLINE_BYTES, PLAIN_WIDTH, claim_row, row_of, side_row
from ..shard.dirty import GROUP_KIND, HELD_KIND, Dirty, group_name, held_name
from ..shard.group import Group
from ..shard.keys import LIMIT, seq_of
from ..shard.queue_state import QueueState
from ..shard.settings import group_body, settings_body
from ..state import State

QUEUE_KIND = "queue"

MAX_STARTS = 1000
"""The most rows that are to be made while the cut holds all locks: a millisecond."""

_UNKNOWN: Final[Any] = ()


def mark_new(queue: QueueState, record: JobRecord) -> None:
    """The record has come in, and has its place."""
    dirty = queue.shard.dirty
    if dirty is not None:
        dirty.add(row_of(record, seq_of(record) or 0), record.data)


def mark_begun(dirty: Dirty, deliveries: Sequence[Delivery]) -> None:
    """`mark_start` for all of those."""
    if not dirty.touched:
        dirty.begin()
    dirty.starts.extend(deliveries)
    while len(dirty.starts) > MAX_STARTS:
        _mark_oldest_start(dirty)


def mark_start(dirty: Dirty, delivery: Delivery) -> None:
    """The delivery's run has begun. The row is made with the cut, or when many have begun since:
    most runs have ended by then, which makes a row of its own."""
    if not dirty.touched:
        dirty.begin()
    dirty.starts.append(delivery)
    if len(dirty.starts) > MAX_STARTS:
        _mark_oldest_start(dirty)


def mark_starts(dirty: Dirty) -> None:
    """The cut is taken: makes the rows of the runs that have begun and are still under way."""
    while dirty.starts:
        _mark_oldest_start(dirty)


def _mark_oldest_start(dirty: Dirty) -> None:
    delivery = dirty.starts[0]
    record = delivery.record
    if record.delivery is delivery:
        mark_run(dirty, record)
    # after that: an exception between must not lose it
    dirty.starts.popleft()


def mark_run(dirty: Dirty, record: JobRecord) -> None:
    """The record's turn has come, or its run has begun: nothing else of it has changed since it
    was marked last."""
    job_id, jobs, ended, started_ms = record.id, dirty.jobs, dirty.ended, record.started_ms
    older = jobs.get(job_id)
    if (
        older is not None
        and len(older) == PLAIN_WIDTH
        and record.side is None
        and record.delivery is not None
        and record.delivery.begun
        and started_ms is not None
    ):
        # as of one that has completed
        entered_ms, attempts = record.entered_ms, record.attempts_made
        jobs[job_id] = older, ACTIVE, entered_ms, started_ms, attempts, None, -1
        return
    known = job_id in jobs and ended.get(job_id) is not older
    row = row_of(record, seq_of(record) or 0)
    dirty.mark(row)
    if not known:
        # as of one that has completed
        ended[job_id] = row


def mark(queue: QueueState, record: JobRecord) -> None:
    """The record has changed, but for its payload or result."""
    dirty = queue.shard.dirty
    if dirty is not None:
        dirty.mark(row_of(record, seq_of(record) or 0))


def mark_completed(
    dirty: Dirty, queue: QueueState, record: JobRecord, result: bytes | None
) -> None:
    """The record is completed with that encoded result."""
    if not dirty.touched:
        dirty.begin()
    job_id, jobs, side, key_of = record.id, dirty.jobs, record.side, record.unique_key
    starts = dirty.starts
    if starts and starts[0].record is record:
        # its run has ended: the cut need not look at it, and its delivery can go now
        starts.popleft()
    known, started_ms = jobs.get(job_id, _UNKNOWN), record.started_ms
    if (
        known is not None
        and len(known) == PLAIN_WIDTH
        and side is None
        and started_ms is not None
        and (result is None or len(result) <= INLINE_BYTES)
    ):
        # any other change would have made another row of it
        size = record.result_size
        entered_ms, attempts = record.entered_ms, record.attempts_made
        jobs[job_id] = known, COMPLETED, entered_ms, started_ms, attempts, result, size
        return
    key, data = record.key, record.data
    # what `row_of` and `seq_of` say, in line for a job that has stood in a lane
    jobs[job_id] = row = (
        job_id,
        queue.name,
        key if 0 < key < LIMIT else seq_of(record) or 0,
        COMPLETED,
        record.priority,
        record.run_at_ms,
        record.entered_ms,
        record.created_ms,
        started_ms,
        record.attempts_made,
        record.name,
        record.options,
        record.custom_id,
        None if key_of is None else claim_row(key_of, record.claim),
        None if side is None else side.common or side_row(side),
        data if len(data) <= INLINE_BYTES else None,
        result if result is None or len(result) <= INLINE_BYTES else None,
        record.result_size,
    )
    if known is _UNKNOWN:
        # every change before this one has been handed over
        dirty.ended[job_id] = row
    # a short one is in the row: nothing to keep or to take back
    if result is not None and (dirty.results or len(result) > INLINE_BYTES):
        dirty.result(job_id, result, -1)


def mark_ended(
    dirty: Dirty,
    queue: QueueState,
    records: Iterable[JobRecord],
    results: Mapping[str, bytes],
) -> None:
    """`mark_completed` for all of those, in a row, with the encoded results of some."""
    if not dirty.touched:
        dirty.begin()
    jobs, starts = dirty.jobs, dirty.starts
    for record in records:
        job_id = record.id
        known, result, started_ms = jobs.get(job_id), results.get(job_id), record.started_ms
        if (
            known is None
            or len(known) != PLAIN_WIDTH
            or record.side is not None
            or started_ms is None
            or (result is not None and len(result) > INLINE_BYTES)
        ):
            mark_completed(dirty, queue, record, result)
        else:
            size = record.result_size
            entered_ms, attempts = record.entered_ms, record.attempts_made
            jobs[job_id] = known, COMPLETED, entered_ms, started_ms, attempts, result, size
    while starts and starts[0].record.delivery is not starts[0]:
        starts.popleft()


def mark_data(queue: QueueState, record: JobRecord, before: bytes) -> None:
    """The record has another payload than that."""
    dirty = queue.shard.dirty
    if dirty is not None:
        dirty.payload(record.id, record.data, len(before))
        dirty.mark(row_of(record, seq_of(record) or 0))


def mark_revived(queue: QueueState, record: JobRecord, result_size: int) -> None:
    """A finished record, whose result had that size (-1: none), is pending again."""
    dirty = queue.shard.dirty
    if dirty is not None:
        dirty.result(record.id, None, result_size)
        dirty.mark(row_of(record, seq_of(record) or 0))


def mark_gone(queue: QueueState, record: JobRecord, *, whole: bool = False) -> None:
    """The record is about to leave the index. A key that it holds beyond its end stays. `whole`:
    its sizes are no longer known."""
    dirty = queue.shard.dirty
    if dirty is None:
        return
    data_size = INLINE_BYTES + 1 if whole else len(record.data)
    dirty.tombstone(record.id, data_size, data_size if whole else record.result_size)
    if record.unique_key is not None:
        mark_held(queue, record)


def mark_held(queue: QueueState, record: JobRecord) -> None:
    """The record is gone, or about to be: the key that it holds on, if it does, is as it is now.
    That it no longer holds it, the keys themselves mark."""
    dirty, claim, key = queue.shard.dirty, record.claim, record.unique_key
    if dirty is None or key is None or not isinstance(claim, Claim) or not claim.held:
        return
    if queue.unique_keys.owners.get(key) is record:
        dirty.keep(HELD_KIND, held_name(queue.name, key), held_body(record.id, claim))


def held_body(job_id: str, claim: Claim) -> list[object]:
    """A key's claim that outlives its job, as something that JSON can hold."""
    return [job_id, claim.ttl_ms, claim.mode, claim.until_ms]


def mark_queue(queue: QueueState) -> None:
    """The settings of the queue, but for its groups, have changed."""
    dirty = queue.shard.dirty
    if dirty is not None:
        dirty.keep(QUEUE_KIND, queue.name, settings_body(queue))


def mark_group(queue: QueueState, group: Group) -> None:
    """The settings of that group may have changed."""
    dirty = queue.shard.dirty
    if dirty is not None:
        body = group_body(group)
        if body is not None or group.stored:
            dirty.keep(GROUP_KIND, group_name(queue.name, group.name), body)
        group.stored = body is not None


def mark_all(state: State, queue: QueueState, record: JobRecord) -> None:
    """Whatever the storage knows of the record, this is how it is; for a rebuild."""
    dirty = queue.shard.dirty
    if dirty is not None:
        result = state.results.get(record.id) if record.state == COMPLETED else None
        dirty.restore(row_of(record, seq_of(record) or 0, result), record.data, result)
