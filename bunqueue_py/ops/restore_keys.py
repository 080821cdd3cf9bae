"""Deduplication keys that are held beyond the life of their jobs, as a storage tells of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..model.checks import checked_int, checked_name
from ..model.claim import REPLACE, SKIP, Claim, is_held
from ..model.job import ACTIVE, JobRecord
from ..shard.dirty import HELD_KIND, held_name
from ..shard.keys import LIMIT
from ..shard.queue_state import QueueState
from ..shard.unique_keys import stands
from ..state import State
from .mark import mark_held


def take_keys(records: Iterable[JobRecord], now: int) -> None:
    """Keys that finished jobs hold by time; those of live ones the rebuild finds by itself."""
    for record in records:
        if record.state > ACTIVE and is_held(record.claim) and stands(record, now):
            record.queue.unique_keys.hold_for(record)


def restore_held(
    state: State, queue: QueueState, key: str, body: Any, shift: int, now: int
) -> None:
    """Has the queue hold a key whose job is gone, as that row says, or forgets it if its time is
    over. Moments move back by `shift`. Raises `ValueError` and the like for a row that makes no
    sense."""
    job_id, ttl_ms, mode, until_ms = body
    checked_name(job_id, "job_id")
    checked_name(key, "key")
    checked_int(mode, "mode", SKIP, REPLACE)
    for moment in (ttl_ms, until_ms):
        if moment is not None:
            checked_int(moment, "moment", 0, LIMIT - 1)
    if until_ms is None or until_ms - shift <= now:
        if queue.shard.dirty is not None:
            queue.shard.dirty.keep(HELD_KIND, held_name(queue.name, key), None)
        return
    holder = _gone(state, queue, job_id, key, ttl_ms, mode, until_ms - shift)
    queue.unique_keys.hold_for(holder)
    if shift:
        mark_held(queue, holder)


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
