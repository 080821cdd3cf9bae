"""Deduplication keys: who owns one, how it is released, how it passes on."""

from __future__ import annotations

from ..errors import DuplicateJobError
from ..model.job import ACTIVE, REMOVED, JobRecord
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..shard.unique_keys import key_conflict, key_of
from ..state import State
from .finish import removed
from .mark import mark
from .recover import check_open, enter


def owner(state: State, queue_name: str, key: str) -> str | None:
    """The id of the job that owns the key of that queue now, `None` if it is free."""
    queue = state.queues.get(queue_name)
    if queue is None:
        check_open(state)
        return None
    with queue.lock:
        if queue.shard.gate:
            enter(state, queue.shard)
        record = queue.unique_keys.owner(key, state.now())
        return None if record is None else record.id


def release(state: State, queue_name: str, key: str) -> bool:
    """Frees the key, whoever owns it; says whether it was taken."""
    queue = state.queues.get(queue_name)
    if queue is None:
        check_open(state)
        return False
    shard = queue.shard
    with queue.lock:
        if shard.gate:
            enter(state, shard)
        now = state.now()
        shard.gate = BROKEN
        owner = queue.unique_keys.owners.get(key)
        taken = queue.unique_keys.release(key, now)
        if owner is not None and owner.state != REMOVED:
            mark(queue, owner)
        shard.gate = OPEN
    return taken


def take_key(state: State, queue: QueueState, record: JobRecord, now: int) -> None:
    """The record, which the index knows already and which claims its key, owns it from now on. A
    pending owner is removed: after the newcomer is in, so that an exception between leaves two
    jobs, of which the rebuild removes the older, and never none."""
    prior = queue.unique_keys.owners.get(key_of(record))
    replaced = queue.unique_keys.take(record, now)
    if prior is not None and prior.state == ACTIVE and prior is not record:
        # it runs on without its key
        mark(queue, prior)
    if replaced is not None:
        removed(state, queue, replaced, now)


def refuse_conflict(queue: QueueState, record: JobRecord, now: int) -> None:
    """Raises `DuplicateJobError` if another live job owns the record's key."""
    other = key_conflict(queue, record, now)
    if other is not None:
        key = record.unique_key
        raise DuplicateJobError(
            f"job {record.id} cannot run again: its deduplication key {key!r} belongs to job "
            f"{other} now. Wait until that has ended, remove it, or release the key",
            job_id=record.id,
            key=key,
            owner=other,
        )
