"""Expire: a job's ttl ran out before its first start. Called under its shard's lock."""

from __future__ import annotations

from ..model.failure import Failure
from ..model.job import JobRecord
from ..shard.queue_state import QueueState
from ..state import State
from ..types import FailureReason
from .finish import finalize
from .recover import ttl_due


def expire(state: State, queue: QueueState, record: JobRecord, now: int) -> bool:
    """Fails a pending job whose ttl ran out before its first start; says whether it did."""
    if not is_expired(record, now):
        return False
    assert record.options.ttl_ms is not None
    text = f"not started within its ttl of {record.options.ttl_ms / 1000:g} s"
    finalize(state, queue, record, Failure(FailureReason.TTL_EXPIRED, text), now)
    return True


def is_expired(record: JobRecord, now: int) -> bool:
    """Whether the job's ttl, if it has one, ran out before its first start."""
    if record.options.ttl_ms is None or record.started_ms is not None:
        return False
    return now >= ttl_due(record)
